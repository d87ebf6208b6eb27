"""N ranks in one process: the same exchanges, the same bits, no sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.futures import Future

from laconic.errors import LaconicError
from laconic.types import AllGather, Reply, Request

T = TypeVar("T")


@dataclass
class _Running:
    steps: Generator[Request, Reply, Any]
    future: Future[Any]
    label: str
    request: Request


class Lockstep:
    """A world of N ranks; ``ports[rank]`` is that rank's transport.

    Nothing moves until every rank has drained; the last one's ``drain`` brings all exchanges to their end.
    """

    def __init__(self, world_size: int) -> None:
        if world_size < 1:
            raise ValueError(f"world_size must be 1 or more, got {world_size}.")
        self.world_size = world_size
        self.ports = [Port(self, rank) for rank in range(world_size)]

    def run(self) -> None:
        """Answer requests round by round, in submission order, until none is left."""
        while any(port.running for port in self.ports):
            heads = [port.running.popleft() for port in self.ports if port.running]
            if len(heads) != self.world_size or len({type(h.request) for h in heads}) > 1:
                waiting = "; ".join(f"{h.label} ({type(h.request).__name__})" for h in heads)
                raise LaconicError(f"only {len(heads)} of {self.world_size} ranks agree to talk: {waiting}.")
            replies = _reply([h.request for h in heads])
            for port, head, reply in zip(self.ports, heads, replies, strict=True):
                port.advance(head, reply)


class Port:
    """One rank's transport in a lockstep world."""

    def __init__(self, world: Lockstep, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.world_size = world.world_size
        self.wire_bytes = 0
        self.collectives = 0
        self.running: deque[_Running] = deque()
        self.drained = False

    def start(self, steps: Generator[Request, Reply, T], *, label: str) -> Future[T]:
        """Run the exchange to its first request."""
        running = _Running(steps, Future(), label, AllGather(send=torch.empty(0)))
        self.advance(running, None)
        return running.future

    def drain(self) -> None:
        """Mark this rank as waiting; when all ranks are, run."""
        self.drained = True
        if all(port.drained for port in self._world.ports):
            for port in self._world.ports:
                port.drained = False
            self._world.run()

    def advance(self, running: _Running, reply: Reply | None) -> None:
        """Give an exchange its reply and queue what it asks for next."""
        try:
            running.request = next(running.steps) if reply is None else running.steps.send(reply)
        except StopIteration as end:
            running.future.set_result(end.value)
            return
        if self.world_size > 1:
            self.wire_bytes += running.request.send.numel() * running.request.send.element_size()
            self.collectives += 1
        self.running.append(running)


def _reply(requests: list[Request]) -> list[Reply]:
    tensors = [r.send for r in requests]
    if isinstance(requests[0], AllGather):
        rows = torch.stack(tensors)
        return [rows] * len(requests)
    total = ring_sum(tensors)
    for tensor in tensors:
        tensor.copy_(total)
    return list(tensors)


def ring_sum(tensors: list[Tensor]) -> Tensor:
    """Add the tensors in the order in which gloo's ring all-reduce adds them, so that bits agree with it.

    The vector is cut in one share a rank; the sum of share s begins at rank s - 1 and runs down to rank s.
    """
    world_size, numel = len(tensors), tensors[0].numel()
    size = _share(numel, tensors[0].element_size(), world_size)
    out = torch.empty_like(tensors[0])
    for share in range(world_size):
        at = slice(min(share * size, numel), min((share + 1) * size, numel))
        total = tensors[(share - 1) % world_size][at].clone()
        for back in range(2, world_size + 1):
            total += tensors[(share - back) % world_size][at]
        out[at] = total
    return out


def _share(numel: int, item: int, world_size: int) -> int:
    """Return entries a rank's share: pieces of at most 1 MiB, at least two a rank, equally many for each."""
    most = (1 << 20) // item * item
    pieces = max(-(-numel * item // most), 2 * world_size)
    pieces = -(-pieces // world_size) * world_size
    return -(-numel // pieces) * (pieces // world_size)
