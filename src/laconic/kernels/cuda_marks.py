"""One pass that notes, in a bit each, which entries pass, and what comes before each group of blocks."""

# ruff: noqa: N803, N806 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.cuda_layout import (
    BLOCK,
    GROUP,
    Layout,
    align_of,
    bits_of,
    count_before,
    counters_of,
    device_of,
    kernel,
    placed,
)

# How many partial results the last program looks at together; segments it looks at together.
_WIDE, _TILE = 2048, 256
# Blocks whose marks a program reads later; it divides a group.
PART = 4
KEYS = {torch.float64: tl.int64, torch.float32: tl.int32, torch.float16: tl.int16, torch.bfloat16: tl.int16}


@dataclass(frozen=True)
class Marks:
    """A bit for each entry that passed, how many did in each block, and how many before each group."""

    words: Tensor
    counts: Tensor
    before: Tensor

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return them as arguments of a kernel."""
        return self.words, self.counts, self.before


@dataclass(frozen=True, kw_only=True)
class Above:
    """What is asked of a segment whose entries are taken above a threshold, and where it is answered.

    ``rooms`` and the ``largest`` magnitudes as ``take_above_`` has them; ``begin``: the share of each segment that
    lies before the place to begin at. Four rows of ``plan``, one longer than there are segments, will say who is
    taken: early, early taken, late taken, first place.
    """

    rooms: Tensor
    largest: Tensor | None
    begin: float
    plan: Tensor
    wanted: Tensor


def mark(x: Tensor, cut: Layout, levels: Tensor, above: Above | None = None) -> Marks:
    """Note the entries above their segment's level; where ``above`` is not given, those that reach it as a key."""
    words = x.new_empty(cut.blocks * (BLOCK // 32), dtype=torch.int32)
    counts = x.new_empty(cut.blocks + cut.groups, dtype=torch.int32)
    before = x.new_empty(cut.groups + 1, dtype=torch.int64)
    # What is absent is never looked at; something must be given all the same.
    asked = above or Above(rooms=before, largest=None, begin=0.0, plan=before, wanted=before)
    largest = levels if asked.largest is None else asked.largest
    with device_of(x):
        _mark[(cut.blocks,)](
            x, levels, words, counts, before, largest, asked.rooms, asked.plan, asked.wanted, cut.owner, cut.table,
            # The sign makes it a number of 64 bits even where it is zero: one type, one compilation.
            counters_of(x.device, 1 + cut.groups), cut.count, cut.blocks, cut.groups, bits_of(-asked.begin),
            ABOVE=above is not None, ALONE=asked.largest is not None, KEY=KEYS[x.dtype], ALIGN=align_of(cut, x),
            BLOCK=BLOCK, GROUP=GROUP, TILE=_TILE, WIDE=_WIDE, num_warps=8,
        )  # fmt: skip
    return Marks(words, counts, before)


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


@triton.jit
def _ones(bits):  # type: ignore[no-untyped-def]
    """How many bits of each 32 are set."""
    pairs = bits - ((bits >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return ((((fours + (fours >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF


@triton.jit
def _begin(size, share):  # type: ignore[no-untyped-def]
    """Where in a segment to begin; ``share`` has the bits of minus the share that lies before that place."""
    at = (-share.to(tl.int64).to(tl.float64, bitcast=True) * size.to(tl.float64)).to(tl.int64)
    # A place behind the last entry, should rounding ever give one, takes in the same order as the first.
    return tl.where(at < size, at, 0)


@kernel
def _mark(  # type: ignore[no-untyped-def]
    x, levels, words, counts, before, largest, rooms, plan, wanted, owner, table, counters,
    segments, blocks, groups, share,
    ABOVE: tl.constexpr, ALONE: tl.constexpr, KEY: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Each block notes what it found; a group's last block sums, and the last of all says what is before each."""
    WORDS: tl.constexpr = BLOCK // 32
    block, row = tl.program_id(0), segments + 1
    s = tl.load(owner + block)
    first, size = tl.load(table + s), tl.load(table + row + s)
    start = (block - first) * BLOCK
    here = placed(x, start + tl.load(table + 3 * row + s), ALIGN)
    rest = tl.multiple_of(tl.minimum(size - start, BLOCK).to(tl.int32), ALIGN)
    word, bit = tl.arange(0, WORDS), tl.arange(0, 32)
    lane = word[:, None] * 32 + bit[None, :]
    if ABOVE:
        passed = _passes(here + lane, _level(levels, largest, s, True, ALONE, KEY)[0], lane < rest)
    else:
        passed = (lane < rest) & (keys_of(here + lane, lane < rest) >= tl.load(levels + s))
    bits = tl.sum(passed.to(tl.int32) << bit[None, :], 1)
    tl.store(words + block.to(tl.int64) * WORDS + word, bits)
    tl.store(counts + block, tl.sum(_ones(bits)))
    lead = (block - first) // GROUP * GROUP
    group = tl.load(table + 2 * row + s) + lead // GROUP
    among = tl.minimum(tl.load(table + s + 1) - first - lead, GROUP)
    # All threads must have stored before one of them says so.
    tl.debug_barrier()
    if tl.atomic_add(counters + 1 + group, 1) == among - 1:
        each = tl.arange(0, GROUP)
        n = tl.load(counts + first + lead + each, mask=each < among, other=0, cache_modifier=".cg")
        tl.store(counts + blocks + group, tl.sum(n))
        tl.store(counters + 1 + group, 0)
        if ABOVE:
            # How many come before the place to begin at, of those in its group.
            begin = _begin(size, share)
            inside = begin // BLOCK - lead
            if (inside >= 0) & (inside < GROUP):
                bits = tl.load(words + (first + begin // BLOCK) * WORDS + word, cache_modifier=".cg")
                ahead = tl.minimum(tl.maximum((begin % BLOCK).to(tl.int32) - word * 32, 0), 32)
                bits = tl.where(ahead == 32, bits, bits & ((1 << (ahead & 31)) - 1))
                tl.store(plan + s, tl.sum(_ones(bits)) + tl.sum(tl.where(each < inside, n, 0)))
        tl.debug_barrier()
        if tl.atomic_add(counters, 1) == groups - 1:
            count_before(counts + blocks, before, groups, WIDE)
            tl.store(counters, 0)
            if ABOVE:
                _settle(levels, largest, before, rooms, plan, wanted, table, segments, share,
                        ALONE, KEY, BLOCK * GROUP, TILE)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _settle(  # type: ignore[no-untyped-def]
    levels, largest, before, rooms, plan, wanted, table, segments, share,
    ALONE: tl.constexpr, KEY: tl.constexpr, REACH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Say who is taken.

    Of a segment that found f, e of them before the place to begin at: taken t = min(room, f), of these late
    l = min(f - e, t), early t - l.
    """
    row, place = segments + 1, tl.cast(0, tl.int64)
    for i in range(0, segments, TILE):
        s = i + tl.arange(0, TILE)
        more = s < segments
        begins = tl.load(table + 2 * row + s, mask=more, other=0)
        ends = tl.load(table + 2 * row + s + 1, mask=more, other=0)
        base = tl.load(before + begins, mask=more, other=0, cache_modifier=".cg")
        found = tl.load(before + ends, mask=more, other=0, cache_modifier=".cg") - base
        turned = begins + _begin(tl.load(table + row + s, mask=more, other=0), share) // REACH
        early = tl.load(before + turned, mask=more, other=0, cache_modifier=".cg") - base
        early += tl.load(plan + s, mask=more, other=0, cache_modifier=".cg")
        alone = _level(levels, largest, s, more, ALONE, KEY)[1]
        want = tl.where(alone, tl.minimum(found, 1), found)
        taken = tl.minimum(tl.load(rooms + s, mask=more, other=0), want)
        late = tl.minimum(found - early, taken)
        tl.store(wanted + s, want, mask=more)
        tl.store(plan + s, early, mask=more)
        tl.store(plan + row + s, taken - late, mask=more)
        tl.store(plan + 2 * row + s, late, mask=more)
        tl.store(plan + 3 * row + s, place + tl.cumsum(taken, 0) - taken, mask=more)
        place += tl.sum(taken)
    tl.store(plan + 3 * row + segments, place)


@triton.jit  # type: ignore[untyped-decorator]
def marked(  # type: ignore[no-untyped-def]
    program, words, counts, before, owner, table, segments,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Of a part of a group: its segment, its words, where in the segment each begins and its first one's rank."""
    WORDS: tl.constexpr = BLOCK // 32
    group, skipped = program // (GROUP // PART), program % (GROUP // PART) * PART
    s = tl.load(owner + group)
    first, first_group = tl.load(table + s), tl.load(table + 2 * (segments + 1) + s)
    lead = (group - first_group) * GROUP
    blocks = tl.load(table + s + 1) - first - lead
    each = tl.arange(0, GROUP)
    rank = tl.load(before + group) - tl.load(before + first_group)
    rank += tl.sum(tl.load(counts + first + lead + each, mask=each < tl.minimum(skipped, blocks), other=0))
    at = tl.arange(0, PART * WORDS)
    here = placed(words, (first + lead + skipped) * WORDS, 4)
    bits = tl.load(here + at, mask=at < (blocks - skipped) * WORDS, other=0)
    ones = _ones(bits)
    return s, bits, (lead + skipped) * BLOCK + at * 32, rank + tl.cumsum(ones, 0) - ones, tl.max(ones)


@triton.jit
def lowest(bits):  # type: ignore[no-untyped-def]
    """The place of the lowest bit that is set."""
    return _ones((bits & -bits) - 1)
