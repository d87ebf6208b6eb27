"""The kernels on CUDA, compiled by Triton: each a twin of a function in ``reference``, and none asks the host.

A program does a block. Where all blocks must be done before the next thing can be known, the program that finishes
last does it, in the order of blocks: one launch, and no bit depends on who came first.
"""

# ruff: noqa: N803 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import cuda_coding as coding
from laconic.kernels import reference
from laconic.kernels.cuda_above import take_above_
from laconic.kernels.cuda_layout import BLOCK, align_of, bits_of, counters_of, device_of, kernel, layout_of, placed
from laconic.kernels.cuda_marks import KEYS, unsigned
from laconic.kernels.cuda_top import take_top_
from laconic.kernels.reference import Accumulated, Inflow, Places

__all__ = ["accumulate_", "add_payloads_", "coding", "store_", "take_above_", "take_top_", "version"]

# How many partial results the last program looks at together; how many entries of a payload a program adds.
_WIDE, _TILE = 2048, 512


def version() -> str:
    """Name what the kernels run on."""
    return "triton " + ".".join(triton.__version__.split(".")[:2])


def accumulate_(
    x: Tensor,
    grad: Tensor,
    inflow: Inflow,
    places: Places,
    *,
    owed: Tensor | None,
    velocity: Tensor | None = None,
    proposed: Tensor | None = None,
) -> Accumulated:
    """Do what ``reference.accumulate_`` does in one pass."""
    if x.dtype not in (torch.float32, torch.float64):
        return reference.accumulate_(x, grad, inflow, places, owed=owed, velocity=velocity, proposed=proposed)
    cut = layout_of(x.device, places.x, places.grad, places.home)
    norms, largest = x.new_empty(cut.count), x.new_empty(cut.count)
    if cut.count:
        squares = x.new_empty(cut.blocks)
        peaks = torch.empty_like(squares, dtype=torch.int64 if x.dtype == torch.float64 else torch.int32)
        moves = velocity is not None and proposed is not None
        flow = [v.contiguous() for v in (inflow.gain, inflow.unit, inflow.momentum, inflow.nesterov)]
        # What is absent is never looked at; a pointer must be given all the same.
        vectors = [x if v is None else v for v in (owed, velocity if moves else None, proposed if moves else None)]
        with device_of(x):
            _accumulate[(cut.blocks,)](
                x, grad, *vectors, *flow, norms, largest, squares, peaks, cut.owner, cut.table,
                counters_of(x.device, cut.count), cut.count,
                OWES=owed is not None, MOVES=moves, KEY=KEYS[x.dtype], ALIGN=align_of(cut, x, grad, *vectors),
                BLOCK=BLOCK, WIDE=_WIDE, num_warps=8 if moves else 4, enable_fp_fusion=False,
            )  # fmt: skip
    return Accumulated(norms=norms, largest=largest)


def store_(x: Tensor, owed: Tensor, places: Places) -> None:
    """Do what ``reference.store_`` does in one pass."""
    cut = layout_of(x.device, places.x, places.home)
    if cut.count:
        with device_of(x):
            _store[(cut.blocks,)](
                x, owed, cut.owner, cut.table, cut.count, ALIGN=align_of(cut, x, owed), BLOCK=BLOCK, num_warps=4
            )


