"""What collectives take between these ranks: a latency a round and a time a byte, fitted over several sizes.

On this machine alone that is the host's own part, with no link in the way; between hosts it is the link with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.plan.bucketed import now
from laconic.plan.facts import Cost
from laconic.sim.network import Cable, Call, Kind, Network

# Bytes of a message; those beyond what a slow link carries in the time are left out.
_SIZES = (64, 16 << 10, 256 << 10, 2 << 20, 16 << 20)
_SECONDS_A_SIZE, _REPEATS = 0.4, 7

# torch 2.13 renamed the call and warns about the old name; older releases have only that.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds by size of one kind of collective, and what was fitted to them."""

    kind: Kind
    half: bool
    seconds: dict[int, float]
    cost: Cost


def measure(
    kind: Kind, *, device: torch.device, group: dist.ProcessGroup | None = None, half: bool = False
) -> Measured:
    """Time a collective of a group (None: of all ranks) over several sizes; every rank of it must call this."""
    ranks = dist.get_world_size(group)
    if ranks < 2:
        raise ValueError(
            f"a link is measured between two ranks at least, got {ranks}. Start more, or write --bandwidth 100."
        )
    seconds: dict[int, float] = {}
    for size in _SIZES:
        took = _repeated(kind, size, device=device, half=half, group=group)
        seconds[size] = took
        # Every rank has the same number: the next size takes eight to sixteen times as long.
        if took > _SECONDS_A_SIZE:
            break
    return Measured(kind=kind, half=half, seconds=seconds, cost=fit(kind, seconds, ranks=ranks))


def ping_pong(*, ranks: int, repeats: int = 40) -> float:
    """Return the seconds that eight bytes take from the first rank to the last, half of there and back."""
    rank, last, seconds = dist.get_rank(), ranks - 1, []
    word = torch.zeros(8, dtype=torch.uint8, device=talking_device())
    for _ in range(repeats):
        dist.barrier()
        began = now(word.device)
        if rank == 0:
            dist.send(word, last)
            dist.recv(word, last)
        elif rank == last:
            dist.recv(word, 0)
            dist.send(word, 0)
        seconds.append((now(word.device) - began) / 2)
    return _agreed(median(seconds), None)


def fit(kind: Kind, seconds: dict[int, float], *, ranks: int) -> Cost:
    """Return the latency a round of the smallest message, and the time a byte that the largest adds to it.

    Those in between fit in the caches, where a byte takes less than those of a gradient do.

    >>> fit("gather", {1: 1.0, 11: 1.5, 1001: 3.0}, ranks=2)
    Cost(latency=0.998, per_byte=0.002)
    """
    small, large = min(seconds), max(seconds)
    rounds, least = _passing(kind, small, ranks)
    most = _passing(kind, large, ranks)[1]
    per_byte = max(0.0, seconds[large] - seconds[small]) / (most - least) if most > least else 0.0
    return Cost(latency=max(0.0, seconds[small] - per_byte * least) / rounds, per_byte=per_byte)


def _passing(kind: Kind, size: int, ranks: int) -> tuple[float, float]:
    """The rounds of a collective and the bytes that pass, as the network counts them."""
    second = Network(ranks=ranks, cables=(Cable(latency=1.0),)).seconds(Call(kind=kind, size=size))
    byte = Network(ranks=ranks, cables=(Cable(bits_per_second=8.0, headers=0.0),))
    return second, byte.seconds(Call(kind=kind, size=size))


def _repeated(kind: Kind, size: int, *, device: torch.device, half: bool, group: dist.ProcessGroup | None) -> float:
    dtype = (torch.float16 if half else torch.float32) if kind == "sum" else torch.uint8
    send = torch.zeros(size // dtype.itemsize, dtype=dtype, device=device)
    ranks = dist.get_world_size(group)
    rows = torch.empty(ranks * send.numel(), dtype=dtype, device=device) if kind == "gather" else send
    took: list[float] = []
    began = time.perf_counter()
    while len(took) < _REPEATS:
        dist.barrier(group)
        took.append(_once(kind, send, rows, group))
        if len(took) >= 3 and _agreed(time.perf_counter() - began, group) > _SECONDS_A_SIZE:
            break
    return _agreed(median(took[1:]), group)


def _once(kind: Kind, send: Tensor, rows: Tensor, group: dist.ProcessGroup | None) -> float:
    began = now(send.device)
    gathers = kind == "gather"
    work = (
        _all_gather(rows, send, group=group, async_op=True)
        if gathers
        else dist.all_reduce(send, group=group, async_op=True)
    )
    assert work is not None
    work.wait()
    return now(send.device) - began


def _agreed(seconds: float, group: dist.ProcessGroup | None) -> float:
    """Return the longest of the ranks' times: all go on with the same number."""
    told = torch.tensor([seconds], dtype=torch.float64, device=talking_device())
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
    return float(told)


def talking_device() -> torch.device:
    """Return where tensors must lie that ranks exchange: NCCL takes those of a GPU only."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def casting(buffers: Sequence[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds by bucket of casting to 16 bits and dividing, and of casting back, as DDP's hook does."""
    there: list[float] = []
    back: list[float] = []
    for buffer in buffers:
        runs = []
        for _ in range(4):
            began = now(buffer.device)
            narrow = buffer.to(torch.float16).div_(2)
            middle = now(buffer.device)
            buffer.copy_(narrow)
            runs.append((middle - began, now(buffer.device) - middle))
        there.append(median(run[0] for run in runs[1:]))
        back.append(median(run[1] for run in runs[1:]))
    return tuple(there), tuple(back)
