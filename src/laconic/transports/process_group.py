"""Exchanges over ``torch.distributed``.

Two laws, learnt by breaking a prototype: ``start`` runs an exchange to its first request before it returns,
and later rounds are issued in submission order by the caller's thread. Issued from completion callbacks they
would come in another order on each rank, and two exchanges of several rounds would wait for each other for ever.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from laconic.collectives import (
    AllGather,
    AllToAll,
    Among,
    Reply,
    Request,
    check_node_size,
    link_bytes,
    members,
    passed_on,
)
from laconic.transports import roll_call

T = TypeVar("T")

# torch 2.13 renamed the call and warns about the old name; older releases have only that.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class _Running:
    steps: Generator[Request, Reply, Any]
    future: Future[Any]
    label: str
    reply: Reply
    work: dist.Work | None
    lent: list[tuple[Tensor, int]]


@dataclass(frozen=True, kw_only=True)
class _Circle:
    """Those who talk: how many they are, this rank's ``place`` among them (None: it takes no part), their group."""

    ranks: int
    place: int | None
    group: dist.ProcessGroup | None


# Groups live as long as the processes do: one who attaches again finds those of the first time.
_circles: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, Among], _Circle]] = (
    weakref.WeakKeyDictionary()
)

_SPLIT: tuple[Among, ...] = ("node", "leaders")


