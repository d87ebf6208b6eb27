"""When collectives begin and end on a network that is not there."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.collectives import Request
from laconic.sim.clock import RankClock
from laconic.sim.network import Call, Network
from laconic.sim.pace import Pace


class Timing:
    """Keeps the ranks' clocks for a ``Lockstep``.

    A collective begins when the last of its ranks has asked for it and the wire is free, in the order in which they
    were asked for, one at a time; its ranks hear at its end. Wires within nodes are others than that between them.
    What is said while the run is looked at takes no time.
    """

    def __init__(self, network: Network, pace: Pace) -> None:
        self.network, self.clocks = network, [RankClock(rank, pace) for rank in range(network.ranks)]
        self._at_work = 0
        # Of the wire between nodes, and how long it was in use; of the wires within nodes by their first rank.
        self._free, self._free_inside, self.wire_seconds = 0.0, dict[int, float](), 0.0

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

    def charge(self, seconds: float) -> None:
        """Let the rank at work take so long for what another has done for it."""
        self.clocks[self._at_work].charge(seconds)

    def answered(self, requests: Sequence[Request], asked: Sequence[float], circles: Sequence[range]) -> None:
        """Let the ranks of every circle wait until their collective ends."""
        for circle in circles:
            inside, call = requests[circle[0]].among == "node", Call.of([requests[rank] for rank in circle])
            free = self._free_inside.get(circle[0], 0.0) if inside else self._free
            begin = max([free, *(asked[rank] for rank in circle)])
            self._take(call, begin, circle, inside=inside)

    def spread(self, size: int) -> None:
        """Let all wait until the first rank's bytes have come."""
        begin = max([self._free, *(clock.now() for clock in self.clocks)])
        self._take(Call(kind="broadcast", size=size), begin, range(len(self.clocks)), inside=False)

    def _take(self, call: Call, begin: float, circle: range, *, inside: bool) -> None:
        """Let the ranks wait for a collective, and the wire be in use."""
        if self.clocks[circle[0]].looking:
            return
        end = begin + self.network.seconds(call, begin)
        for rank in circle:
            self.clocks[rank].wait_until(end)
        if inside:
            self._free_inside[circle[0]] = end
        else:
            self._free, self.wire_seconds = end, self.wire_seconds + end - begin
