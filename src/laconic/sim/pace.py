"""How fast each rank works, and when one stands still."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np

from laconic.arguments import check_number, check_whole


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A rank stands still from a second of the run on, for so many seconds."""

    rank: int
    second: float
    seconds: float

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 0, "Ranks are counted from 0.")
        check_number("second", self.second, 0.0, "It counts from the start of the run.")
        check_number("seconds", self.seconds, 0.0, "It says how long the rank stands still.")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What ranks take for a step. ``seconds`` is what one takes by itself (None: what it takes here, measured).

    The last ``slow_share`` of the ranks always take ``slow_factor`` times as long. Every step of every rank takes
    exp(``jitter`` z) times as long, z drawn from a normal distribution by seed, rank and step.

    >>> pace = Pace(ranks=4, seconds=0.1, slow_share=0.25, slow_factor=3.0)
    >>> [pace.factor(rank, step=0) for rank in range(4)]
    [1.0, 1.0, 1.0, 3.0]
    """

    ranks: int
    seconds: float | None = None
    slow_share: float = 0.0
    slow_factor: float = 1.0
    jitter: float = 0.0
    outages: tuple[Outage, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("ranks", self.ranks, 1, "Write 2, say.")
        if self.seconds is not None:
            check_number("seconds", self.seconds, 0.0, "It is what a rank takes for a step: 0.05, say.")
        check_number("slow_share", self.slow_share, 0.0, "For a tenth of the ranks write 0.1.")
        if self.slow_share > 1:
            raise ValueError(f"slow_share must be in [0, 1], got {self.slow_share}. For a tenth write 0.1.")
        check_number("slow_factor", self.slow_factor, 0.0, "For ranks that take twice as long write 2.")
        check_number("jitter", self.jitter, 0.0, "It is the deviation of the logarithm: 0.1, say.")
        for outage in self.outages:
            if outage.rank >= self.ranks:
                raise ValueError(f"rank {outage.rank} cannot stand still: there are {self.ranks}, counted from 0.")

    @property
    def slow_ranks(self) -> int:
        """How many ranks are slow; a share over 0 is one at least."""
        return max(1, round(self.slow_share * self.ranks)) if self.slow_share else 0

    def factor(self, rank: int, *, step: int) -> float:
        """Return how many times as long as others a rank takes for a step."""
        slow = self.slow_factor if rank >= self.ranks - self.slow_ranks else 1.0
        if not self.jitter:
            return slow
        drawn = np.random.default_rng([self.seed, rank, step]).standard_normal()
        return slow * exp(self.jitter * float(drawn))

    def after(self, rank: int, second: float, work: float) -> float:
        """Return when a rank is done with so many seconds of work that it begins at a second.

        >>> Pace(ranks=1, outages=(Outage(rank=0, second=2.0, seconds=10.0),)).after(0, 1.0, 3.0)
        14.0
        """
        if not self.outages:
            return second + work
        now = second
        for outage in sorted((o for o in self.outages if o.rank == rank), key=lambda o: o.second):
            end = outage.second + outage.seconds
            if outage.second <= now < end:
                now = end
            elif now < outage.second < now + work:
                work -= outage.second - now
                now = end
        return now + work