class ProcessGroupTransport:
    """One rank's side of exchanges over a process group; a world of one sends nothing.

    Nodes are ``node_size`` ranks each, one node behind the other. ``blocked_seconds`` were spent waiting for
    collectives that ``drain`` had to see the end of.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, node_size: int = 1) -> None:
        self._group = group
        self._device = device
        # Of the group itself: one that torch.distributed does not list, a quorum's, has them too.
        self.rank, self.world_size, self.node_size = group.rank(), group.size(), node_size
        check_node_size(node_size, self.world_size)
        self.wire_bytes = self.link_bytes = self.node_bytes = self.collectives = 0
        self.blocked_seconds = 0.0
        self._running: deque[_Running] = deque()
        self._world = _Circle(ranks=self.world_size, place=self.rank, group=group)
        roll_call.enroll(group)

    def connect(self) -> None:
        """Make the groups of the nodes and of their first ranks, on every rank at the same point.

        The first who asks for one does it, too; before, all ranks should have compared their node sizes.
        """
        made = _circles.setdefault(self._group, {})
        for among in _SPLIT if self.node_size > 1 else ():
            if (self.node_size, among) not in made:
                made[self.node_size, among] = self._split(among)

    def start(self, steps: Generator[Request, Reply, T], *, label: str) -> Future[T]:
        """Run the exchange to its first request and issue it."""
        future: Future[T] = Future(devices=[self._device] if self._device.type == "cuda" else None)
        running = _Running(steps, future, label, torch.empty(0), None, [])
        self._advance(running, None)
        return running.future

    def drain(self) -> None:
        """Wait for each started exchange in turn; a further round goes to the end of the queue."""
        while self._running:
            running = self._running.popleft()
            began = time.perf_counter()
            try:
                if running.work is not None:
                    running.work.wait()
            except RuntimeError as error:
                self._running.clear()
                raise roll_call.lost(self._group, running.label, error) from error
            self.blocked_seconds += time.perf_counter() - began
            running.work = None  # it holds what was lent to it
            _take_back(running.lent)
            self._advance(running, running.reply)

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace the tensor by the first rank's."""
        if self.world_size > 1:
            size = tensor.numel() * tensor.element_size()
            self.wire_bytes += size if self.rank == 0 else 0
            self.link_bytes += size * passed_on(self.rank, self.world_size)
            self.collectives += 1
            try:
                dist.broadcast(tensor, group=self._group, group_src=0)
            except RuntimeError as error:
                raise roll_call.lost(self._group, "the broadcast of the first rank's model", error) from error

    def _advance(self, running: _Running, reply: Reply | None) -> None:
        try:
            request = next(running.steps) if reply is None else running.steps.send(reply)
        except StopIteration as end:
            running.future.set_result(end.value)
            return
        try:
            self._issue(running, request)
        except RuntimeError as error:
            self._running.clear()
            raise roll_call.lost(self._group, running.label, error) from error
        self._running.append(running)

    def _issue(self, running: _Running, request: Request) -> None:
        circle, send = self._circle(request.among), request.send.contiguous()
        if circle.place is None:
            running.reply = send.new_empty(0)
            return
        if circle.ranks == 1:
            running.reply = send.unsqueeze(0) if isinstance(request, AllGather) else send
            return
        self._count(request, circle.place, circle.ranks)
        if isinstance(request, AllGather) and request.senders not in (None, tuple(range(circle.ranks))):
            self._issue_some(running, request, send, circle)
            return
        running.lent = [(send, _holders(send))]
        if isinstance(request, AllGather):
            rows = torch.empty(circle.ranks * send.numel(), dtype=send.dtype, device=send.device)
            running.reply = rows.view(circle.ranks, -1)
            running.lent.append((rows, _holders(rows)))
            running.work = _all_gather(rows, send, group=circle.group, async_op=True)
        elif isinstance(request, AllToAll):
            heard = torch.empty(sum(request.heard), dtype=send.dtype, device=send.device)
            running.reply = heard
            running.lent.append((heard, _holders(heard)))
            running.work = dist.all_to_all_single(
                heard, send, list(request.heard), list(request.given), group=circle.group, async_op=True
            )
        else:
            running.work = dist.all_reduce(send, group=circle.group, async_op=True)
            running.reply = send

    def _issue_some(self, running: _Running, request: AllGather, send: Tensor, circle: _Circle) -> None:
        """Gather the rows of some ranks: each of them sends its own to every rank, the others send nothing."""
        senders, ranks = request.senders or (), circle.ranks
        size = send.numel() if request.size is None else request.size // send.element_size()
        given = size if circle.place in senders else 0
        if send.numel() != given:
            raise ValueError(
                f"rank {circle.place} of {ranks} gave {send.numel()} entries to send, the senders being {senders} "
                f"and a message having {size}. Give a sender's message whole, and an empty one on the other ranks."
            )
        if len(senders) == 1:
            # One alone need not hand its message over as often as there are ranks.
            row = send.clone() if given else torch.empty(size, dtype=send.dtype, device=send.device)
            running.reply, running.lent = row.view(1, size), [(row, _holders(row))]
            running.work = dist.broadcast(row, group=circle.group, group_src=senders[0], async_op=True)
            return
        every = send.repeat(ranks) if given else send
        rows = torch.empty(len(senders) * size, dtype=send.dtype, device=send.device)
        running.reply = rows.view(len(senders), size)
        running.lent = [(every, _holders(every)), (rows, _holders(rows))]
        heard, give = [size if rank in senders else 0 for rank in range(ranks)], [given] * ranks
        running.work = dist.all_to_all_single(rows, every, heard, give, group=circle.group, async_op=True)

    def _count(self, request: Request, place: int, ranks: int) -> None:
        handed = request.send.numel() * request.send.element_size()
        if request.among == "node":
            self.node_bytes += handed
        else:
            self.wire_bytes += handed
            self.link_bytes += link_bytes(request, place=place, ranks=ranks)
            self.collectives += 1

    def _circle(self, among: Among) -> _Circle:
        if among == "world":
            return self._world
        if self.node_size == 1:
            # Every rank is a node, and its leader.
            return _Circle(ranks=1, place=0, group=None) if among == "node" else self._world
        self.connect()
        return _circles[self._group][self.node_size, among]

    def _split(self, among: Among) -> _Circle:
        """Make the groups of every node, or of the nodes' first ranks; return the one that this rank is in."""
        size, own = self.node_size, None
        firsts = range(0, self.world_size, size) if among == "node" else (0,)
        mine = members(among, rank=self.rank, world_size=self.world_size, node_size=size)
        everyone = dist.get_process_group_ranks(self._group)
        if len(mine) > 1 and len(everyone) < dist.get_world_size():
            raise ValueError(
                f"nodes of {size} ranks need groups of their own, which torch.distributed makes with every process "
                f"it has, {dist.get_world_size()}; this group has {len(everyone)}. Attach on the default group."
            )
        for first in firsts if len(mine) > 1 else ():
            circle = members(among, rank=first, world_size=self.world_size, node_size=size)
            # Every rank makes every group, its own or not, in the same order: torch.distributed counts them.
            made = dist.new_group(
                [everyone[rank] for rank in circle],
                timeout=self._group._get_backend(self._device).options._timeout,
                backend=dist.get_backend_config(self._group),
            )
            own = made if self.rank in circle else own
        return _Circle(ranks=len(mine), place=mine.index(self.rank) if self.rank in mine else None, group=own)


def _take_back(lent: list[tuple[Tensor, int]]) -> None:
    """Wait until gloo's threads have dropped the tensors they were lent.

    A collective is done a moment before its thread drops them, for which that thread wants Python's lock. If the
    interpreter is ending by then, the thread is killed and the process with it (pytorch pull request 179291).
    """
    deadline = time.monotonic() + 1.0
    for tensor, count in lent:
        while tensor.device.type == "cpu" and _holders(tensor) > count and time.monotonic() < deadline:
            time.sleep(0)
    lent.clear()


def _holders(tensor: Tensor) -> int:
    """Return how many hold the tensor outside Python."""
    count: int = tensor._use_count()  # type: ignore[attr-defined]
    return count
