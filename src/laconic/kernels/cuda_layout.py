"""How work on a GPU is cut: a table of blocks that is made once a layout, and counters that are always zero."""

# ruff: noqa: N803, N806 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.segments import Segments

# Entries in a block and blocks in a group; neither ever crosses a segment's border.
BLOCK, GROUP = 8192, 16
# Entries that a thread reads at once where they begin at a multiple of as many.
_VECTOR = 4


@dataclass(frozen=True, eq=False)
class Layout:
    """A table of blocks on the device.

    ``owner`` names each block's segment, ``group_owner`` each group's. The rows of ``table`` are one longer than
    there are segments: the first block, the size, the first group, then the offset in each of the tensors that
    share the layout. ``even``: whether all sizes and offsets are multiples of what a thread reads at once.
    """

    count: int
    sizes: tuple[int, ...]
    blocks: int
    groups: int
    even: bool
    owner: Tensor
    group_owner: Tensor
    table: Tensor


_seen: dict[tuple[object, ...], tuple[tuple[Segments, ...], Layout]] = {}


def layout_of(device: torch.device, *parts: Segments) -> Layout:
    """Return the table for tensors that hold the same segments at offsets of their own.

    Known objects are found without a look at their names: hashing those costs more than a launch.
    """
    key = (device, *map(id, parts))
    if key not in _seen:
        if len(_seen) >= 1024:
            _seen.clear()
        # Holding on to the parts keeps their ids theirs.
        _seen[key] = parts, _made(device, *parts)
    return _seen[key][1]


@lru_cache(maxsize=256)
def _made(device: torch.device, *parts: Segments) -> Layout:
    for part in parts[1:]:
        if [s.size for s in part] != [s.size for s in parts[0]]:
            raise ValueError("kernels: segments of the same parameters must have the same sizes")
    sizes = [s.size for s in parts[0]]
    offsets = [[s.offset for s in part] for part in parts]
    # An empty segment has a block too: someone must write its zeros.
    blocks = [max(1, -(-size // BLOCK)) for size in sizes]
    owner, first = cut_up(blocks)
    group_owner, first_group = cut_up([-(-count // GROUP) for count in blocks])
    rows = [first, [*sizes, 0], first_group, *([*row, 0] for row in offsets)]
    return Layout(
        count=len(sizes),
        sizes=tuple(sizes),
        blocks=len(owner),
        groups=len(group_owner),
        even=gcd(_VECTOR, *sizes, *(o for row in offsets for o in row)) == _VECTOR,
        owner=owner.to(device, non_blocking=True),
        group_owner=group_owner.to(device, non_blocking=True),
        table=torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True),
    )


def cut_up(shares: list[int]) -> tuple[Tensor, list[int]]:
    """Return the owner of each share, one owner's behind the other's, and where each owner's begin and the end."""
    first = [0, *torch.tensor(shares, dtype=torch.int64).cumsum(0).tolist()]
    return torch.repeat_interleave(
        torch.arange(len(shares), dtype=torch.int32), torch.tensor(shares, dtype=torch.int64)
    ), first


_counters: dict[tuple[torch.device, int], Tensor] = {}


def counters_of(device: torch.device, count: int) -> Tensor:
    """Return counters at zero. Whoever counts to the end puts them back: no launch is spent on clearing them."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = _counters.get((device, stream))
    if found is None or found.numel() < count:
        found = torch.zeros(max(1024, 2 * count), dtype=torch.int32, device=device)
        _counters[device, stream] = found
    return found


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Make x's device the one that is launched on."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def align_of(cut: Layout, *vectors: Tensor) -> int:
    """Return what all places of the segments are multiples of, as far as it matters.

    Kernels are told so, and compiled no more than twice, before the first step.
    """
    even = cut.even and all(v.data_ptr() % (_VECTOR * v.element_size()) == 0 for v in vectors)
    return _VECTOR if even else 1


def kernel(function: Callable[..., None]) -> Any:
    """Make a kernel that is compiled for its constants and the types of its arguments alone.

    By itself Triton compiles it anew, in the middle of a training, for every mixture of arguments that are
    multiples of 16 and that are not.
    """
    names = inspect.signature(function).parameters.items()
    return triton.jit(function, do_not_specialize=[n for n, p in names if p.annotation is p.empty])


def bits_of(value: float) -> int:
    """Return the bits of a float64: as a float, an argument of a kernel is rounded to 32 bits on its way."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


@triton.jit  # type: ignore[untyped-decorator]
def count_before(counts, before, count, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write what comes before each count, and behind the last one the sum. For one program, when all are there."""
    wide, total = tl.arange(0, WIDE), tl.cast(0, tl.int64)
    for i in range(0, count, WIDE):
        more = i + wide < count
        n = tl.load(counts + i + wide, mask=more, other=0, cache_modifier=".cg")
        tl.store(before + i + wide, total + tl.cumsum(n, 0) - n, mask=more)
        total += tl.sum(n)
    tl.store(before + count, total)
    tl.debug_barrier()


@triton.jit  # type: ignore[untyped-decorator]
def placed(vector, at, ALIGN: tl.constexpr):  # type: ignore[no-untyped-def]
    """A pointer into a vector, to a place that ``align_of`` has looked at."""
    BYTES: tl.constexpr = ALIGN * (vector.dtype.element_ty.primitive_bitwidth // 8)
    return tl.multiple_of(vector + at, BYTES)
