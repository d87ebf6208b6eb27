"""What selecting compressors share: how many to keep, and which parameters are too small to choose from."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from laconic.types import Plan, Segment, Segments


def kept(size: int, density: float) -> int:
    """Return how many of ``size`` entries a density keeps: the nearest whole number, at least one of any.

    >>> kept(1000, 0.01), kept(10, 0.01), kept(0, 0.01)
    (10, 1, 0)
    """
    return min(size, max(1, round(size * density)))


@lru_cache(maxsize=1024)
def split_small(segments: Segments, below: int) -> tuple[Segments, Segments]:
    """Return the segments with fewer than ``below`` entries, and the others."""
    small = tuple(s for s in segments if s.size < below)
    large = tuple(s for s in segments if s.size >= below)
    return Segments(small), Segments(large)


@lru_cache(maxsize=1024)
def positions_of(segments: Segments) -> Tensor:
    """Return every position that the segments cover."""
    return torch.cat([torch.empty(0, dtype=torch.int64), *(_range(s) for s in segments)])


def take_known_(x: Tensor, plan: Plan) -> Tensor:
    """Take the plan's known entries; x is left zero there."""
    known = plan.known if isinstance(plan.known, slice) else plan.known.to(x.device)
    values = x[known].clone()
    x[known] = 0
    return values


def _range(segment: Segment) -> Tensor:
    return torch.arange(segment.offset, segment.offset + segment.size)
