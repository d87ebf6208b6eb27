"""What a collective takes on a network that is not there: a latency a round, and a time a byte (alpha and beta).

Ranks stand on nodes, each with one cable to a switch that is never the narrow place. Gloo passes gathered messages
around a ring, sums in shares around it twice, deals to one rank after the other, and has what one rank sends passed
on by those who have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, isfinite, log2
from typing import Literal

from laconic.arguments import check_number, check_whole
from laconic.collectives import AllGather, AllReduce, Among, Request, check_node_size

Kind = Literal["gather", "sum", "deal", "broadcast"]
# Ethernet, IP and TCP with timestamps add 66 bytes to the 1448 that a packet of an MTU of 1500 carries.
HEADERS = 66 / 1448


@dataclass(frozen=True, kw_only=True)
class Cable:
    """What a node sends through: bits a second with packets' headers among them, and seconds that a round takes."""

    bits_per_second: float = inf
    latency: float = 0.0
    headers: float = HEADERS

    def __post_init__(self) -> None:
        if not self.bits_per_second > 0:
            raise ValueError(f"bits_per_second must be over 0, got {self.bits_per_second!r}. For 1 Gbit/s: 1e9.")
        check_number("latency", self.latency, 0.0, "It is in seconds: for 0.1 ms write 1e-4.")
        check_number("headers", self.headers, 0.0, "It is a share of the bytes: 0.046 by default.")

    @property
    def per_byte(self) -> float:
        """Seconds that a byte takes."""
        return 8.0 * (1.0 + self.headers) / self.bits_per_second


@dataclass(frozen=True, kw_only=True)
class Change:
    """From ``second`` on every cable between nodes has ``factor`` times its rate."""

    second: float
    factor: float

    def __post_init__(self) -> None:
        check_number("second", self.second, 0.0, "It counts from the start of the run.")
        if not (isfinite(self.factor) and self.factor > 0):
            raise ValueError(f"factor must be a finite number over 0, got {self.factor!r}. For half the rate: 0.5.")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective as a network sees it: ``size`` bytes are one rank's message, or all that it deals out.

    ``senders`` counts those that send, where only some do (0: all of them).
    """

    kind: Kind
    size: float
    among: Among = "world"
    senders: int = 0

    @staticmethod
    def of(requests: Sequence[Request]) -> Call:
        """Return what the requests of those who take part amount to: the largest message counts."""
        first, size = requests[0], max(r.send.numel() * r.send.element_size() for r in requests)
        if isinstance(first, AllGather):
            senders = 0 if first.senders is None else len(first.senders)
            whole = max([size, *(r.size or 0 for r in requests if isinstance(r, AllGather))])
            return Call(kind="gather", size=whole, among=first.among, senders=senders)
        kind: Kind = "sum" if isinstance(first, AllReduce) else "deal"
        return Call(kind=kind, size=size, among=first.among)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Nodes of ``node_size`` ranks, each on a cable of its own (one Cable: all alike), with an ``inside`` cable.

    >>> two = Network(ranks=2, cables=(Cable(bits_per_second=8e6, latency=0.001, headers=0.0),))
    >>> two.seconds(Call(kind="gather", size=1_000_000)), two.seconds(Call(kind="sum", size=1_000_000))
    (1.001, 1.002)
    """

    ranks: int
    cables: tuple[Cable, ...] = (Cable(),)
    inside: Cable = Cable()
    node_size: int = 1
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        check_whole("ranks", self.ranks, 1, "Write 2, say.")
        check_node_size(self.node_size, self.ranks)
        if len(self.cables) not in (1, self.nodes):
            raise ValueError(
                f"there are {self.nodes} nodes and {len(self.cables)} cables. Give one cable for all, or one each."
            )
        if any(one.second >= other.second for one, other in pairwise(self.changes)):
            raise ValueError(
                f"changes must come one after the other, got seconds {[c.second for c in self.changes]}."
            )

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.ranks // self.node_size

    def seconds(self, call: Call, at: float = 0.0) -> float:
        """Return what a collective takes that begins at a second of the run; nobody is done before the slowest."""
        ranks = {"world": self.ranks, "node": self.node_size, "leaders": self.nodes}[call.among]
        if ranks == 1:
            return 0.0
        rounds, passing = self._passing(call, ranks)
        if call.among == "node" or self.nodes == 1:
            return rounds * self.inside.latency + passing * self.inside.per_byte
        latency, per_byte = max(c.latency for c in self.cables), max(c.per_byte for c in self.cables)
        return rounds * latency + self._stretched(passing * per_byte, at + rounds * latency)

    def _passing(self, call: Call, ranks: int) -> tuple[int, float]:
        """Return the rounds of a collective, and the bytes that pass a cable, one round after the other."""
        size, shared = call.size, self.node_size if call.among == "world" and self.nodes > 1 else 1
        if call.kind == "broadcast" or call.senders == 1:
            rounds = ceil(log2(ranks))
            return rounds, rounds * size
        if call.kind == "sum":
            return 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size
        if call.kind == "gather" and not call.senders:
            return ranks - 1, (ranks - 1) * size
        # What goes to every rank by itself passes a node's cable once for each rank of the node.
        leaving = shared * (ranks - shared)
        return ranks - 1, leaving * size * (1 / ranks if call.kind == "deal" else 1)

    def _stretched(self, seconds: float, at: float) -> float:
        """Return how long it takes to send what takes so many seconds at the full rate, from a second on."""
        factor, now, left = 1.0, at, seconds
        for change in self.changes:
            if change.second > now:
                until = (change.second - now) * factor
                if until >= left:
                    break
                now, left = change.second, left - until
            factor = change.factor
        return now - at + left / factor
