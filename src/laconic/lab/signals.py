"""Ctrl-C and SIGTERM: who notes them, and what is done about them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have a handler called on Ctrl-C and SIGTERM, and in the end the one before it again."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


class StopWish:
    """Whether this rank was asked to stop, at the next step that all ranks agree on."""

    def __init__(self) -> None:
        self.wanted = False
        self._interrupted = False

    def note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Note the wish; a second Ctrl-C does not wait for the others."""
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted |= number == signal.SIGINT
        self.wanted = True


@contextmanager
def noted_wishes() -> Iterator[StopWish]:
    """Note what comes in instead of ending."""
    wish = StopWish()
    with on_signals(wish.note):
        yield wish
