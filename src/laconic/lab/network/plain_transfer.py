"""The link by itself: what a message of nothing and a long one take, before anything else is timed on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median, quantiles

import torch
import torch.distributed as dist

_PINGS, _TRANSFERS = 100, 3
_MOST_BYTES, _LEAST_BYTES = 16 << 20, 1 << 18


@dataclass(frozen=True, kw_only=True)
class PlainTransfer:
    """Seconds that a message of 8 bytes takes one way, and bits a second of a long one, between two ranks.

    ``latency_seconds`` is the median; a tenth of the messages took less than ``latency_p10``: if that is far less,
    ranks had to wait for a core.
    """

    latency_seconds: float
    latency_p10: float
    bits_per_second: float
    message_bytes: int


def plain_transfer(megabits: float | None) -> PlainTransfer | None:
    """Measure between the first two ranks; None where there is only one. Every rank must call it."""
    if dist.get_world_size() == 1:
        return None
    # Half a second at the limit, less from 268 Mbit/s on, 0.13 s at 1 Gbit/s: the bucket's first bytes are 2% then.
    size = _MOST_BYTES if megabits is None else int(min(_MOST_BYTES, max(_LEAST_BYTES, megabits * 1e6 / 16)))
    small, large = torch.zeros(1, dtype=torch.float64), torch.zeros(size, dtype=torch.uint8)
    _there_and_back(large, small)
    pings = [_there_and_back(small, small) / 2 for _ in range(_PINGS)]
    latency = median(pings)
    seconds = median(_there_and_back(large, small) for _ in range(_TRANSFERS)) - latency
    dist.barrier()
    return PlainTransfer(
        latency_seconds=latency,
        latency_p10=quantiles(pings, n=10)[0],
        bits_per_second=8 * size / seconds,
        message_bytes=size,
    )


def _there_and_back(there: torch.Tensor, back: torch.Tensor) -> float:
    began = time.perf_counter()
    if dist.get_rank() == 0:
        dist.send(there, 1)
        dist.recv(back, 1)
    elif dist.get_rank() == 1:
        dist.recv(there, 0)
        dist.send(back, 0)
    return time.perf_counter() - began
