"""Take what exceeds a threshold, on CUDA: one pass that notes where, and a launch that moves what is taken."""

# ruff: noqa: N803 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.cuda_layout import BLOCK, counters_of, device_of, layout_of, slots_for
from laconic.kernels.reference import Taken
from laconic.segments import Segments

# How many partial results the last program looks at together; entries of a slot that are handled together.
_WIDE, _TILE = 2048, 256
KEYS = {torch.float64: tl.int64, torch.float32: tl.int32, torch.float16: tl.int16, torch.bfloat16: tl.int16}


def take_above_(
    x: Tensor,
    segments: Segments,
    thresholds: Tensor,
    rooms: Sequence[int],
    *,
    largest: Tensor | None = None,
    turn: int = 0,
) -> Taken:
    """Do what ``reference.take_above_`` does in one pass and a second launch that touches only what is taken."""
    cut, room = layout_of(x.device, segments), sum(rooms)
    positions, values = x.new_empty(room, dtype=torch.int64), x.new_empty(room)
    wanted = x.new_empty(cut.count, dtype=torch.int64)
    if not cut.count:
        return Taken(positions=positions, values=values, wanted=wanted)
    # A place behind the last entry, should rounding ever give one, takes in the same order as the first.
    begins = [reference.turned(s.size, turn) % max(1, s.size) for s in segments]
    asked = torch.tensor([list(rooms), begins], dtype=torch.int64).to(x.device, non_blocking=True)
    capacity = slots_for(segments.numel, room)
    slots = x.new_empty(cut.blocks * capacity, dtype=torch.int16)
    counts = x.new_empty(cut.blocks + cut.count, dtype=torch.int32)
    # What comes before each block, then four numbers a segment: early, early taken, late taken, first place.
    plan = x.new_empty(cut.blocks + 1 + 4 * (cut.count + 1), dtype=torch.int64)
    levels = thresholds.contiguous(), thresholds if largest is None else largest.contiguous()
    shared = (cut.owner, cut.table, cut.count, cut.blocks, capacity)
    known = {"ALONE": largest is not None, "KEY": KEYS[x.dtype], "BLOCK": BLOCK, "TILE": _TILE}
    with device_of(x):
        _mark[(cut.blocks,)](
            x, *levels, asked, counts, slots, plan, wanted, *shared, counters_of(x.device, 1),
            **known, ALIGN=cut.align, WIDE=_WIDE, num_warps=8,
        )  # fmt: skip
        _move[(cut.blocks + -(-room // BLOCK),)](
            x, *levels, counts, slots, plan, positions, values, *shared, room, **known, num_warps=2
        )
    return Taken(positions=positions, values=values, wanted=wanted)


@triton.jit  # type: ignore[untyped-decorator]
def unsigned(bits, KEY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Clear the sign bit: |x| as an integer."""
    if KEY == tl.int64:  # noqa: SIM300
        cleared = bits & 0x7FFFFFFFFFFFFFFF
    elif KEY == tl.int32:  # noqa: SIM300
        cleared = bits & 0x7FFFFFFF
    else:
        cleared = bits & 0x7FFF
    return cleared


@triton.jit
def keys_of(at, inside):  # type: ignore[no-untyped-def]
    """|x| as an integer of the same order; 16 bits are read as 32, which changes no number."""
    value = tl.load(at, mask=inside, other=0)
    if value.dtype == tl.float64:
        key = value.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        key = value.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return key


@triton.jit  # type: ignore[untyped-decorator]
def _level(thresholds, largest, at, inside, ALONE: tl.constexpr, KEY: tl.constexpr):  # type: ignore[no-untyped-def]
    """What entries must exceed, and whether only the largest does: then it is the number just below that."""
    level = _real(tl.load(thresholds + at, mask=inside, other=0))
    alone = level > level
    if ALONE:
        top = tl.load(largest + at, mask=inside, other=0)
        alone = (_real(top) > level) == 0
        key = unsigned(top.to(KEY, bitcast=True), KEY)
        # Below NaN comes NaN, or infinity: none of them is ever exceeded.
        below = tl.where(key > 0, key - 1, 0).to(KEY).to(top.dtype, bitcast=True)
        level = tl.where(alone, _real(below), level)
    return level, alone


@triton.jit
def _real(value):  # type: ignore[no-untyped-def]
    """The same number in 32 bits at least."""
    if value.dtype.primitive_bitwidth < 32:
        value = value.to(tl.float32)
    return value


@triton.jit
def _passes(at, level, inside):  # type: ignore[no-untyped-def]
    """Whether |x| > level, where the pointers point."""
    return inside & (tl.abs(_real(tl.load(at, mask=inside, other=0))) > level)


@triton.jit(do_not_specialize=["segments", "blocks"])  # type: ignore[untyped-decorator]
def _mark(  # type: ignore[no-untyped-def]
    x, thresholds, largest, asked, counts, slots, plan, wanted, owner, table, segments, blocks, capacity, counter,
    ALONE: tl.constexpr, KEY: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Each block notes where it found what; the last one says how many come before each, and who is taken.

    Of a segment that found f, e of them before the place to begin at: taken t = min(room, f), of these late
    l = min(f - e, t), early t - l.
    """
    block, row = tl.program_id(0), segments + 1
    s = tl.load(owner + block)
    first, size = tl.load(table + s), tl.multiple_of(tl.load(table + row + s), ALIGN)
    start = (block - first) * BLOCK
    here = x + tl.multiple_of(tl.load(table + 2 * row + s), ALIGN) + start
    lane, rest = tl.arange(0, BLOCK), tl.minimum(size - start, BLOCK).to(tl.int32)
    level = _level(thresholds, largest, s, True, ALONE, KEY)[0]
    passed = _passes(here + lane, level, lane < tl.multiple_of(rest, ALIGN))
    rank = tl.cumsum(passed.to(tl.int32), 0)
    slot = slots + block.to(tl.int64) * capacity
    tl.store(slot + (rank - 1), lane.to(tl.int16), mask=passed & (rank <= capacity))
    tl.store(counts + block, tl.sum(passed.to(tl.int32)))
    begin = tl.load(asked + segments + s)
    if (begin >= start) & (begin < start + BLOCK):
        tl.store(counts + blocks + s, tl.sum((passed & (lane < (begin - start).to(tl.int32))).to(tl.int32)))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1) == blocks - 1:
        wide = tl.arange(0, WIDE)
        before = tl.cast(0, tl.int64)
        for i in range(0, blocks, WIDE):
            more = i + wide < blocks
            n = tl.load(counts + i + wide, mask=more, other=0, cache_modifier=".cg")
            tl.store(plan + i + wide, before + tl.cumsum(n, 0) - n, mask=more)
            before += tl.sum(n)
        tl.store(plan + blocks, before)
        tl.debug_barrier()
        rows = plan + blocks + 1
        place = tl.cast(0, tl.int64)
        for i in range(0, segments, TILE):
            q = i + tl.arange(0, TILE)
            more = q < segments
            begins = tl.load(table + q, mask=more, other=0)
            ends = tl.load(table + q + 1, mask=more, other=0)
            base = tl.load(plan + begins, mask=more, other=0, cache_modifier=".cg")
            found = tl.load(plan + ends, mask=more, other=0, cache_modifier=".cg") - base
            turned = begins + tl.load(asked + segments + q, mask=more, other=0) // BLOCK
            early = tl.load(plan + turned, mask=more, other=0, cache_modifier=".cg") - base
            early += tl.load(counts + blocks + q, mask=more, other=0, cache_modifier=".cg")
            alone = _level(thresholds, largest, q, more, ALONE, KEY)[1]
            want = tl.where(alone, tl.minimum(found, 1), found)
            taken = tl.minimum(tl.load(asked + q, mask=more, other=0), want)
            late = tl.minimum(found - early, taken)
            tl.store(wanted + q, want, mask=more)
            tl.store(rows + q, early, mask=more)
            tl.store(rows + row + q, taken - late, mask=more)
            tl.store(rows + 2 * row + q, late, mask=more)
            tl.store(rows + 3 * row + q, place + tl.cumsum(taken, 0) - taken, mask=more)
            place += tl.sum(taken)
        tl.store(rows + 3 * row + segments, place)
        tl.store(counter, 0)


@triton.jit(do_not_specialize=["segments", "blocks", "room"])  # type: ignore[untyped-decorator]
def _move(  # type: ignore[no-untyped-def]
    x, thresholds, largest, counts, slots, plan, positions, values, owner, table, segments, blocks, capacity, room,
    ALONE: tl.constexpr, KEY: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each block takes those of its entries whose rank in the segment is taken; further programs clear the rest."""
    block, row = tl.program_id(0), segments + 1
    rows = plan + blocks + 1
    if block >= blocks:
        total = tl.load(rows + 3 * row + segments)
        for i in range(0, BLOCK, TILE):
            to = (block - blocks).to(tl.int64) * BLOCK + i + tl.arange(0, TILE)
            unused = (to >= total) & (to < room)
            tl.store(positions + to, tl.zeros([TILE], tl.int64), mask=unused)
            tl.store(values + to, tl.zeros([TILE], x.dtype.element_ty), mask=unused)
    else:
        s = tl.load(owner + block)
        first, size = tl.load(table + s), tl.load(table + row + s)
        start = (block - first) * BLOCK
        here = tl.load(table + 2 * row + s) + start
        count = tl.load(counts + block)
        rank = tl.load(plan + block) - tl.load(plan + first)
        lane = tl.arange(0, TILE)
        if count <= capacity:
            slot = slots + block.to(tl.int64) * capacity
            for i in range(0, count, TILE):
                more = i + lane < count
                at = here + tl.load(slot + i + lane, mask=more, other=0)
                _take(x, at, rank + i + lane, more, rows + s, row, positions, values)
        else:
            level = _level(thresholds, largest, s, True, ALONE, KEY)[0]
            for i in range(0, BLOCK, TILE):
                passed = _passes(x + here + i + lane, level, start + i + lane < size)
                order = tl.cumsum(passed.to(tl.int32), 0)
                _take(x, here + i + lane, rank + order - 1, passed, rows + s, row, positions, values)
                rank += tl.sum(passed.to(tl.int32))


@triton.jit
def _take(x, at, rank, found, rows, row, positions, values):  # type: ignore[no-untyped-def]
    """Take the first ``lead`` of the ``early`` entries and the first ``late`` of those after them."""
    early, lead, late = tl.load(rows), tl.load(rows + row), tl.load(rows + 2 * row)
    place = tl.load(rows + 3 * row)
    taken = found & ((rank < lead) | ((rank >= early) & (rank - early < late)))
    to = place + tl.where(rank < early, rank, rank - early + lead)
    tl.store(values + to, tl.load(x + at, mask=taken, other=0), mask=taken)
    tl.store(positions + to, at, mask=taken)
    tl.store(x + at, tl.zeros_like(at).to(x.dtype.element_ty), mask=taken)
