"""What the ranks of a node do together before an exchange between nodes: one mean gradient, one loss, one state.

From there on they have the same bits, and hold copies of one memory: a node is one worker.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from math import isnan, nan

import torch
from torch import Tensor

from laconic import seals
from laconic.collectives import AllReduce, Reply, Request, Transport, check_node_size
from laconic.errors import GroupError
from laconic.exchanges import TwoLevel
from laconic.exchanges.two_level import UNKNOWN_NODE_SIZE
from laconic.method import Method
from laconic.types import Steps

_NUMBERS = 16


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a node's ranks tell each other at the begin of a step: the mean loss (NaN: none told), the summed notes.

    ``unlike`` is there if they are not at the same place, and names it.
    """

    loss: float = nan
    notes: Tensor | None = None
    unlike: GroupError | None = None


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """How the ranks lie: ``count`` workers of ``size`` ranks each, of which this rank belongs to ``own``."""

    size: int
    count: int
    own: int

    @staticmethod
    def of(method: Method, transport: Transport) -> Nodes:
        """Return the nodes by which a method exchanges; by most, every rank is one."""
        size, ranks = node_size_of(method), transport.world_size
        check_node_size(size, ranks)
        if size > 1 and transport.node_size != size:
            raise ValueError(
                f"two_level has nodes of {size} ranks, the transport nodes of {transport.node_size}. Make the "
                f"transport with node_size={size}."
            )
        return Nodes(size=size, count=ranks // size, own=transport.rank // size)

    def average_(self, grad: Tensor) -> Generator[Request, Reply, None]:
        """Leave the mean over the node's ranks in grad: each divides before the sum, as DDP does."""
        grad.mul_(1.0 / self.size)
        total = yield AllReduce(send=grad, among="node")
        if total.data_ptr() != grad.data_ptr():
            grad.copy_(total)

    def tell(
        self, state: str, loss: float, notes: Tensor | None, device: torch.device
    ) -> Generator[Request, Reply, Told]:
        """Return what the ranks of this node tell; ``state`` is what they must have in common."""
        numbers = torch.frombuffer(
            bytearray(struct.pack("<qd", zlib.crc32(state.encode()), loss)), dtype=torch.uint8
        )
        raw = numbers.to(device, non_blocking=True)
        told = raw if notes is None else torch.cat([raw, notes.to(device, torch.uint8)])
        rows = yield from seals.gathered(told, "word within its node", among="node")
        said = [struct.unpack("<qd", bytes(row)) for row in rows[:, :_NUMBERS].tolist()]
        losses = [theirs for _, theirs in said if not isnan(theirs)]
        strangers = [place for place, (digest, _) in enumerate(said) if digest != said[0][0]]
        return Told(
            loss=sum(losses) / len(losses) if losses else nan,
            # A note is a byte in a message.
            notes=None if notes is None else rows[:, _NUMBERS:].sum(0).clamp_(max=255).to(torch.uint8),
            unlike=self._unlike(strangers, state) if strangers else None,
        )

    def _unlike(self, strangers: list[int], state: str) -> GroupError:
        first = self.own * self.size
        return GroupError(
            f"rank {first + strangers[0]} is at another step than rank {first} of its node, or has other learning "
            f"rates or another method (here: {state}). Run the same loop, schedule and checkpoint on every rank."
        )


def raising(steps: Steps, told: Told) -> Steps:
    """Run an exchange to its end; then raise, if this node's ranks are unlike: a header has told other nodes."""
    try:
        mean = yield from steps
    except GroupError as error:
        if told.unlike is None:
            raise
        raise told.unlike from error
    if told.unlike is not None:
        raise told.unlike
    return mean


def node_size_of(method: Method) -> int:
    """Return how many ranks a node has by this method's exchange."""
    exchange = method.exchange
    if not isinstance(exchange, TwoLevel):
        return 1
    if exchange.node_size is None:
        raise ValueError(UNKNOWN_NODE_SIZE)
    return exchange.node_size