def add_payloads_(
    out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], *, scale: float = 1.0
) -> None:
    """Do what ``reference.add_payloads_`` does, a launch a rank: launches keep their order."""
    for at, value in zip(positions, values, strict=True):
        if at.numel():
            with device_of(out):
                _add[(-(-at.numel() // _TILE),)](
                    out, at.contiguous(), value.contiguous(), at.numel(), bits_of(scale),
                    TILE=_TILE, num_warps=4, enable_fp_fusion=False,
                )  # fmt: skip


@kernel
def _accumulate(  # type: ignore[no-untyped-def]
    x, grad, owed, velocity, proposed, gain, unit, momentum, nesterov, norms, largest, squares, peaks,
    owner, table, counters, segments,
    OWES: tl.constexpr, MOVES: tl.constexpr, KEY: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Make x = owed + unit * step, with step = gain * grad, or u, or step + m u of the velocity u = m u + step.

    A program rounds in the order of the reference.
    """
    block, row = tl.program_id(0), segments + 1
    s = tl.load(owner + block)
    first, size = tl.load(table + s), tl.load(table + row + s)
    start = (block - first) * BLOCK
    here, home = start + tl.load(table + 3 * row + s), start + tl.load(table + 5 * row + s)
    lane, rest = tl.arange(0, BLOCK), tl.minimum(size - start, BLOCK).to(tl.int32)
    inside = lane < tl.multiple_of(rest, ALIGN)
    dtype: tl.constexpr = x.dtype.element_ty
    source = placed(grad, start + tl.load(table + 4 * row + s), ALIGN)
    step = tl.load(source + lane, mask=inside, other=0).to(dtype) * tl.load(gain + s)
    if MOVES:
        m = tl.load(momentum + s)
        u = tl.load(placed(velocity, home, ALIGN) + lane, mask=inside, other=0) * m + step
        tl.store(placed(proposed, here, ALIGN) + lane, u, mask=inside)
        step = tl.where(tl.load(nesterov + s) != 0, step + u * m, u)
    step = step * tl.load(unit + s)
    # Off the segment a gain that is not finite would make NaN of zero.
    square = tl.sum(tl.where(inside, step * step, 0.0))
    if OWES:
        step = step + tl.load(placed(owed, home, ALIGN) + lane, mask=inside, other=0)
    tl.store(placed(x, here, ALIGN) + lane, step, mask=inside)
    # As integers magnitudes have the same order, and NaN stands above all.
    key = unsigned(step.to(KEY, bitcast=True), KEY)
    tl.store(squares + block, square)
    tl.store(peaks + block, tl.max(tl.where(inside, key, 0)))
    # All threads must have stored before one of them says so.
    tl.debug_barrier()
    blocks = (tl.load(table + s + 1) - first).to(tl.int32)
    if tl.atomic_add(counters + s, 1) == blocks - 1:
        wide = tl.arange(0, WIDE)
        total, peak = tl.zeros([WIDE], tl.float64), tl.zeros([WIDE], KEY)
        for i in range(0, blocks, WIDE):
            more = i + wide < blocks
            part = tl.load(squares + first + i + wide, mask=more, other=0, cache_modifier=".cg")
            total += part.to(tl.float64)
            peak = tl.maximum(peak, tl.load(peaks + first + i + wide, mask=more, other=0, cache_modifier=".cg"))
        tl.store(norms + s, tl.sqrt(tl.sum(total)).to(dtype))
        tl.store(largest + s, tl.max(peak).to(dtype, bitcast=True))
        tl.store(counters + s, 0)


@kernel
def _store(x, owed, owner, table, segments, ALIGN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Move a block of x to where it is at home, and leave zeros."""
    block, row = tl.program_id(0), segments + 1
    s = tl.load(owner + block)
    start = (block - tl.load(table + s)) * BLOCK
    lane, rest = tl.arange(0, BLOCK), tl.minimum(tl.load(table + row + s) - start, BLOCK).to(tl.int32)
    inside = lane < tl.multiple_of(rest, ALIGN)
    here = placed(x, start + tl.load(table + 3 * row + s), ALIGN) + lane
    home = placed(owed, start + tl.load(table + 4 * row + s), ALIGN) + lane
    tl.store(home, tl.load(here, mask=inside, other=0), mask=inside)
    tl.store(here, tl.zeros([BLOCK], x.dtype.element_ty), mask=inside)


@kernel
def _add(out, positions, values, count, scale, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[positions] += values * scale. Zeros add nothing: unused places may all name the same entry."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    more = i < count
    value = tl.load(values + i, mask=more, other=0)
    at = out + tl.load(positions + i, mask=more, other=0).to(tl.int64)
    factor = scale.to(tl.int64).to(tl.float64, bitcast=True)
    if values.dtype.element_ty == tl.float64:
        value = value * factor
    else:
        value = (value.to(tl.float32) * factor.to(tl.float32)).to(values.dtype.element_ty)
    more = more & (value != 0)
    old = tl.load(at, mask=more, other=0)
    if values.dtype.element_ty.primitive_bitwidth < 32:
        value = (old.to(tl.float32) + value.to(tl.float32)).to(values.dtype.element_ty)
    else:
        value = old + value
    tl.store(at, value, mask=more)
