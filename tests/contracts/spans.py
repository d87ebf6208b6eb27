"""Spans of entries and of values for the exams of coding kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from contracts.twins import Twin
from laconic.segments import Segments


def ends_of(counts: Sequence[int], device: str = "cpu") -> Tensor:
    """Where spans of so many entries end, one behind the other."""
    return torch.tensor([*accumulate(counts)], dtype=torch.int64, device=device)


def chosen(segments: Segments, counts: Sequence[int], seed: int) -> Tensor:
    """So many positions of each segment, by chance: numbers that never fall, and each one's place added."""
    source, found = torch.Generator().manual_seed(seed), [torch.empty(0, dtype=torch.int64)]
    for segment, k in zip(segments, counts, strict=True):
        y = torch.randint(0, segment.size - k + 1, (k,), generator=source).sort().values
        found.append(segment.offset + y + torch.arange(k))
    return torch.cat(found)


def values_of(twin: Twin, family: str, numel: int, seed: int, dtype: torch.dtype) -> Tensor:
    """A vector of a family; of ``none`` some entries are no numbers."""
    x = twin.draw("normal" if family == "none" else family, numel, seed, dtype)
    return torch.where(torch.arange(numel) % 7 == seed % 7, torch.nan, x) if family == "none" else x
