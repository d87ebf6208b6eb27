"""Take the largest entries, on CUDA, exactly and without asking the host.

A sample tells an edge that, as good as surely, enough entries reach. One pass notes those that do, in slots.
Rounds of histograms over the slots then find the k-th largest magnitude, eleven bits of it a round. Where a block
finds more than its slot holds, or a segment fewer than it wants, the rounds read x again: the data decide how
long it takes, never what comes out.
"""

# ruff: noqa: N803, N806 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.cuda_above import keys_of
from laconic.kernels.cuda_layout import BLOCK, RUN, Layout, counters_of, device_of, layout_of, slots_for
from laconic.kernels.reference import Taken
from laconic.segments import Segments

_WIDE, _TILE, _DIGIT = 2048, 256, 11
# The lowest bit of each round's digit. A float16 or bfloat16 seen as float32 has nothing below the second.
_ROUNDS = {
    torch.float64: (52, 41, 30, 19, 8, 0),
    torch.float32: (20, 9, 0),
    torch.float16: (20, 9),
    torch.bfloat16: (20, 9),
}


def take_top_(x: Tensor, segments: Segments, counts: Sequence[int]) -> Taken:
    """Do what ``reference.take_top_`` does. NaN counts as larger than infinity."""
    cut = layout_of(x.device, segments)
    kept = tuple(map(min, counts, cut.sizes))
    room, double = sum(kept), x.dtype == torch.float64
    positions, values = x.new_empty(room, dtype=torch.int64), x.new_empty(room)
    if not room:
        return Taken(positions=positions, values=values, wanted=x.new_zeros(cut.count, dtype=torch.int64))
    state = _asked(cut, kept, (1 << (63 if double else 31)) - 1).to(x.device, non_blocking=True, copy=True)
    rounds = _ROUNDS[x.dtype]
    wide = torch.int64 if segments.numel >= 1 << 31 else torch.int32
    bins = x.new_zeros((1 + len(rounds), cut.count << _DIGIT), dtype=wide)
    capacity = slots_for(segments.numel, room)
    spots = x.new_empty(cut.blocks * capacity, dtype=torch.int16)
    keys = torch.empty_like(spots, dtype=torch.int64 if double else torch.int32)
    hits = x.new_empty(3 * cut.blocks, dtype=torch.int32)
    plan = x.new_empty(2 * (cut.blocks + 1), dtype=torch.int64)
    counters = counters_of(x.device, cut.count)
    found = (state, cut.owner, cut.table, cut.count, capacity, keys, hits)
    with device_of(x):
        _sample[(cut.samplers.numel(),)](
            x, bins[0], counters, state, cut.samplers, cut.table, cut.sampling, cut.count,
            SHIFT=rounds[0], DIGIT=_DIGIT, RUN=RUN, BLOCK=BLOCK, TILE=2 * _TILE, num_warps=4,
        )  # fmt: skip
        _collect[(cut.blocks,)](x, spots, *found, ALIGN=cut.align, BLOCK=BLOCK, num_warps=8)
        for i, shift in enumerate(rounds):
            width = (rounds[i - 1] if i else shift + _DIGIT) - shift
            _narrow[(cut.blocks,)](
                x, bins[1 + i], counters, *found, shift, width, DIGIT=_DIGIT, BLOCK=BLOCK, TILE=_TILE, num_warps=4
            )
        _settle[(cut.blocks,)](
            x, counters, plan, cut.blocks, *found, BLOCK=BLOCK, TILE=2 * _TILE, WIDE=_WIDE, num_warps=8
        )
        _pick[(cut.blocks,)](
            x, plan, positions, values, cut.blocks, spots, *found, BLOCK=BLOCK, TILE=_TILE, num_warps=2
        )
    return Taken(positions=positions, values=values, wanted=state[0])


