"""One thread runs at a time: what ranks compute is then timed, and drawn, as if each were alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from laconic.errors import LaconicError


def _always() -> bool:
    return True


class Baton:
    """Goes around among threads, one a rank; who waits hands it to the next rank that can go on.

    It answers as ``threading.Condition`` does, so that a ``Lockstep`` can wait by it. Ranks ``take`` it first and
    ``drop`` it at their end; the first rank has it first.
    """

    def __init__(self, ranks: int) -> None:
        # Locks that another thread opens: a semaphore of Python's takes several times as long.
        self._calls = [threading.Lock() for _ in range(ranks)]
        for call in self._calls[1:]:
            call.acquire()
        self._ready: list[Callable[[], bool] | None] = [_always] * ranks
        self._holder = 0

    def take(self, rank: int) -> None:
        """Wait for this rank's first turn."""
        self._calls[rank].acquire()
        self._holder = rank

    def drop(self, rank: int) -> None:
        """Hand the baton on for good."""
        self._ready[rank] = None
        self._pass_on(rank)

    def wait_for(self, predicate: Callable[[], bool]) -> bool:
        """Let other ranks run until it holds and this one's turn comes."""
        rank = self._holder
        self._ready[rank] = predicate
        if not self._pass_on(rank):
            raise LaconicError(f"rank {rank} waits, and no rank can go on.")
        self._calls[rank].acquire()
        self._holder = rank
        self._ready[rank] = _always
        return True

    def notify_all(self) -> None:
        """Nobody needs to be woken: who hands the baton on looks who can go on."""

    def __enter__(self) -> Baton:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def _pass_on(self, rank: int) -> bool:
        """Wake the next rank that can go on; return whether there is one."""
        ranks = len(self._ready)
        for step in range(1, ranks + 1):
            ready = self._ready[(rank + step) % ranks]
            if ready is not None and ready():
                self._calls[(rank + step) % ranks].release()
                return True
        return False
