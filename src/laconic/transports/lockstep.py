"""N ranks in one process: the same exchanges, the same bits, no sockets."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.futures import Future

from laconic.collectives import (
    AllGather,
    AllToAll,
    Reply,
    Request,
    check_node_size,
    link_bytes,
    members,
    passed_on,
)
from laconic.errors import LaconicError
from laconic.transports.watch import Turn, Unwatched, Watch

T = TypeVar("T")
# Up to so many a rank are added up in one call for all shares.
_FEW_ENTRIES = 128


@dataclass
class _Running:
    steps: Generator[Request, Reply, Any]
    future: Future[Any]
    label: str
    request: Request
    counts: bool
    asked: float = 0.0


class Lockstep:
    """A world of N ranks; ``ports[rank]`` is that rank's transport.

    Nothing moves until every rank has drained; the last one's ``drain`` brings all exchanges to their end. In
    a ``threaded`` world each rank runs an ordinary loop in a thread of its own: ``drain`` waits, by ``turn``, for
    others, and what goes wrong on one ends the waiting of all. Nodes have ``node_size`` ranks. ``watch``: the time.
    """

    def __init__(
        self,
        world_size: int,
        *,
        threaded: bool = False,
        node_size: int = 1,
        turn: Turn | None = None,
        watch: Watch | None = None,
    ) -> None:
        if world_size < 1:
            raise ValueError(f"world_size must be 1 or more, got {world_size}.")
        check_node_size(node_size, world_size)
        self.world_size, self.threaded, self.node_size = world_size, threaded, node_size
        self.ports, self.watch = [Port(self, rank) for rank in range(world_size)], watch or Unwatched()
        self._turn: Turn = turn or threading.Condition()
        self._turns = 0
        self._error: BaseException | None = None

    def abort(self, error: BaseException) -> None:
        """End the world for what happened to one rank: whoever waits, or will, gets a ``LaconicError``."""
        with self._turn:
            # What came first is what went wrong; the rest follows from it.
            self._error = self._error or error
            self._turn.notify_all()

    def meet(self, port: Port, what: str, act: Callable[[], None]) -> None:
        """Wait until every rank has come for the same; the last one acts for all."""
        with self._turn:
            self._refuse(port, what)
            port.waits_in, turn = what, self._turns
            self.watch.waits(port.rank)
            if all(p.waits_in for p in self.ports):
                self._act(act)
            else:
                self._turn.wait_for(lambda: self._turns > turn or self._error is not None)
                # A turn that was had is whole, whatever came after it.
                if self._turns == turn:
                    self._refuse(port, what)
            self.watch.goes_on(port.rank)

    def leave(self, port: Port) -> None:
        """Let a rank go; those that wait for it, or will, are told."""
        with self._turn:
            port.left = True
            waiting = [f"rank {p.rank} in {p.waits_in}" for p in self.ports if p.waits_in]
            if waiting:
                self.abort(LaconicError(f"rank {port.rank} has left while others wait: {', '.join(waiting)}."))

    def spread(self) -> None:
        """Give every rank the values that the first one offered."""
        first, *others = [port.offered for port in self.ports]
        for tensor in others:
            tensor.copy_(first)
        self.watch.spread(first.numel() * first.element_size())

    def _act(self, act: Callable[[], None]) -> None:
        places = {p.waits_in for p in self.ports}
        for port in self.ports:
            port.waits_in = ""
        try:
            if len(places) > 1:
                raise LaconicError(f"ranks wait in unlike places: {' and '.join(sorted(places))}.")
            act()
        except BaseException as error:
            self.abort(error)
            raise
        self._turns += 1
        self._turn.notify_all()

    def _refuse(self, port: Port, what: str) -> None:
        """Raise if there is no world to wait for."""
        gone = [str(p.rank) for p in self.ports if p.left]
        if self._error is None and gone:
            self._error = LaconicError(f"rank {', '.join(gone)} has left.")
        if self._error is not None:
            raise LaconicError(
                f"rank {port.rank} of {self.world_size} waited in vain in {what}: {self._error} "
                f"Another rank has died or left its loop; look at what it raised."
            ) from self._error

    def run(self) -> None:
        """Answer requests round by round, in submission order, until none is left."""
        while any(port.running for port in self.ports):
            heads = [port.running.popleft() for port in self.ports if port.running]
            if len(heads) != self.world_size or len({_kind(h.request) for h in heads}) > 1:
                waiting = "; ".join(f"{h.label} ({_kind(h.request)})" for h in heads)
                raise LaconicError(f"only {len(heads)} of {self.world_size} ranks agree to talk: {waiting}.")
            requests, before = [h.request for h in heads], [self.watch.now(port.rank) for port in self.ports]
            circles = sorted({port.circle(requests[0]) for port in self.ports}, key=lambda circle: circle.start)
            replies = self._replies(requests, circles)
            if all(h.counts for h in heads):
                self.watch.answered(requests, [h.asked for h in heads], circles)
            for port, head, reply in zip(self.ports, heads, replies, strict=True):
                port.blocked_seconds += self.watch.now(port.rank) - before[port.rank]
                self.watch.goes_on(port.rank)
                port.advance(head, reply)
                self.watch.waits(port.rank)

    def _replies(self, requests: list[Request], circles: Sequence[range]) -> list[Reply]:
        """Answer what every rank asks for; one that takes no part gets an empty reply."""
        replies = [r.send.new_empty(0) for r in requests]
        for circle in circles:
            for rank, reply in zip(circle, _reply([requests[rank] for rank in circle]), strict=True):
                replies[rank] = reply
        return replies


class Port:
    """One rank's transport in a lockstep world."""

    def __init__(self, world: Lockstep, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.world_size, self.node_size = world.world_size, world.node_size
        self.wire_bytes = self.link_bytes = self.node_bytes = self.collectives = 0
        self.blocked_seconds = 0.0
        self.running: deque[_Running] = deque()
        self.drained, self.left, self.waits_in = False, False, ""
        self.offered = torch.empty(0)

    def connect(self) -> None:
        """There is nothing to connect: all ranks are here."""

    def start(self, steps: Generator[Request, Reply, T], *, label: str) -> Future[T]:
        """Run the exchange to its first request."""
        counts = self._world.watch.counts(self.rank)
        running = _Running(steps, Future(), label, AllGather(send=torch.empty(0)), counts)
        self.advance(running, None)
        return running.future

    def drain(self) -> None:
        """Mark this rank as waiting; when all ranks are, run. Where each has a thread, wait until that is done."""
        if self._world.threaded:
            self._world.meet(self, "drain", self._world.run)
            return
        self.drained = True
        if all(port.drained for port in self._world.ports):
            for port in self._world.ports:
                port.drained = False
            self._world.run()

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace the tensor by the first rank's; every rank calls it, in a thread of its own."""
        if self.world_size == 1:
            return
        if not self._world.threaded:
            raise LaconicError("a broadcast waits for every rank: make the world by Lockstep(..., threaded=True).")
        size = tensor.numel() * tensor.element_size()
        self.wire_bytes += size if self.rank == 0 else 0
        self.link_bytes += size * passed_on(self.rank, self.world_size)
        self.collectives += 1
        self.offered = tensor
        self._world.meet(self, "broadcast_", self._world.spread)

    def leave(self) -> None:
        """Say that this rank is at its end; one that waits for it gets a ``LaconicError``."""
        self._world.leave(self)

    def advance(self, running: _Running, reply: Reply | None) -> None:
        """Give an exchange its reply and queue what it asks for next."""
        try:
            running.request = next(running.steps) if reply is None else running.steps.send(reply)
        except StopIteration as end:
            running.future.set_result(end.value)
            return
        circle = self.circle(running.request)
        if self.rank in circle and len(circle) > 1:
            sent = running.request.send.numel() * running.request.send.element_size()
            if running.request.among == "node":
                self.node_bytes += sent
            else:
                self.wire_bytes += sent
                place, ranks = circle.index(self.rank), len(circle)
                self.link_bytes += link_bytes(running.request, place=place, ranks=ranks)
                self.collectives += 1
        running.asked = self._world.watch.asks(self.rank)
        self.running.append(running)

    def circle(self, request: Request) -> range:
        """Return the ranks that take part in what this one asks for."""
        return members(request.among, rank=self.rank, world_size=self.world_size, node_size=self.node_size)


def _kind(request: Request) -> str:
    """Name what all ranks must ask for alike."""
    senders = request.senders if isinstance(request, AllGather) else None
    among = "" if request.among == "world" else f" among {request.among}"
    return type(request).__name__ + ("" if senders is None else f" of ranks {senders}") + among


def _reply(requests: list[Request]) -> list[Reply]:
    tensors = [r.send for r in requests]
    first = requests[0]
    if isinstance(first, AllGather):
        rows = torch.stack(tensors if first.senders is None else [tensors[rank] for rank in first.senders])
        return [rows] * len(requests)
    if isinstance(first, AllToAll):
        return _dealt([r for r in requests if isinstance(r, AllToAll)])
    total = ring_sum(tensors)
    return [tensor.copy_(total) for tensor in tensors]


def _dealt(requests: list[AllToAll]) -> list[Reply]:
    """Return what each rank was given by every rank."""
    parts = [r.send.split(list(r.given)) for r in requests]
    for rank, request in enumerate(requests):
        given = tuple(r.given[rank] for r in requests)
        if given != request.heard:
            raise LaconicError(f"rank {rank} expects {request.heard} bytes from the ranks, which give it {given}.")
    return [torch.cat([row[rank] for row in parts]) for rank in range(len(requests))]


def ring_sum(tensors: list[Tensor]) -> Tensor:
    """Add the tensors in the order in which gloo's ring all-reduce adds them, so that bits agree with it.

    The vector is cut in one share a rank; the sum of share s begins at rank s - 1 and runs down to rank s.
    """
    world_size, numel = len(tensors), tensors[0].numel()
    size = _share(numel, tensors[0].element_size(), world_size)
    if numel <= _FEW_ENTRIES * world_size:
        return _ring_sum_of_few(tensors, size)
    out = torch.empty_like(tensors[0])
    for share in range(world_size):
        at = slice(min(share * size, numel), min((share + 1) * size, numel))
        total = tensors[(share - 1) % world_size][at].clone()
        for back in range(2, world_size + 1):
            total += tensors[(share - back) % world_size][at]
        out[at] = total
    return out


def _ring_sum_of_few(tensors: list[Tensor], size: int) -> Tensor:
    """Add in the same order, all shares at once: many ranks with little each would take a call a share and rank."""
    world_size, rows = len(tensors), torch.stack(tensors)
    entries = torch.arange(rows.shape[1], device=rows.device)
    share = entries // max(1, size)
    out = rows[(share - 1) % world_size, entries]
    for back in range(2, world_size + 1):
        out += rows[(share - back) % world_size, entries]
    return out


def _share(numel: int, item: int, world_size: int) -> int:
    """Return entries a rank's share: pieces of at most 1 MiB, at least two a rank, equally many for each."""
    most = (1 << 20) // item * item
    pieces = max(-(-numel * item // most), 2 * world_size)
    pieces = -(-pieces // world_size) * world_size
    return -(-numel // pieces) * (pieces // world_size)