@lru_cache(maxsize=256)
def _asked(cut: Layout, kept: tuple[int, ...], last: int) -> Tensor:
    """A column a segment: count, entries still to find, key so far, edge of the sample, found, sample's target.

    A segment that gives all has the key -1, one that gives nothing the last: no round need look at them.
    """
    columns = []
    for size, count, stride in zip(cut.sizes, kept, cut.strides, strict=True):
        if 0 < count < size:
            share = count // stride
            # A full histogram is exact; of a sample more is asked than its share, so that it seldom falls short.
            target = count if stride == 1 else share + share // 4 + 6 * isqrt(share) + 8
            columns.append((count, count, 0, 0, 0, target))
        else:
            columns.append((count, 0, -1 if count else last, 0 if count else last, 0, 0))
    return torch.tensor(list(zip(*columns, strict=True)), dtype=torch.int64)


@triton.jit  # type: ignore[untyped-decorator]
def _histogram(digit, inside, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Count the digits of those inside."""
    counts = tl.histogram(tl.where(inside, digit, 0).to(tl.int32), BINS)
    outside = tl.sum((inside == 0).to(tl.int32))
    return counts - tl.where(tl.arange(0, BINS) == 0, outside, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _flush(bins, counts, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add to the segment's counts. The barrier lets a later release speak for every thread."""
    to = bins + tl.arange(0, BINS)
    tl.atomic_add(to, counts.to(bins.dtype.element_ty), mask=counts > 0, sem="relaxed")
    tl.debug_barrier()


@triton.jit  # type: ignore[untyped-decorator]
def _boundary(bins, need, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The highest bin that together with those above it has ``need`` entries, and how many lie above it."""
    order = tl.arange(0, BINS)
    counts = tl.load(bins + order, cache_modifier=".cg").to(tl.int64)
    above = tl.sum(counts) - tl.cumsum(counts, 0)
    found = tl.maximum(tl.sum((above + counts >= need).to(tl.int32)) - 1, 0)
    return found.to(tl.int64), tl.sum(tl.where(order == found, above, 0))


@triton.jit(do_not_specialize=["segments"])  # type: ignore[untyped-decorator]
def _sample(  # type: ignore[no-untyped-def]
    x, bins, counters, state, owner, table, sampling, segments,
    SHIFT: tl.constexpr, DIGIT: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Count the upper bits of a run of entries every ``stride`` runs; find an edge that enough of all reach."""
    BINS: tl.constexpr = 1 << DIGIT
    program, row = tl.program_id(0), segments + 1
    s = tl.load(owner + program)
    target = tl.load(state + 5 * segments + s)
    if target > 0:
        size, here = tl.load(table + row + s), tl.load(table + 2 * row + s)
        first, stride = tl.load(sampling + s), tl.load(sampling + row + s)
        counts = tl.zeros([BINS], tl.int32)
        for i in range(0, BLOCK, TILE):
            pick = (program - first) * BLOCK + i + tl.arange(0, TILE)
            at = pick // RUN * RUN * stride + pick % RUN
            key = keys_of(x + here + at, at < size)
            counts += _histogram(key >> SHIFT, at < size, BINS)
        _flush(bins + s.to(tl.int64) * BINS, counts, BINS)
        if tl.atomic_add(counters + s, 1) == tl.load(sampling + s + 1) - first - 1:
            reached = _boundary(bins + s.to(tl.int64) * BINS, target, BINS)[0]
            tl.store(state + 3 * segments + s, reached << SHIFT)
            tl.store(counters + s, 0)


@triton.jit(do_not_specialize=["segments"])  # type: ignore[untyped-decorator]
def _collect(  # type: ignore[no-untyped-def]
    x, spots, state, owner, table, segments, capacity, keys, hits, ALIGN: tl.constexpr, BLOCK: tl.constexpr
):
    """Each block notes its entries that reach the edge, as many as its slot holds, and counts them all."""
    block, row = tl.program_id(0), segments + 1
    s = tl.load(owner + block)
    size = tl.multiple_of(tl.load(table + row + s), ALIGN)
    start = (block - tl.load(table + s)) * BLOCK
    here = x + tl.multiple_of(tl.load(table + 2 * row + s), ALIGN) + start
    lane, rest = tl.arange(0, BLOCK), tl.minimum(size - start, BLOCK).to(tl.int32)
    inside = lane < tl.multiple_of(rest, ALIGN)
    key = keys_of(here + lane, inside)
    reached = inside & (key >= tl.load(state + 3 * segments + s).to(key.dtype))
    rank = tl.cumsum(reached.to(tl.int32), 0)
    count = tl.sum(reached.to(tl.int32))
    slot = block.to(tl.int64) * capacity + rank - 1
    tl.store(spots + slot, lane.to(tl.int16), mask=reached & (rank <= capacity))
    tl.store(keys + slot, key, mask=reached & (rank <= capacity))
    tl.store(hits + block, count)
    tl.atomic_add(state + 4 * segments + s, count.to(tl.int64), sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _extent(block, s, size, start, state, segments, capacity, hits, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many entries a block looks at, and whether in its slot: that may be too small, or the edge too high."""
    count = tl.load(hits + block)
    enough = tl.load(state + 4 * segments + s) >= tl.load(state + s)
    noted = (count <= capacity) & enough
    rest = tl.minimum(size - start, BLOCK).to(tl.int32)
    return tl.where(noted, count, rest), noted


@triton.jit
def _tile(x, here, slot, i, many, noted, keys):  # type: ignore[no-untyped-def]
    """The keys of some entries of a block, from its slot or from x."""
    more = i < many
    if noted:  # noqa: SIM108
        key = tl.load(keys + slot + i, mask=more, other=0)
    else:
        key = keys_of(x + here + i, more)
    return key, more


@triton.jit(do_not_specialize=["segments", "shift", "width"])  # type: ignore[untyped-decorator]
def _narrow(  # type: ignore[no-untyped-def]
    x, bins, counters, state, owner, table, segments, capacity, keys, hits, shift, width,
    DIGIT: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Count a digit of the keys that begin like the k-th largest; a segment's last block says how it goes on."""
    BINS: tl.constexpr = 1 << DIGIT
    block, row = tl.program_id(0), segments + 1
    s = tl.load(owner + block)
    need = tl.load(state + segments + s)
    if need > 0:
        first, size = tl.load(table + s), tl.load(table + row + s)
        start = (block - first) * BLOCK
        here = tl.load(table + 2 * row + s) + start
        prefix = tl.load(state + 2 * segments + s)
        many, noted = _extent(block, s, size, start, state, segments, capacity, hits, BLOCK)
        slot = block.to(tl.int64) * capacity
        counts = tl.zeros([BINS], tl.int32)
        for i in range(0, many, TILE):
            key, more = _tile(x, here, slot, i + tl.arange(0, TILE), many, noted, keys)
            alike = more & (key >> (shift + width) == prefix >> (shift + width))
            counts += _histogram((key >> shift) & ((1 << width) - 1), alike, BINS)
        _flush(bins + s.to(tl.int64) * BINS, counts, BINS)
        if tl.atomic_add(counters + s, 1) == tl.load(table + s + 1) - first - 1:
            digit, above = _boundary(bins + s.to(tl.int64) * BINS, need, BINS)
            tl.store(state + 2 * segments + s, prefix | (digit << shift))
            tl.store(state + segments + s, need - above)
            tl.store(counters + s, 0)


@triton.jit(do_not_specialize=["segments", "blocks"])  # type: ignore[untyped-decorator]
def _settle(  # type: ignore[no-untyped-def]
    x, counters, plan, blocks, state, owner, table, segments, capacity, keys, hits,
    BLOCK: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Each block counts its keys above the k-th largest and equal to it; the last says how many come before."""
    block, row = tl.program_id(0), segments + 1
    s = tl.load(owner + block)
    size, start = tl.load(table + row + s), (block - tl.load(table + s)) * BLOCK
    here = tl.load(table + 2 * row + s) + start
    last = tl.load(state + 2 * segments + s)
    many, noted = _extent(block, s, size, start, state, segments, capacity, hits, BLOCK)
    above, equal = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
    for i in range(0, many, TILE):
        at = i + tl.arange(0, TILE)
        key, more = _tile(x, here, block.to(tl.int64) * capacity, at, many, noted, keys)
        above += (more & (key > last)).to(tl.int32)
        equal += (more & (key == last)).to(tl.int32)
    tl.store(hits + blocks + block, tl.sum(above))
    tl.store(hits + 2 * blocks + block, tl.sum(equal))
    tl.debug_barrier()
    if tl.atomic_add(counters, 1) == blocks - 1:
        wide, ties = tl.arange(0, WIDE), plan + blocks + 1
        before = tl.cast(0, tl.int64)
        for i in range(0, blocks, WIDE):
            inside = i + wide < blocks
            n = tl.load(hits + 2 * blocks + i + wide, mask=inside, other=0, cache_modifier=".cg")
            tl.store(ties + i + wide, before + tl.cumsum(n, 0) - n, mask=inside)
            before += tl.sum(n)
        tl.debug_barrier()
        to = tl.cast(0, tl.int64)
        for i in range(0, blocks, WIDE):
            inside = i + wide < blocks
            q = tl.load(owner + i + wide, mask=inside, other=0)
            first = tl.load(table + q, mask=inside, other=0)
            left = tl.load(state + segments + q, mask=inside, other=0)
            left -= tl.load(ties + i + wide, mask=inside, other=0, cache_modifier=".cg")
            left += tl.load(ties + first, mask=inside, other=0, cache_modifier=".cg")
            n = tl.load(hits + 2 * blocks + i + wide, mask=inside, other=0, cache_modifier=".cg").to(tl.int64)
            n = tl.minimum(tl.maximum(left, 0), n)
            n += tl.load(hits + blocks + i + wide, mask=inside, other=0, cache_modifier=".cg")
            tl.store(plan + i + wide, to + tl.cumsum(n, 0) - n, mask=inside)
            to += tl.sum(n)
        tl.store(plan + blocks, to)
        tl.store(counters, 0)


@triton.jit(do_not_specialize=["segments", "blocks"])  # type: ignore[untyped-decorator]
def _pick(  # type: ignore[no-untyped-def]
    x, plan, positions, values, blocks, spots, state, owner, table, segments, capacity, keys, hits,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each block takes its entries above the k-th largest, and of those equal to it the first that are left."""
    block, row = tl.program_id(0), segments + 1
    to = tl.load(plan + block)
    if tl.load(plan + block + 1) > to:
        s = tl.load(owner + block)
        first, size = tl.load(table + s), tl.load(table + row + s)
        start = (block - first) * BLOCK
        here = tl.load(table + 2 * row + s) + start
        last = tl.load(state + 2 * segments + s)
        ties = plan + blocks + 1
        left = tl.load(state + segments + s) - (tl.load(ties + block) - tl.load(ties + first))
        many, noted = _extent(block, s, size, start, state, segments, capacity, hits, BLOCK)
        slot = block.to(tl.int64) * capacity
        for i in range(0, many, TILE):
            spot = i + tl.arange(0, TILE)
            key, more = _tile(x, here, slot, spot, many, noted, keys)
            if noted:
                spot = tl.load(spots + slot + spot, mask=more, other=0).to(tl.int32)
            equal = (more & (key == last)).to(tl.int32)
            taken = more & ((key > last) | ((equal > 0) & (tl.cumsum(equal, 0) <= left)))
            rank = tl.cumsum(taken.to(tl.int32), 0)
            at = here + spot
            tl.store(values + to + rank - 1, tl.load(x + at, mask=taken, other=0), mask=taken)
            tl.store(positions + to + rank - 1, at, mask=taken)
            tl.store(x + at, tl.zeros([TILE], x.dtype.element_ty), mask=taken)
            left -= tl.sum(equal)
            to += tl.sum(taken.to(tl.int32))
