"""How things that must not stay behind come to an end when a process is asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

# What ends a process from outside; not every system has terminals that hang up.
_ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise, as Ctrl-C does, so that what a ``with`` block put up is taken down."""
    # Under nohup a closed terminal is to change nothing.
    heard = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    with _handled(_end, heard):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no signal that ends break off what is inside, nor the processes that it starts."""
    with _handled(signal.SIG_IGN, (signal.SIGINT, *_ENDS)):
        yield


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(f"ended by {signal.Signals(number).name}")


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers, numbers: Sequence[int]
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
