"""When collectives begin and end on a network that is not there."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.collectives import Request
from laconic.sim.clock import RankClock
from laconic.sim.network import Call, Network
from laconic.sim.pace import Pace

# The wire between nodes; those within nodes have the number of the node's first rank.
_BETWEEN = -1


class Timing:
    """Keeps the ranks' clocks for a ``Lockstep``.

    A collective begins when the last of its ranks has asked for it and the wire is free, in the order in which they
    were asked for, one at a time; its ranks hear at its end. Wires within nodes are others than that between them.
    What is asked for while the run is looked at takes no time; what was asked for before is heard in its time.
    """

    def __init__(self, network: Network, pace: Pace) -> None:
        self.network, self.pace = network, pace
        self.clocks = [RankClock(rank, pace) for rank in range(network.ranks)]
        self._at_work = 0
        # Until when each wire is in use, and how long that between nodes was.
        self._free, self.wire_seconds = dict[int, float](), 0.0

    def now(self, rank: int) -> float:
        """Return a rank's time."""
        return self.clocks[rank].now()

    def waits(self, rank: int) -> None:
        """The rank works no more."""
        self.clocks[rank].waits()

    def goes_on(self, rank: int) -> None:
        """The rank works again."""
        self._at_work = rank
        self.clocks[rank].goes_on()

    def asks(self, rank: int) -> float:
        """Return when a rank that asks now can have asked: not before it heard what came before."""
        return max(self.now(rank), self.clocks[rank].due)

    def counts(self, rank: int) -> bool:
        """Whether what a rank starts now takes time."""
        return not self.clocks[rank].looking

    def charge(self, seconds: float) -> None:
        """Let the rank at work take so long for what another has done for it."""
        self.clocks[self._at_work].charge(seconds)

    def answered(self, requests: Sequence[Request], asked: Sequence[float], circles: Sequence[range]) -> None:
        """Let the ranks of every circle wait until their collective ends."""
        for circle in circles:
            call = Call.of([requests[rank] for rank in circle])
            self._take(call, max(asked[rank] for rank in circle), circle)

    def spread(self, size: int) -> None:
        """Let all wait until the first rank's bytes have come."""
        if self.counts(0):
            call, ranks = Call(kind="broadcast", size=size), range(len(self.clocks))
            self._take(call, max(self.now(rank) for rank in ranks), ranks)

    def _take(self, call: Call, asked: float, circle: range) -> None:
        """Let the ranks wait for a collective, and the wire be in use."""
        inside = call.among == "node" or self.network.nodes == 1
        wire = circle[0] if inside else _BETWEEN
        begin = max(self._free.get(wire, 0.0), asked)
        end = self._free[wire] = begin + self.network.seconds(call, begin)
        for rank in circle:
            self.clocks[rank].hears(end)
        self.wire_seconds += 0.0 if inside else end - begin
