"""Exchanges over ``torch.distributed``.

Two laws, learnt by breaking a prototype: ``start`` runs an exchange to its first request before it returns,
and later rounds are issued in submission order by the caller's thread. Issued from completion callbacks they
would come in another order on each rank, and two exchanges of several rounds would wait for each other for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from laconic.collectives import AllGather, AllToAll, Reply, Request
from laconic.errors import ExchangeError

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


class ProcessGroupTransport:
    """One rank's side of exchanges over a process group; a world of one sends nothing."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._device = device
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.wire_bytes = 0
        self.collectives = 0
        self._running: deque[_Running] = deque()

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
            try:
                if running.work is not None:
                    running.work.wait()
            except RuntimeError as error:
                self._running.clear()
                raise ExchangeError(self._lost(running.label, error)) from error
            running.work = None  # it holds what was lent to it
            _take_back(running.lent)
            self._advance(running, running.reply)

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace the tensor by the first rank's."""
        if self.world_size > 1:
            self.wire_bytes += tensor.numel() * tensor.element_size() if self.rank == 0 else 0
            self.collectives += 1
            try:
                dist.broadcast(tensor, dist.get_global_rank(self._group, 0), group=self._group)
            except RuntimeError as error:
                raise ExchangeError(self._lost("the broadcast of the first rank's model", error)) from error

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
            raise ExchangeError(self._lost(running.label, error)) from error
        self._running.append(running)

    def _issue(self, running: _Running, request: Request) -> None:
        send = request.send.contiguous()
        if self.world_size == 1:
            running.reply = send.unsqueeze(0) if isinstance(request, AllGather) else send
            return
        self.wire_bytes += send.numel() * send.element_size()
        self.collectives += 1
        if isinstance(request, AllGather) and request.senders not in (None, tuple(range(self.world_size))):
            self._issue_some(running, request, send)
            return
        running.lent = [(send, _holders(send))]
        if isinstance(request, AllGather):
            rows = torch.empty(self.world_size * send.numel(), dtype=send.dtype, device=send.device)
            running.reply = rows.view(self.world_size, -1)
            running.lent.append((rows, _holders(rows)))
            running.work = _all_gather(rows, send, group=self._group, async_op=True)
        elif isinstance(request, AllToAll):
            heard = torch.empty(sum(request.heard), dtype=send.dtype, device=send.device)
            running.reply = heard
            running.lent.append((heard, _holders(heard)))
            running.work = dist.all_to_all_single(
                heard, send, list(request.heard), list(request.given), group=self._group, async_op=True
            )
        else:
            running.work = dist.all_reduce(send, group=self._group, async_op=True)
            running.reply = send

    def _issue_some(self, running: _Running, request: AllGather, send: Tensor) -> None:
        """Gather the rows of some ranks: each of them sends its own to every rank, the others send nothing."""
        senders, ranks = request.senders or (), self.world_size
        size = send.numel() if request.size is None else request.size // send.element_size()
        given = size if self.rank in senders else 0
        if send.numel() != given:
            raise ValueError(
                f"rank {self.rank} of {ranks} gave {send.numel()} entries to send, the senders being {senders} and "
                f"a message having {size}. Give a sender's message whole, and an empty one on the other ranks."
            )
        every = send.repeat(ranks) if given else send
        rows = torch.empty(len(senders) * size, dtype=send.dtype, device=send.device)
        running.reply = rows.view(len(senders), size)
        running.lent = [(every, _holders(every)), (rows, _holders(rows))]
        heard = [size if rank in senders else 0 for rank in range(ranks)]
        running.work = dist.all_to_all_single(rows, every, heard, [given] * ranks, group=self._group, async_op=True)

    def _lost(self, label: str, error: Exception) -> str:
        return (
            f"rank {self.rank} of {self.world_size} waited in vain in {label}: {error} "
            f"A peer has died, stalled past the group's timeout, or left its loop; look at the other ranks' logs."
        )


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
