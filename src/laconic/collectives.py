"""What exchanges ask of a transport, and who answers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass, fields
from typing import Literal, Protocol, TypeVar

from torch import Tensor
from torch.futures import Future

# Who takes part: every rank, the ranks of each node among themselves, or the first rank of each node. Every rank
# asks for the same in the same order; one that does not take part gets an empty reply, and sends nothing.
Among = Literal["world", "node", "leaders"]


@dataclass(frozen=True, kw_only=True)
class AllGather:
    """Ask for every rank's bytes; the reply has one row a rank, in rank order.

    ``senders`` are the ranks that send (None: every rank); the reply has one row a sender, in rank order, and
    ``send`` of a rank that is not among them is empty: ``size`` tells it how many bytes a message has. Ranks are
    counted among those that take part.
    """

    send: Tensor
    senders: tuple[int, ...] | None = None
    size: int | None = None
    among: Among = "world"


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Ask for the sum over ranks; the tensor itself is replaced by the sum and is the reply."""

    send: Tensor
    among: Among = "world"


@dataclass(frozen=True, kw_only=True)
class AllToAll:
    """Ask to give every rank bytes of its own; the reply has what every rank gave to this one, in rank order.

    ``send`` has ``given[r]`` bytes for rank r, one rank behind the other; the reply ``heard[r]`` from rank r.
    """

    send: Tensor
    given: tuple[int, ...]
    heard: tuple[int, ...]
    among: Among = "world"


Request = AllGather | AllReduce | AllToAll
Reply = Tensor
T = TypeVar("T")


class Transport(Protocol):
    """Who does the talking. Later rounds are issued in submission order by the caller's own thread.

    Nodes are ``node_size`` ranks each, one node behind the other. ``wire_bytes`` were handed to ``collectives`` of
    several nodes, ``node_bytes`` to those within a node. ``link_bytes`` were sent to other ranks for the former.
    """

    rank: int
    world_size: int
    node_size: int
    wire_bytes: int
    link_bytes: int
    node_bytes: int
    collectives: int

    def start(self, steps: Generator[Request, Reply, T], *, label: str) -> Future[T]:
        """Run the exchange to its first request, issue that, and return before the reply."""

    def drain(self) -> None:
        """Bring every started exchange to its end."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a transport has counted at some moment."""

    wire_bytes: int = 0
    link_bytes: int = 0
    node_bytes: int = 0
    collectives: int = 0

    @staticmethod
    def of(transport: Transport) -> Traffic:
        """Return what it has counted until now."""
        return Traffic(**{each.name: getattr(transport, each.name) for each in fields(Traffic)})

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(**{name: count + getattr(other, name) for name, count in asdict(self).items()})

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(**{name: count - getattr(other, name) for name, count in asdict(self).items()})


def check_node_size(node_size: int, world_size: int) -> None:
    """Refuse nodes that the ranks cannot be dealt out to."""
    if isinstance(node_size, bool) or not isinstance(node_size, int) or node_size < 1 or world_size % node_size:
        raise ValueError(
            f"node_size must be a whole number that divides the {world_size} ranks, got {node_size!r}. Start "
            f"equally many ranks on every node, and give their number."
        )


def members(among: Among, *, rank: int, world_size: int, node_size: int) -> range:
    """Return the ranks that take part in what a rank asks for; it may itself not be one of them.

    >>> members("node", rank=3, world_size=6, node_size=2), members("leaders", rank=3, world_size=6, node_size=2)
    (range(2, 4), range(0, 6, 2))
    """
    first = rank - rank % node_size
    node, leaders = range(first, first + node_size), range(0, world_size, node_size)
    return {"world": range(world_size), "node": node, "leaders": leaders}[among]


def link_bytes(request: Request, *, place: int, ranks: int) -> int:
    """Return how many bytes a rank sends to others for a request; ``place`` is its own among those that take part.

    Over gloo that is what leaves its interface, but for what packets add: gathered messages go around a ring, a sum
    does so twice in shares, of what is dealt out a rank's own share stays where it is, several senders send to each
    rank, and what one sends alone is passed on by ranks that have it.
    """
    size = request.send.numel() * request.send.element_size()
    if isinstance(request, AllGather):
        if request.senders is None or len(request.senders) > 1:
            return (ranks - 1) * size
        whole = size if request.size is None else request.size
        return whole * passed_on((place - request.senders[0]) % ranks, ranks)
    if isinstance(request, AllReduce):
        return 2 * (ranks - 1) * size // ranks
    return size - request.given[place]


def passed_on(place: int, ranks: int) -> int:
    """Return to how many others a rank sends what is broadcast; ``place`` is its distance from the one who had it.

    In every round all who have it send it on, each to the rank as far away as there are of them.

    >>> [passed_on(place, 6) for place in range(6)]
    [3, 2, 0, 0, 0, 0]
    """
    having = [1 << i for i in range(ranks.bit_length())]
    return sum(place < have and place + have < ranks for have in having)
