"""Who waits for whom: ranks tell each other how long each has waited in its exchanges."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import torch

from laconic import seals
from laconic.collectives import Reply, Request
from laconic.integrations.wire import Wire
from laconic.stats import Waits


class Waiting:
    """What this rank has waited since it told last, by its clock; ``told`` is what ranks told each other last."""

    def __init__(self, transport: Wire, device: torch.device) -> None:
        self._transport, self._device = transport, device
        self.told: Waits | None = None
        self.wire_bytes = 0
        self.begin(time.perf_counter)

    def begin(self, clock: Callable[[], float]) -> None:
        """Count from here on, by a clock."""
        self._clock = clock
        self._blocked_before, self._began = self._transport.blocked_seconds, self._clock()

    def regroup(self, transport: Wire) -> None:
        """Count from here on what is waited over another transport; what was told is of other ranks."""
        self._transport, self.told = transport, None
        self.begin(self._clock)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing of what goes by inside a ``with`` block."""
        blocked, now = self._transport.blocked_seconds, self._clock()
        try:
            yield
        finally:
            self._blocked_before += self._transport.blocked_seconds - blocked
            self._began += self._clock() - now

    def tell(self) -> Waits:
        """Return what each rank has waited, the same on all of them; every rank must call it at the same point."""
        before = self._transport.wire_bytes
        blocked = self._transport.blocked_seconds - self._blocked_before
        future = self._transport.start(
            _table([blocked, self._clock() - self._began], self._device), label="waits()"
        )
        self._transport.drain()
        rows = future.value()
        self.told = Waits(seconds=tuple(row[0] for row in rows), of_seconds=max(row[1] for row in rows))
        self.wire_bytes += self._transport.wire_bytes - before
        # What was waited for here was no exchange of the method's.
        self.begin(self._clock)
        return self.told


def _table(numbers: list[float], device: torch.device) -> Generator[Request, Reply, list[list[float]]]:
    mine = torch.tensor(numbers, dtype=torch.float64).to(device)
    rows = yield from seals.gathered(mine.view(torch.uint8), "row of a table")
    table: list[list[float]] = rows.cpu().contiguous().view(torch.float64).tolist()
    return table
