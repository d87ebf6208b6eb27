"""Dense inside a node, where the fabric is fast; another exchange between nodes, where it is not.

A node counts as one worker. Before anything is clipped or remembered, the fresh gradients of its ranks are
averaged (the reducer sees to that, ``laconic.nodes``), so that each of them has the same bits from there on: one
memory, one selection, one message. Every rank holds a copy of its node's memory, and none has one of its
own: what a node owes counts once, whatever the number of its ranks. Only its first rank, the leader, talks to other
nodes, and tells the rest what it heard.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import prod
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from laconic.arguments import check_whole
from laconic.collectives import AllGather, AllReduce, Reply, Request
from laconic.errors import GroupError, WireError
from laconic.exchanges.gather_mean import GatherMean
from laconic.segments import Segments
from laconic.types import Compressor, Envelope, Exchange, Steps

UNKNOWN_NODE_SIZE = (
    "node_size is None: only attach asks the launcher how many ranks a node has. Write TwoLevel(node_size=8)."
)


class _Mesh(Protocol):
    """What is asked of a ``torch.distributed.DeviceMesh``."""

    @property
    def mesh(self) -> Tensor:
        """The ranks, as they lie."""


@dataclass(frozen=True, kw_only=True)
class TwoLevel:
    """``inner`` among the leaders of the nodes, each of which has ``node_size`` ranks, one node behind the other.

    Without a ``node_size``, ``attach`` asks the launcher for it (torchrun's LOCAL_WORLD_SIZE).

        replace(laconic.sdagc(), exchange=TwoLevel())
    """

    name: ClassVar[str] = "two_level"
    inner: Exchange = field(default_factory=GatherMean)
    node_size: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.inner, type | TwoLevel) or not isinstance(self.inner, Exchange):
            raise TypeError(
                f"inner must be an exchange of one level, got {self.inner!r}. Write GatherMean() or ReduceMean()."
            )
        if self.node_size is not None:
            check_whole("node_size", self.node_size, 1, "Write how many ranks a node has, or None under torchrun.")

    @staticmethod
    def of_mesh(mesh: _Mesh, inner: Exchange | None = None) -> TwoLevel:
        """Return one for a mesh of nodes x ranks of a node, such as ``init_device_mesh("cuda", (4, 8))``."""
        ranks = mesh.mesh
        if ranks.ndim != 2 or ranks.numel() == 0:
            raise ValueError(
                f"mesh must have two dimensions, nodes and ranks of a node, got the shape {tuple(ranks.shape)}. "
                f"Write init_device_mesh(device, (nodes, ranks_of_a_node))."
            )
        rows: list[list[int]] = ranks.tolist()
        flat = [rank for row in rows for rank in row]
        if flat != list(range(flat[0], flat[0] + len(flat))):
            raise ValueError(
                f"mesh must have consecutive ranks in each node, one node behind the other, got {rows}. Start them "
                f"node by node, as torchrun does, and write init_device_mesh(device, (nodes, ranks_of_a_node))."
            )
        return TwoLevel(inner=GatherMean() if inner is None else inner, node_size=len(rows[0]))

    @property
    def lossless(self) -> bool:
        """Whether the inner exchange is: a node's mean is added up densely."""
        return self.inner.lossless

    @property
    def tells(self) -> bool:
        """Whether every node hears every node."""
        return self.inner.tells

    def check(self, compressor: Compressor) -> None:
        """Refuse what the inner exchange refuses."""
        try:
            self.inner.check(compressor)
        except ValueError as error:
            raise ValueError(f"two_level is between nodes what its inner exchange is: {error}") from error

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this node did not send; return the mean of what the nodes sent.

        All ranks of a node come with the same x. They run the inner exchange alike, on what their leader hears.
        """
        size = self._checked(envelope)
        if size == 1:
            return (yield from self.inner.steps(x, segments, compressor, envelope))
        nodes, (node, place) = envelope.world_size // size, divmod(envelope.rank, size)
        steps = self.inner.steps(x, segments, compressor, replace(envelope, world_size=nodes, rank=node))
        request = next(steps)
        while True:
            heard = yield replace(request, among="leaders")
            told = yield from _told(request, heard, nodes=nodes, leads=place == 0)
            try:
                request = steps.send(told)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except (GroupError, WireError) as error:
                raise type(error)(f"{error} (Here rank n is node n, led by rank {size} n.)") from error

    def _checked(self, envelope: Envelope) -> int:
        if self.node_size is None:
            raise ValueError(
                "node_size is not known: attach asks the launcher for it. Write TwoLevel(node_size=8)."
            )
        if envelope.world_size % self.node_size:
            raise ValueError(
                f"{envelope.world_size} ranks cannot lie in nodes of {self.node_size}. Start equally many ranks on "
                f"every node, and give their number as node_size."
            )
        if envelope.senders is not None and self.node_size > 1:
            raise ValueError(
                f"two_level has every node send, got senders={envelope.senders!r}. Use GatherMean() where only "
                f"some ranks send."
            )
        return self.node_size


def between_nodes(exchange: Exchange) -> Exchange:
    """Return the exchange that whole nodes have with each other: itself where there is only one level."""
    return exchange.inner if isinstance(exchange, TwoLevel) else exchange


def _told(request: Request, heard: Reply, *, nodes: int, leads: bool) -> Generator[Request, Reply, Reply]:
    """Hand what the leader heard, as bytes, to the other ranks of its node; return it as a reply to the request."""
    send, shape = request.send, _shape(request, nodes)
    size = prod(shape) * send.element_size()
    raw = _bytes(heard) if leads else torch.empty(0, dtype=torch.uint8, device=send.device)
    rows = yield AllGather(send=raw, senders=(0,), size=size, among="node")
    reply = rows.reshape(-1).view(send.dtype).view(shape)
    if isinstance(request, AllReduce):
        # The sum is to lie where the summand was.
        return heard if leads else send.copy_(reply)
    return reply


def _shape(request: Request, nodes: int) -> tuple[int, ...]:
    """Return the shape of a leader's reply, which the others do not see."""
    if isinstance(request, AllReduce):
        return tuple(request.send.shape)
    item = request.send.element_size()
    if isinstance(request, AllGather):
        own = request.send.numel() if request.size is None else request.size // item
        return (nodes if request.senders is None else len(request.senders), own)
    return (sum(request.heard),)


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)
