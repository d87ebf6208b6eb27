"""Where ranks of one machine meet without the network: what is on the link then is the work's alone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

_POLL_SECONDS = 2e-4


class MeetingError(RuntimeError):
    """A rank did not come to a meeting."""


class Meeting:
    """Ranks that meet again and again, through a file in memory that all of them map.

    A rank can be one meeting ahead of the slowest, never two: values have two places and take turns.
    """

    def __init__(self, path: Path, rank: int, ranks: int, *, seconds: float) -> None:
        self._rank, self._seconds, self._number = rank, seconds, 0
        with path.open("ab") as file:
            # The first who comes fills it with zeros; for the others nothing changes.
            file.truncate(8 * 4 * ranks)
        self._counts = np.memmap(path, dtype=np.int64, mode="r+", shape=(ranks,))
        self._left = np.memmap(path, dtype=np.int64, mode="r+", shape=(ranks,), offset=8 * ranks)
        self._values = np.memmap(path, dtype=np.float64, mode="r+", shape=(2, ranks), offset=16 * ranks)

    def meet(self, value: float = 0.0) -> list[float]:
        """Wait until all ranks are here; return what each has brought, the same list on every rank."""
        self._number += 1
        place = self._number % 2
        self._values[place, self._rank] = value
        self._counts[self._rank] = self._number
        until = time.monotonic() + self._seconds
        while self._counts.min() < self._number:
            if self._left.any():
                raise MeetingError("another rank has left before the end; what it said tells why.")
            if time.monotonic() > until:
                late = [int(rank) for rank in np.flatnonzero(self._counts < self._number)]
                raise MeetingError(f"ranks {late} did not come to a meeting within {self._seconds:g} s.")
            time.sleep(_POLL_SECONDS)
        return [float(brought) for brought in self._values[place]]

    def leave(self) -> None:
        """Come to no meeting any more: those who wait for this rank are told."""
        self._left[self._rank] = 1
