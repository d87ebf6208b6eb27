"""How long steps take, and whose time it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan, nan

from laconic.stats import Counters


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a step took: ``waited`` seconds for its exchange, and ``rest`` seconds for all else.

    Of the group: the least that any rank waited, for the last to come waits for nothing but the link, and the most
    that any other work took. NaN: not known.
    """

    waited: float = nan
    rest: float = nan

    @staticmethod
    def of_group(ranks: Sequence[Pace]) -> Pace:
        """Return the group's pace; not known if a rank does not know its own."""
        if any(isnan(pace.waited + pace.rest) for pace in ranks):
            return UNKNOWN_PACE
        return Pace(waited=min(pace.waited for pace in ranks), rest=max(pace.rest for pace in ranks))


UNKNOWN_PACE = Pace()


@dataclass
class Stopwatch:
    """Times one rank's steps: from the end of one wait to the end of the next."""

    clock: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    _ended: float = nan

    @contextmanager
    def selecting(self, counters: Counters) -> Iterator[None]:
        """Count the time within as spent on choosing and packing."""
        began = self.clock()
        yield
        counters.select_seconds += self.clock() - began

    @contextmanager
    def waiting(self, counters: Counters) -> Iterator[None]:
        """Count the time within as spent on waiting, but for what is ``selecting``; it ends a step."""
        began, before = self.clock(), counters.select_seconds
        yield
        now, selected = self.clock(), counters.select_seconds - before
        waited = now - began - selected
        counters.wait_seconds += waited
        self.pace, self._ended = Pace(waited=waited, rest=began - self._ended + selected), now
