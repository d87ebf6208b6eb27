"""Flat vectors for exams: hypothesis strategies that love edges, and seeded draws for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from laconic import kernels
from laconic.segments import Segments
from laconic.types import Compressor, Payload, Plan

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
_WIDTH = {torch.float32: 32, torch.float64: 64}
_LARGEST = {dtype: float(torch.finfo(dtype).max) for dtype in _BITS}
_SMALLEST = {torch.float32: 2.0**-149, torch.float64: 2.0**-1074}

DTYPES = [torch.float32, torch.float64]


@dataclass(frozen=True)
class Sent:
    """What a compressor made of a vector, and what it left."""

    payload: Payload
    plan: Plan
    left: Tensor

    def decoded(self) -> Tensor:
        """What the payload stands for, as a vector."""
        out = torch.zeros_like(self.left)
        out[self.plan.known] += self.payload.known
        out[self.payload.positions] += self.payload.values
        return out


@dataclass(frozen=True)
class Flat:
    """A vector and where its parameters lie."""

    x: Tensor
    segments: Segments


def numbers(dtype: torch.dtype) -> st.SearchStrategy[float]:
    """Finite numbers: any, and often zeros, ties, denormals and the largest."""
    edges = [0.0, -0.0, 1.0, -1.0, 2.0, _SMALLEST[dtype], -_SMALLEST[dtype], _LARGEST[dtype], -_LARGEST[dtype]]
    anything = st.floats(width=_WIDTH[dtype], allow_nan=False, allow_infinity=False)
    return st.one_of(st.sampled_from(edges), st.integers(-2, 2).map(float), anything)


@st.composite
def flats(draw: st.DrawFn, dtype: torch.dtype) -> Flat:
    """A vector of one to four segments, some of them empty or of one entry."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    values = draw(st.lists(numbers(dtype), min_size=sum(sizes), max_size=sum(sizes)))
    return Flat(torch.tensor(values, dtype=dtype), segments_of(sizes))


def segments_of(sizes: list[int]) -> Segments:
    return Segments.of([f"p{i}" for i in range(len(sizes))], sizes)


def bits(x: Tensor) -> Tensor:
    """The vector as integers, so that -0.0 differs from 0.0."""
    return x.contiguous().view(_BITS[x.dtype])


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def known_positions(plan: Plan, numel: int) -> Tensor:
    return torch.arange(numel)[plan.known]


def normal(numel: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dyadic(numel: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Multiples of 1/8 so small that sums of many of them are exact."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-64, 65, (numel,), generator=source).to(dtype) / 8


def taken_by(compressor: Compressor, flat: Flat, step: int = 0, rooms: Mapping[str, int] | None = None) -> Sent:
    """What a compressor makes of a vector that is itself the fresh gradient."""
    plan, left = compressor.plan(flat.segments, step=step, rooms=rooms or {}), flat.x.clone()
    payload = compressor.compress_(left, flat.segments, plan, kernels.fresh_of(flat.x, flat.segments))
    return Sent(payload, plan, left)
