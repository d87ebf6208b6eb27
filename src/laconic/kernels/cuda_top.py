"""Take the largest entries, on CUDA, exactly and without asking the host.

A sample tells an edge that, as good as surely, enough entries reach. One pass notes those that do, and they are
listed: the candidates. Rounds of histograms over them find the k-th largest magnitude, and the rest is counting.
"""

# ruff: noqa: N803 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import torch
import triton.language as tl
from torch import Tensor

from laconic.kernels.cuda_candidates import DIGIT, ROUNDS, TILE, narrow, pick, settle
from laconic.kernels.cuda_layout import BLOCK, GROUP, Layout, counters_of, cut_up, device_of, kernel, layout_of
from laconic.kernels.cuda_marks import PART, keys_of, lowest, mark, marked
from laconic.kernels.reference import Taken
from laconic.segments import Segments

# Entries that a program has to look at, at most, where there is no list.
_REACH = 1 << 16
# Entries of a sample, as a power of two; of the key at the edge of it so many bits are found.
_SAMPLE, _FINE = 13, 20


def take_top_(x: Tensor, segments: Segments, counts: Sequence[int]) -> Taken:
    """Do what ``reference.take_top_`` does. NaN counts as larger than infinity."""
    cut = layout_of(x.device, segments)
    kept = tuple(map(min, counts, cut.sizes))
    room, double = sum(kept), x.dtype == torch.float64
    positions, values = x.new_empty(room, dtype=torch.int64), x.new_empty(room)
    if not room:
        return Taken(positions=positions, values=values, wanted=x.new_zeros(cut.count, dtype=torch.int64))
    asked = _asked(x.device, cut, kept, (1 << (63 if double else 31)) - 1)
    state, rounds = asked.state.clone(), ROUNDS[x.dtype]
    wide = torch.int64 if segments.numel >= 1 << 31 else torch.int32
    bins = x.new_zeros((len(rounds), cut.count << DIGIT), dtype=wide)
    listed = x.new_empty(asked.capacity, dtype=torch.int64)
    hits = x.new_empty(2 * asked.programs, dtype=torch.int32)
    plan = x.new_empty(2 * (asked.programs + 1), dtype=torch.int64)
    counters = counters_of(x.device, cut.count)
    with device_of(x):
        _sample[(cut.count,)](
            x, state, cut.table, cut.count,
            TOP=62 if double else 30, FINE=_FINE, SAMPLE=_SAMPLE, num_warps=8,
        )  # fmt: skip
        notes = mark(x, cut, state[3])
        found = (state, notes.before, cut.table, cut.count, listed)
        _list[(cut.groups * (GROUP // PART),)](
            *notes.all, state, cut.group_owner, cut.table, cut.count, listed,
            BLOCK=BLOCK, GROUP=GROUP, PART=PART, num_warps=4,
        )  # fmt: skip
        for i, shift in enumerate(rounds):
            width = (rounds[i - 1] if i else shift + DIGIT) - shift
            narrow[(asked.programs,)](
                x, bins[i], counters, asked.owner, *found, shift, width, DIGIT=DIGIT, TILE=TILE, num_warps=4
            )
        settle[(asked.programs,)](
            x, counters, plan, hits, asked.programs, asked.owner, *found, TILE=TILE, WIDE=TILE, num_warps=4
        )
        pick[(asked.programs,)](
            x, plan, positions, values, asked.programs, asked.owner, *found, TILE=TILE, num_warps=4
        )
    return Taken(positions=positions, values=values, wanted=state[0, : cut.count])


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked of each segment.

    ``owner`` names the segment of each program that looks at candidates. The rows of ``state`` are one longer than
    there are segments: count, entries still to find, key so far, edge of the sample, the sample's target, room in
    the list, its beginning there, and its first program.
    """

    state: Tensor
    owner: Tensor
    programs: int
    capacity: int


@lru_cache(maxsize=256)
def _asked(device: torch.device, cut: Layout, kept: tuple[int, ...], last: int) -> _Asked:
    """A segment that gives all has the key -1, one that gives nothing the last: no round need look at them."""
    columns, shares = [], []
    for size, count in zip(cut.sizes, kept, strict=True):
        if 0 < count < size:
            # A sample of all is exact; of others more is asked than their share, so that they seldom fall short.
            share = (count << _SAMPLE) // size
            target = count if size <= 1 << _SAMPLE else share + 4 * isqrt(share) + 4
            expected = count if size <= 1 << _SAMPLE else (target * size) >> _SAMPLE
            columns.append((count, count, 0, 0, target, min(size, 2 * expected + TILE)))
        else:
            columns.append((count, 0, -1 if count else last, 0 if count else last, 0, count))
        shares.append(max(1, -(-columns[-1][5] // TILE), -(-size // _REACH)))
    owner, first = cut_up(shares)
    begins = [0, *torch.tensor([column[5] for column in columns]).cumsum(0).tolist()]
    rows = [*([*row, 0] for row in zip(*columns, strict=True)), begins, first]
    return _Asked(
        state=torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True),
        owner=owner.to(device, non_blocking=True),
        programs=len(owner),
        capacity=begins[-1],
    )


@kernel
def _sample(  # type: ignore[no-untyped-def]
    x, state, table, segments, TOP: tl.constexpr, FINE: tl.constexpr, SAMPLE: tl.constexpr
):
    """Find the upper bits of the largest key that ``target`` entries of a sample reach.

    One entry of each stretch is looked at, at a place that never repeats: a fixed stride would see few columns of a
    matrix.
    """
    s, row = tl.program_id(0), segments + 1
    target = tl.load(state + 4 * row + s)
    if target > 0:
        size, here = tl.load(table + row + s), x + tl.load(table + 3 * row + s)
        i = tl.arange(0, 1 << SAMPLE).to(tl.int64)
        at = i
        if size > 1 << SAMPLE:
            # Multiples of the golden ratio, less what is whole of them, lie evenly between 0 and 1.
            at = ((i * size) >> SAMPLE) + ((((i * 40503) & 0xFFFF) * (size >> SAMPLE)) >> 16)
        key = keys_of(here + at, at < size)
        key = tl.where(at < size, key, -1)
        edge = (target * 0).to(key.dtype)
        for lower in range(FINE):
            trial = edge | ((target * 0 + 1) << (TOP - lower)).to(key.dtype)
            edge = tl.where(tl.sum((key >= trial).to(tl.int32)) >= target, trial, edge)
        tl.store(state + 3 * row + s, edge.to(tl.int64))


@kernel
def _list(  # type: ignore[no-untyped-def]
    words, counts, before, state, owner, table, segments, listed,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """List where the candidates are, in their order, as far as there is room."""
    program, row = tl.program_id(0), segments + 1
    s, bits, at, rank, most = marked(program, words, counts, before, owner, table, segments, BLOCK, GROUP, PART)
    room, to = tl.load(state + 5 * row + s), listed + tl.load(state + 6 * row + s)
    for _ in range(most):
        tl.store(to + rank, at + lowest(bits), mask=(bits != 0) & (rank < room))
        bits = bits & (bits - 1)
        rank += 1
