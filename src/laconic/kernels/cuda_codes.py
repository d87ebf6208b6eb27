"""The coding kernels that Triton compiles. Bits lie in 64-bit words, the lowest first."""

# ruff: noqa: N803 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

import triton
import triton.language as tl

from laconic import coding
from laconic.kernels.cuda_layout import kernel

# A kernel may look at a number outside only where it is said to be constant.
_OFFSET, _SIZE, _ROOM = tl.constexpr(coding.OFFSET), tl.constexpr(coding.SIZE), tl.constexpr(coding.ROOM)
_WIDTH, _UPPER, _LOWER = tl.constexpr(coding.WIDTH), tl.constexpr(coding.UPPER), tl.constexpr(coding.LOWER)
_COLUMNS = tl.constexpr(6)


@kernel
def encode(  # type: ignore[no-untyped-def]
    positions, ends, upper, lower, rows, owner, first, count, TILE: tl.constexpr
):
    """Set the bits of a tile of a segment's positions. What is not as promised is left out."""
    tile = tl.program_id(0)
    s = tl.load(owner + tile)
    row = rows + s * _COLUMNS
    begin, end = _span(ends, s)
    held = end - begin
    # A count beyond the room, or beyond all there is, is none at all.
    held = tl.where((begin >= 0) & (end <= count) & (held <= tl.load(row + _ROOM)), held, 0)
    i = (tile - tl.load(first + s)) * TILE + tl.arange(0, TILE)
    inside = i < held
    y = tl.load(positions + begin + i, mask=inside, other=0).to(tl.int64) - tl.load(row + _OFFSET) - i
    # Such a bit lies within the segment's upper part.
    inside = inside & (y >= 0) & (y <= tl.load(row + _SIZE) - held)
    width = tl.load(row + _WIDTH)
    bit = tl.load(row + _UPPER) + (y >> width) + i
    tl.atomic_or(upper + (bit >> 6), _one() << (bit & 63), mask=inside, sem="relaxed")
    if width > 0:
        at = tl.load(row + _LOWER) + i * width
        shift, low, word = at & 63, y & ((_one() << width) - 1), lower + (at >> 6)
        tl.atomic_or(word, low << shift, mask=inside, sem="relaxed")
        # A shift by all 64 bits is none that a machine knows.
        tl.atomic_or(word + 1, low >> ((64 - shift) & 63), mask=inside & (shift + width > 64), sem="relaxed")


