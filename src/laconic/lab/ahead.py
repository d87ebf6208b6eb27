"""Batches made ready while the step before them trains."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any


class Ahead:
    """Hands out ``make(step)``; with a thread of its own the next step's is made as soon as this one's is taken.

    On a GPU the host has time for that while it waits. On CPU it has not: the core is the one that trains.

    >>> with Ahead(lambda step: 10 * step, threaded=True) as ahead:
    ...     [ahead.take(step) for step in (3, 4, 9)]
    [30, 40, 90]
    """

    def __init__(self, make: Callable[[int], Any], *, threaded: bool) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1) if threaded else None
        self._ready: dict[int, Future[Any]] = {}

    def take(self, step: int) -> Any:
        """Return the batch of a step."""
        if self._thread is None:
            return self._make(step)
        future = self._ready.pop(step, None) or self._thread.submit(self._make, step)
        self._ready = {step + 1: self._thread.submit(self._make, step + 1)}
        return future.result()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
