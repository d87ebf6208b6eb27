"""What exchanges ask of a transport, and who answers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor
from torch.futures import Future


@dataclass(frozen=True, kw_only=True)
class AllGather:
    """Ask for every rank's bytes; the reply has one row a rank, in rank order.

    ``senders`` are the ranks that send (None: every rank); the reply has one row a sender, in rank order, and
    ``send`` of a rank that is not among them is empty: ``size`` tells it how many bytes a message has.
    """

    send: Tensor
    senders: tuple[int, ...] | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Ask for the sum over ranks; the tensor itself is replaced by the sum and is the reply."""

    send: Tensor


@dataclass(frozen=True, kw_only=True)
class AllToAll:
    """Ask to give every rank bytes of its own; the reply has what every rank gave to this one, in rank order.

    ``send`` has ``given[r]`` bytes for rank r, one rank behind the other; the reply ``heard[r]`` from rank r.
    """

    send: Tensor
    given: tuple[int, ...]
    heard: tuple[int, ...]


Request = AllGather | AllReduce | AllToAll
Reply = Tensor
T = TypeVar("T")


class Transport(Protocol):
    """Who does the talking. Later rounds are issued in submission order by the caller's own thread."""

    rank: int
    world_size: int
    wire_bytes: int
    collectives: int

    def start(self, steps: Generator[Request, Reply, T], *, label: str) -> Future[T]:
        """Run the exchange to its first request, issue that, and return before the reply."""

    def drain(self) -> None:
        """Bring every started exchange to its end."""
