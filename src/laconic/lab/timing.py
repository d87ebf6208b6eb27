"""How long a call takes: by the clock on CPU; on a GPU by the GPU's clock, the host being ahead as in training."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

# What the GPU is kept busy with, in its cycles, about a millisecond: meanwhile the host launches what is timed.
_AHEAD = 2_000_000


def timed(work: Callable[[], object], *, before: Callable[[], object], repeats: int, cuda: bool) -> list[float]:
    """Time calls after one that is not counted; ``before`` each of them runs outside the timing."""
    once = partial(_on_cuda if cuda else _on_cpu, work, before)
    once()
    seconds: list[float] = []
    while len(seconds) < (min(3, repeats) if max(seconds, default=0.0) > 1 else repeats):
        seconds.append(once())
    return seconds


def _on_cpu(work: Callable[[], object], before: Callable[[], object]) -> float:
    before()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _on_cuda(work: Callable[[], object], before: Callable[[], object]) -> float:
    before()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_AHEAD)
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def host_seconds(work: Callable[[], object], *, before: Callable[[], object], repeats: int) -> list[float]:
    """Time until a call on a GPU comes back to the host, which is when the next one can be launched.

    ``before`` must wait until the GPU is idle.
    """
    return [_on_cpu(work, before) for _ in range(repeats)]