@kernel
def count_ones(words, counts, bad, rows, owner, first, stride, tiles, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write how many bits of a tile of a segment's upper part are set; counts begin with a zero, so do flags."""
    tile, rank = tl.program_id(0), tl.program_id(1).to(tl.int64)
    s = tl.load(owner + tile)
    bit = tl.load(rows + s * _COLUMNS + _UPPER) + (tile - tl.load(first + s)) * TILE + tl.arange(0, TILE)
    inside = bit < tl.load(rows + (s + 1) * _COLUMNS + _UPPER)
    here = counts + rank * (tiles + 1)
    tl.store(here + tile + 1, tl.sum(_bit(words + rank * stride, bit, inside)))
    if tile == 0:
        tl.store(here, tl.cast(0, tl.int64))
        tl.store(bad + rank, 0)


@kernel
def decode(  # type: ignore[no-untyped-def]
    words, before, begins, out, bad, rows, owner, first, stride, split, tiles, segments, TILE: tl.constexpr
):
    """Write the positions whose bits lie in a tile, and flag a rank whose positions are not as promised.

    The i-th bit that is set stands for entry i. What a segment says it has bounds all that is read and written.
    """
    tile, rank = tl.program_id(0), tl.program_id(1).to(tl.int64)
    s = tl.load(owner + tile)
    row, lead = rows + s * _COLUMNS, tl.load(first + s)
    words += rank * stride
    before += rank * (tiles + 1)
    begins += rank * (segments + 1) + s
    begin, width, start = tl.load(begins), tl.load(row + _WIDTH), tl.load(row + _UPPER)
    held = tl.load(begins + 1) - begin
    passed = tl.load(before + lead)
    found = tl.load(before + tl.load(first + s + 1)) - passed
    bit = start + (tile - lead) * TILE + tl.arange(0, TILE)
    inside = bit < tl.load(row + _COLUMNS + _UPPER)
    one = _bit(words, bit, inside)
    i = tl.load(before + tile) - passed + tl.cumsum(one, 0) - one
    mine = (one == 1) & (i < held)
    at = tl.load(row + _LOWER) + i * width
    low = _field(words + split, at, width, mine)
    y = ((bit - start - i) << width) + low
    # Upper parts never fall; where two are equal, their bits are neighbours and the lower parts decide.
    twin = _bit(words, bit - 1, mine & (bit > start)) == 1
    falls = twin & (_field(words + split, at - width, width, twin) > low)
    tl.store(out + begin + i, y + i + tl.load(row + _OFFSET), mask=mine)
    wrong = falls | (mine & (y > tl.load(row + _SIZE) - held))
    if (tl.max(wrong.to(tl.int32)) > 0) | (found != held):
        tl.store(bad + rank, 1)


@kernel
def statistics(  # type: ignore[no-untyped-def]
    values, ends, parts, out, counters, count, PARTS: tl.constexpr, TILE: tl.constexpr
):
    """Add up a share of a span's values; the program that is last adds up the shares, in their order.

    Which value is in which share and lane depends on the span alone, whatever lies beside it.
    """
    s, part = tl.program_id(0), tl.program_id(1)
    shares = tl.num_programs(1)
    begin, end = _span(ends, s)
    begin, end = tl.maximum(begin, 0), tl.minimum(end, count)
    zeros = tl.zeros([TILE], tl.float64)
    least, largest, magnitudes = zeros + float("inf"), zeros, zeros
    squares, total, below, negative = zeros, zeros, zeros, zeros
    for i in range(begin + part * TILE, end, PARTS * TILE):
        inside = i + tl.arange(0, TILE) < end
        v = tl.load(values + i + tl.arange(0, TILE), mask=inside, other=0)
        if v.dtype.primitive_bitwidth < 32:
            v = v.to(tl.float32)
        v = v.to(tl.float64)
        size = tl.abs(v)
        least = tl.minimum(least, tl.where(inside, size, float("inf")))
        largest = tl.maximum(largest, size)
        magnitudes += size
        squares += v * v
        total += v
        below += tl.where(v < 0, v, 0.0)
        negative += tl.where(v < 0, 1.0, 0.0)
    here = parts + s.to(tl.int64) * 7 * PARTS
    tl.store(here + part, tl.min(least))
    tl.store(here + PARTS + part, tl.max(largest))
    tl.store(here + 2 * PARTS + part, tl.sum(magnitudes))
    tl.store(here + 3 * PARTS + part, tl.sum(squares))
    tl.store(here + 4 * PARTS + part, tl.sum(total))
    tl.store(here + 5 * PARTS + part, tl.sum(below))
    tl.store(here + 6 * PARTS + part, tl.sum(negative))
    # All threads must have stored before one of them says so.
    tl.debug_barrier()
    if tl.atomic_add(counters + s, 1) == shares - 1:
        row = out + s.to(tl.int64) * 8
        each = tl.arange(0, PARTS)
        # A sum of magnitudes is no number if one of them is none: it stands for what comparisons overlook.
        sum_of = tl.sum(tl.load(here + 2 * PARTS + each, mask=each < shares, other=0, cache_modifier=".cg"))
        low = tl.min(tl.load(here + each, mask=each < shares, other=float("inf"), cache_modifier=".cg"))
        high = tl.max(tl.load(here + PARTS + each, mask=each < shares, other=0, cache_modifier=".cg"))
        tl.store(row, tl.where(sum_of != sum_of, sum_of, low))
        tl.store(row + 1, tl.where(sum_of != sum_of, sum_of, high))
        tl.store(row + 2, sum_of)
        for column in tl.static_range(3, 7):
            share = tl.load(here + column * PARTS + each, mask=each < shares, other=0, cache_modifier=".cg")
            tl.store(row + column, tl.sum(share))
        tl.store(row + 7, tl.maximum(end - begin, 0).to(tl.float64))
        tl.store(counters + s, 0)


@kernel
def quantise(  # type: ignore[no-untyped-def]
    values, ends, numbers, codes, count, spans, halvings, most, salts, CHANCE: tl.constexpr, TILE: tl.constexpr
):
    """Write the code of each value of a tile, in the roundings of the definition."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    s = _owner(ends, spans, halvings, i)
    inside = (i < count) & (s < spans)
    v = tl.load(values + i, mask=inside, other=0)
    low = tl.load(numbers + 2 * s, mask=inside, other=0)
    step = tl.load(numbers + 2 * s + 1, mask=inside, other=1)
    # A plain division of 32 bits is only nearly right.
    if v.dtype == tl.float32:  # noqa: SIM108
        at = tl.div_rn(tl.abs(v) - low, step)
    else:
        at = (tl.abs(v) - low) / step
    if CHANCE:
        place = i - tl.load(ends + s - 1, mask=inside & (s > 0), other=0)
        h = _mixed(_mixed(place.to(tl.uint32)) ^ tl.load(salts + s, mask=inside, other=0).to(tl.uint32)) >> 8
        at += (h.to(tl.int32).to(tl.float32) * 5.9604644775390625e-08).to(v.dtype)
    else:
        at += 0.5
    at = tl.floor(at)
    # What is no number compares as false, and has magnitude 0.
    magnitude = tl.where(at >= most, most, tl.where((at > 0) & (at < most), at, 0).to(tl.int32))
    code = magnitude + tl.where(v < 0, most + 1, 0)
    tl.store(codes + i, tl.where(inside, code, 0).to(tl.uint8), mask=i < count)


@kernel
def dequantise(  # type: ignore[no-untyped-def]
    codes, ends, numbers, out, count, spans, halvings, each, half, TABLE: tl.constexpr, TILE: tl.constexpr
):
    """Write what each code of a tile stands for, a span having so many numbers."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    s = _owner(ends, spans, halvings, i)
    inside = (i < count) & (s < spans)
    code = tl.load(codes + i, mask=i < count, other=0).to(tl.int32)
    if TABLE:
        value = tl.load(numbers + s * each + code, mask=inside & (code < each), other=0)
    else:
        low, step = (
            tl.load(numbers + 2 * s, mask=inside, other=0),
            tl.load(numbers + 2 * s + 1, mask=inside, other=0),
        )
        value = low + step * (code & (half - 1)).to(low.dtype)
        value = tl.where(code < half, value, -value)
    tl.store(out + i, value, mask=i < count)


@triton.jit
def _one():  # type: ignore[no-untyped-def]
    """One, to be moved up to any place of a word."""
    return tl.cast(1, tl.int64)


@triton.jit
def _span(ends, s):  # type: ignore[no-untyped-def]
    """Where a span begins and ends."""
    return tl.load(ends + s - 1, mask=s > 0, other=0).to(tl.int64), tl.load(ends + s).to(tl.int64)


@triton.jit
def _owner(ends, spans, halvings, i):  # type: ignore[no-untyped-def]
    """The span of each entry: how many ends are not above it. Each halving leaves half of those in question."""
    low = tl.zeros_like(i)
    high = low + spans
    for _ in range(halvings):
        middle = (low + high) >> 1
        open_still = low < high
        reached = open_still & (tl.load(ends + middle, mask=open_still, other=0) <= i)
        high = tl.where(reached, high, middle)
        low = tl.where(reached, middle + 1, low)
    return low


@triton.jit
def _bit(words, at, inside):  # type: ignore[no-untyped-def]
    """The bit at each place, zero where that is not inside."""
    return ((tl.load(words + (at >> 6), mask=inside, other=0) >> (at & 63)) & 1).to(tl.int32)


@triton.jit
def _field(words, at, width, inside):  # type: ignore[no-untyped-def]
    """The number of so many bits, fewer than 64, at each place."""
    shift, word = at & 63, words + (at >> 6)
    # A number of no bits may lie behind the last word.
    first = tl.load(word, mask=inside & (at + width > at), other=0).to(tl.uint64, bitcast=True)
    beyond = shift + width > 64
    second = tl.load(word + 1, mask=inside & beyond, other=0)
    both = (first >> shift.to(tl.uint64)).to(tl.int64, bitcast=True)
    # A shift by all 64 bits is none that a machine knows.
    both = both | tl.where(beyond, second << ((64 - shift) & 63), 0)
    return both & ((_one() << width) - 1)


@triton.jit
def _mixed(h):  # type: ignore[no-untyped-def]
    # The last steps of MurmurHash3, in 32 bits.
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)
