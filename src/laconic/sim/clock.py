"""The time of a rank that shares a process with others."""

from __future__ import annotations

import time

from laconic.sim.pace import Pace

# Forward takes a third of a step, and then gradients come one after the other.
_FORWARD = 1 / 3


class RankClock:
    """One rank's time in seconds of training: what it worked, and what it waited for.

    Work is measured while the rank runs, or follows a law: a step takes so many seconds, of which a part has gone
    by when a share of the ``entries`` of the gradient is made. The clock stands while the run is looked at.
    """

    def __init__(self, rank: int, pace: Pace) -> None:
        self._rank, self._pace, self.entries = rank, pace, 0
        self._base = self._worked = self.waited = 0.0
        self.steps = 0
        self._since: float | None = None
        self._runs, self.looking = True, True
        # What came while the run was looked at, of what was asked for before, is heard when the clock runs again.
        self.due = 0.0
        self._factor, self._law, self._paid, self._made = pace.factor(rank, step=0), 0.0, 0.0, 0
        # What forward and backward take where they are not measured, though all else is.
        self._supposed: float | None = None

    def now(self) -> float:
        """Return the time."""
        return self._pace.after(self._rank, self._base, self._worked + self._measured())

    def start(self) -> None:
        """Let the clock run; what is still under way is waited for."""
        self.looking = False
        self._watch()
        self.wait_until(self.due)
        self.due = 0.0

    def stop(self) -> None:
        """Let the clock stand; what was worked is paid for."""
        self._settle()
        self._unwatch()
        self.looking = True

    def step(self, number: int) -> None:
        """Begin a step."""
        self._settle()
        self.steps += 1
        self._rest_until(self.now())
        self._factor = self._pace.factor(self._rank, step=number)
        law = self._pace.seconds if self._pace.seconds is not None else self._supposed
        self._law, self._paid, self._made = (law or 0.0) * self._factor, 0.0, 0

    def made(self, entries: int) -> None:
        """So many more entries of the gradient are made."""
        self._made += entries
        self._pay(_FORWARD + (1 - _FORWARD) * min(1.0, self._made / max(1, self.entries)))

    def charge(self, seconds: float) -> None:
        """Count work that was measured elsewhere, if work is measured."""
        if self._since is not None:
            self._worked += seconds * self._factor

    def suppose(self, seconds: float | None) -> None:
        """Let forward and backward take so long from the next step on; None: they are measured, from now on."""
        self._supposed = seconds
        if seconds is None and self._pace.seconds is None:
            self._law = self._paid = 0.0

    def waits(self) -> None:
        """The rank works no more."""
        self._unwatch()
        self._runs = False

    def goes_on(self) -> None:
        """The rank works again."""
        self._runs = True
        self._watch()

    def hears(self, second: float) -> None:
        """What the rank has asked for comes at a second: let it wait, or later if the run is looked at."""
        if self.looking:
            self.due = max(self.due, second)
        else:
            self.wait_until(second)

    def wait_until(self, second: float) -> None:
        """Let the rank wait until a second, if that has not come."""
        now = self.now()
        if second > now:
            self.waited += second - now
            self._rest_until(second)

    def _measured(self) -> float:
        return 0.0 if self._since is None else (time.perf_counter() - self._since) * self._factor

    def _watch(self) -> None:
        if self._runs and not self.looking and self._pace.seconds is None:
            self._since = time.perf_counter()

    def _unwatch(self) -> None:
        self._worked += self._measured()
        self._since = None

    def _rest_until(self, second: float) -> None:
        self._base, self._worked = second, 0.0
        if self._since is not None:
            self._since = time.perf_counter()

    def _settle(self) -> None:
        """Pay for the rest of a step: some of its gradients may never come."""
        self._pay(1.0)

    def _pay(self, share: float) -> None:
        self._worked += self._law * share - self._paid
        self._paid = self._law * share
