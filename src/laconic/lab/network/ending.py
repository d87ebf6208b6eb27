"""How things that must not stay behind come to an end when a process is asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Have SIGTERM raise, as Ctrl-C does, so that what a ``with`` block put up is taken down."""
    with _handled(_end, (signal.SIGTERM,)):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let neither Ctrl-C nor SIGTERM break off what is inside, nor the processes that it starts."""
    with _handled(signal.SIG_IGN, (signal.SIGINT, signal.SIGTERM)):
        yield


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit("ended by SIGTERM")


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, numbers: tuple[int, ...]
) -> Iterator[None]:
    # Only the first thread may say what signals do; in another one they never arrive.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
