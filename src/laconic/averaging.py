"""Adding up what was gathered: only entries that were sent are touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from laconic import kernels
from laconic.kernels.copies import copy_on
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
    added in rank order, the same everywhere, so that models stay equal to the bit. Where a chosen entry is divided
    over its senders, a vector of the size of out counts them.
    """
    ranks = len(gathered.payloads)
    scales = [factors.get(s.name, 1.0) / ranks for s in segments]
    whole = [p.known for p in gathered.payloads]
    if isinstance(gathered.known, slice):
        known, scale = _scaled(whole, [gathered.known] * ranks, segments, scales)
        for values in known:
            out += values * scale
    elif gathered.known.numel():
        at = [copy_on(out.device, gathered.known)] * ranks
        known, scale = _scaled(whole, at, segments, scales)
        kernels.add_payloads_(out, at, known, scale=scale)
    chosen = [p.values for p in gathered.payloads]
    positions = [p.positions for p in gathered.payloads]
    if gathered.over == "senders":
        chosen = _over_senders(chosen, positions, out.numel())
        scales = [factors.get(s.name, 1.0) for s in segments]
    chosen, scale = _scaled(chosen, positions, segments, scales)
    kernels.add_payloads_(out, positions, chosen, scale=scale)


def _over_senders(values: list[Tensor], positions: list[Tensor], numel: int) -> list[Tensor]:
    """Divide each value by the number of ranks that have one other than zero for its entry."""
    count = torch.zeros(numel, dtype=torch.int32, device=values[0].device)
    for value, at in zip(values, positions, strict=True):
        count.index_add_(0, at, (value != 0).to(torch.int32))
    # Zero values alone count nobody, and stay zero.
    count.clamp_(min=1)
    return [value / count.index_select(0, at) for value, at in zip(values, positions, strict=True)]


def _scaled(
    values: list[Tensor], positions: Sequence[Tensor | slice], segments: Segments, scales: list[float]
) -> tuple[list[Tensor], float]:
    """Return the values, and what to multiply them with: one scale, or 1 where each has its segment's in it."""
    scale = scales[0] if scales else 1.0
    if all(s == scale for s in scales):
        return values, scale
    return [_weighed(v, at, segments, scales) for v, at in zip(values, positions, strict=True)], 1.0


def _weighed(values: Tensor, at: Tensor | slice, segments: Segments, scales: list[float]) -> Tensor:
    """Multiply each value by the scale of its segment; segments lie one behind the other."""
    weights = torch.tensor(scales, dtype=values.dtype).to(values.device, non_blocking=True)
    sizes = torch.tensor([s.size for s in segments]).to(values.device, non_blocking=True)
    if isinstance(at, slice):
        return values * torch.repeat_interleave(weights, sizes, output_size=values.numel())
    at = at.to(values.device, torch.int64, non_blocking=True)
    return values * weights[torch.searchsorted(sizes.cumsum(0), at, right=True)]
