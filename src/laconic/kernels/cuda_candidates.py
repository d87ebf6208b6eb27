"""Of candidates for the largest entries find those that are, on CUDA.

The k-th largest magnitude is found from histograms, some bits of it a round. Where a segment has more candidates
than its list holds, or fewer than it wants, the rounds read x instead: the data decide how long it takes, never
what comes out.
"""

# ruff: noqa: N803, N806 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

import torch
import triton
import triton.language as tl

from laconic.kernels.cuda_layout import count_before, kernel
from laconic.kernels.cuda_marks import keys_of

# Candidates that are looked at together; bits that a round finds.
TILE, DIGIT = 512, 8
# The lowest bit of each round's digit. A float16 or bfloat16 seen as float32 has nothing below the last.
ROUNDS = {
    torch.float64: (55, 47, 39, 31, 23, 15, 7, 0),
    torch.float32: (23, 15, 7, 0),
    torch.float16: (23, 15, 7),
    torch.bfloat16: (23, 15),
}


@triton.jit  # type: ignore[untyped-decorator]
def _share(program, s, state, before, table, segments, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which candidates a program looks at, the first and behind the last; and whether they are in the list.

    The edge may be too high or the list too short: then every entry of the segment is one.
    """
    row = segments + 1
    begins = tl.load(table + 2 * row + s)
    found = tl.load(before + tl.load(table + 2 * row + s + 1)) - tl.load(before + begins)
    known = (found >= tl.load(state + s)) & (found <= tl.load(state + 5 * row + s))
    many = tl.where(known, found, tl.load(table + row + s))
    leader = tl.load(state + 7 * row + s)
    programs = tl.load(state + 7 * row + s + 1) - leader
    each = tl.cdiv(tl.cdiv(many, programs), TILE) * TILE
    start = (program - leader) * each
    return start, tl.maximum(tl.minimum(many - start, each), 0).to(tl.int32), known, programs


@triton.jit
def _tile(x, i, more, known, listed):  # type: ignore[no-untyped-def]
    """Where some candidates of a segment are, and their keys."""
    at = i
    if known:
        at = tl.load(listed + i, mask=more, other=0)
    return at, keys_of(x + at, more)


@triton.jit  # type: ignore[untyped-decorator]
def _boundary(bins, need, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The highest bin that together with those above it has ``need`` entries, and how many lie above it."""
    order = tl.arange(0, BINS)
    counts = tl.load(bins + order, cache_modifier=".cg").to(tl.int64)
    above = tl.sum(counts) - tl.cumsum(counts, 0)
    found = tl.maximum(tl.sum((above + counts >= need).to(tl.int32)) - 1, 0)
    return found.to(tl.int64), tl.sum(tl.where(order == found, above, 0))


@kernel
def narrow(  # type: ignore[no-untyped-def]
    x, bins, counters, owner, state, before, table, segments, listed, shift, width,
    DIGIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Count a digit of the keys that begin like the k-th largest; a segment's last program says how it goes on."""
    BINS: tl.constexpr = 1 << DIGIT
    program, row = tl.program_id(0), segments + 1
    s = tl.load(owner + program)
    need = tl.load(state + row + s)
    if need > 0:
        here, listed = x + tl.load(table + 3 * row + s), listed + tl.load(state + 6 * row + s)
        prefix = tl.load(state + 2 * row + s)
        start, many, known, programs = _share(program, s, state, before, table, segments, TILE)
        bins += s.to(tl.int64) * BINS
        if many > 0:
            counts = tl.zeros([BINS], tl.int32)
            for i in range(0, many, TILE):
                lane = i + tl.arange(0, TILE)
                key = _tile(here, start + lane, lane < many, known, listed)[1]
                alike = (lane < many) & (key >> (shift + width) == prefix >> (shift + width))
                digit = tl.where(alike, (key >> shift) & ((1 << width) - 1), 0)
                counts += tl.histogram(digit.to(tl.int32), BINS)
                others = tl.sum((alike == 0).to(tl.int32))
                counts -= tl.where(tl.arange(0, BINS) == 0, others, 0)
            to = bins + tl.arange(0, BINS)
            tl.atomic_add(to, counts.to(bins.dtype.element_ty), mask=counts > 0, sem="relaxed")
        # The barrier lets the release speak for every thread.
        tl.debug_barrier()
        if tl.atomic_add(counters + s, 1) == programs - 1:
            digit, above = _boundary(bins, need, BINS)
            tl.store(state + 2 * row + s, prefix | (digit << shift))
            tl.store(state + row + s, need - above)
            tl.store(counters + s, 0)


@kernel
def settle(  # type: ignore[no-untyped-def]
    x, counters, plan, hits, programs, owner, state, before, table, segments, listed,
    TILE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Each program counts its keys above the k-th largest and equal to it; the last says how many come before."""
    program, row = tl.program_id(0), segments + 1
    s = tl.load(owner + program)
    here, mine = x + tl.load(table + 3 * row + s), listed + tl.load(state + 6 * row + s)
    last = tl.load(state + 2 * row + s)
    start, many, known, _ = _share(program, s, state, before, table, segments, TILE)
    above, equal = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
    for i in range(0, many, TILE):
        lane = i + tl.arange(0, TILE)
        key = _tile(here, start + lane, lane < many, known, mine)[1]
        above += ((lane < many) & (key > last)).to(tl.int32)
        equal += ((lane < many) & (key == last)).to(tl.int32)
    tl.store(hits + program, tl.sum(above))
    tl.store(hits + programs + program, tl.sum(equal))
    tl.debug_barrier()
    if tl.atomic_add(counters, 1) == programs - 1:
        wide, ties = tl.arange(0, WIDE), plan + programs + 1
        count_before(hits + programs, ties, programs, WIDE)
        to = tl.cast(0, tl.int64)
        for i in range(0, programs, WIDE):
            inside = i + wide < programs
            q = tl.load(owner + i + wide, mask=inside, other=0)
            leader = tl.load(state + 7 * row + q, mask=inside, other=0)
            left = tl.load(state + row + q, mask=inside, other=0)
            left -= tl.load(ties + i + wide, mask=inside, other=0, cache_modifier=".cg")
            left += tl.load(ties + leader, mask=inside, other=0, cache_modifier=".cg")
            n = tl.load(hits + programs + i + wide, mask=inside, other=0, cache_modifier=".cg").to(tl.int64)
            n = tl.minimum(tl.maximum(left, 0), n)
            n += tl.load(hits + i + wide, mask=inside, other=0, cache_modifier=".cg")
            tl.store(plan + i + wide, to + tl.cumsum(n, 0) - n, mask=inside)
            to += tl.sum(n)
        tl.store(plan + programs, to)
        tl.store(counters, 0)


@kernel
def pick(  # type: ignore[no-untyped-def]
    x, plan, positions, values, programs, owner, state, before, table, segments, listed, TILE: tl.constexpr
):
    """Each program takes its keys above the k-th largest, and of those equal to it the first that are left."""
    program, row = tl.program_id(0), segments + 1
    to = tl.load(plan + program)
    if tl.load(plan + program + 1) > to:
        s = tl.load(owner + program)
        here, mine = tl.load(table + 3 * row + s), listed + tl.load(state + 6 * row + s)
        last = tl.load(state + 2 * row + s)
        ties = plan + programs + 1
        left = tl.load(state + row + s)
        left -= tl.load(ties + program) - tl.load(ties + tl.load(state + 7 * row + s))
        start, many, known, _ = _share(program, s, state, before, table, segments, TILE)
        for i in range(0, many, TILE):
            lane = i + tl.arange(0, TILE)
            at, key = _tile(x + here, start + lane, lane < many, known, mine)
            at += here
            equal = ((lane < many) & (key == last)).to(tl.int32)
            taken = (lane < many) & ((key > last) | ((equal > 0) & (tl.cumsum(equal, 0) <= left)))
            rank = tl.cumsum(taken.to(tl.int32), 0)
            tl.store(values + to + rank - 1, tl.load(x + at, mask=taken, other=0), mask=taken)
            tl.store(positions + to + rank - 1, at, mask=taken)
            tl.store(x + at, tl.zeros_like(at).to(x.dtype.element_ty), mask=taken)
            left -= tl.sum(equal)
            to += tl.sum(taken.to(tl.int32))
