"""Adding up what was gathered: only entries that were sent are touched."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from laconic import kernels
from laconic.segments import Segments
from laconic.types import Gathered


def dense(values: Tensor | Gathered, like: Tensor) -> Tensor:
    """Return a mean as a vector of the size of ``like``."""
    if isinstance(values, Tensor):
        return values
    out = torch.zeros_like(like)
    add_mean_(out, values, Segments.of(["all"], [like.numel()]), {})
    return out


def add_mean_(out: Tensor, gathered: Gathered, segments: Segments, factors: Mapping[str, float]) -> None:
    """Add the mean to out, times the factor of the segment that an entry lies in.

    Each rank's share is divided before it is added, as DDP does: a mean of finite numbers is finite. Shares are
    added in rank order, the same everywhere, so that models stay equal to the bit.
    """
    ranks = len(gathered.payloads)
    scales = [factors.get(s.name, 1.0) / ranks for s in segments]
    known = [p.known for p in gathered.payloads]
    chosen = [p.values for p in gathered.payloads]
    positions = [p.positions for p in gathered.payloads]
    scale = scales[0] if scales else 1.0
    if any(s != scale for s in scales):
        known = [_weighed(v, gathered.known, segments, scales) for v in known]
        chosen = [_weighed(v, at, segments, scales) for v, at in zip(chosen, positions, strict=True)]
        scale = 1.0
    if isinstance(gathered.known, slice):
        for values in known:
            out += values * scale
    else:
        at = gathered.known.to(out.device, non_blocking=True)
        kernels.add_payloads_(out, [at] * ranks, known, scale=scale)
    kernels.add_payloads_(out, positions, chosen, scale=scale)


def _weighed(values: Tensor, at: Tensor | slice, segments: Segments, scales: list[float]) -> Tensor:
    """Multiply each value by the scale of its segment; segments lie one behind the other."""
    weights = torch.tensor(scales, dtype=values.dtype).to(values.device, non_blocking=True)
    sizes = torch.tensor([s.size for s in segments]).to(values.device, non_blocking=True)
    if isinstance(at, slice):
        return values * torch.repeat_interleave(weights, sizes, output_size=values.numel())
    at = at.to(values.device, torch.int64, non_blocking=True)
    return values * weights[torch.searchsorted(sizes.cumsum(0), at, right=True)]
