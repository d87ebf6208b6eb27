"""Ranges of entries, one a rank, which that rank adds up for all: where they begin, and what there is room for.

Where a range begins follows from numbers that all ranks have seen, and in whole numbers: it is the same everywhere.
It moves the sizes of messages, and never what they mean.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isqrt

import torch
from torch import Tensor

from laconic.coding import best_width, position_bits
from laconic.types import Plan

# How the names begin under which cuts are kept.
CUTS = "shards."
# A fraction of an entry, in whole numbers.
_UNIT = 1 << 20
# Of what is expected, so much goes by the plan, so that no part of the vector is left without room.
_BY_PLAN = 64


@dataclass(frozen=True, kw_only=True)
class Part:
    """A range of entries as it lies in a message: ``room`` for chosen ones, and known ones.

    ``pieces`` are the parts of parameters that are chosen from, ``known_sizes`` the known entries of parameters.
    """

    span: range
    room: int
    known_sizes: tuple[int, ...] = ()
    pieces: tuple[range, ...] = ()

    @property
    def known(self) -> int:
        """How many entries every rank sends."""
        return sum(self.known_sizes)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one rank adds up: the ``part`` that every rank gives it, and the ``result`` that it tells all.

    ``known`` says which of the plan's known entries lie in it, ``told`` which of its segments begin there.
    """

    part: Part
    result: Part
    known: slice
    told: slice


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Range r is ``bounds[r]`` up to ``bounds[r + 1]``; of what is chosen it has ``shares[r]`` of their sum."""

    bounds: tuple[int, ...]
    shares: tuple[int, ...]

    def kept(self) -> Tensor:
        """Return it as a tensor that ``read`` understands."""
        return torch.tensor([*self.bounds, *self.shares], dtype=torch.int64)

    @staticmethod
    def read(kept: Tensor | None, ranks: int, numel: int) -> Cut | None:
        """Return what was kept, if it is a cut of so many entries for so many ranks."""
        numbers: list[int] = [] if kept is None else kept.tolist()
        bounds, shares = tuple(numbers[: ranks + 1]), tuple(numbers[ranks + 1 :])
        fits = len(shares) == ranks and (bounds[0], bounds[-1]) == (0, numel) and min(shares) >= 0
        return Cut(bounds=bounds, shares=shares) if fits and list(bounds) == sorted(bounds) else None

    def rooms(self, capacity: int) -> list[tuple[int, int]]:
        """Return for each range the entries to expect of a rank that chooses so many, and room for a few more.

        >>> Cut(bounds=(0, 10, 20), shares=(3, 1)).rooms(12)
        [(9, 12), (3, 5)]
        """
        total = max(1, sum(self.shares))
        return [_roomy(share * capacity, total, capacity) for share in self.shares]

    def holds(self, demand: Sequence[int], capacity: int) -> bool:
        """Whether what ranks wanted to give to each range, together, had room there."""
        ranks = len(self.shares)
        return all(wanted <= ranks * room for wanted, (_, room) in zip(demand, self.rooms(capacity), strict=True))


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Entries that are alike: so many ``units`` are sent of them, evenly spread, of so many ``bits`` each."""

    begin: int
    end: int
    units: int
    bits: int
    chosen: bool

    @property
    def weight(self) -> int:
        return self.units * self.bits

    def within(self, begin: int, end: int) -> _Run:
        """Return the part of it that lies there."""
        begin, end = max(begin, self.begin), min(end, self.end)
        units = self.units * (end - begin) // (self.end - self.begin)
        return _Run(begin=begin, end=end, units=units, bits=self.bits, chosen=self.chosen)


def first_cut(plan: Plan, *, ranks: int, numel: int, value_bits: int) -> Cut:
    """Return ranges of equally many bytes, as far as the plan tells."""
    return _cut(_runs(plan, value_bits), ranks, numel)


def next_cut(cut: Cut, plan: Plan, demand: Sequence[int], *, value_bits: int) -> Cut:
    """Return ranges of equally many bytes, if as many are chosen of each range of the ``cut`` as ranks just had."""
    parts = [_between(_runs(plan, value_bits), begin, end) for begin, end in pairwise(cut.bounds)]
    planned = [sum(run.units for run in runs if run.chosen) for runs in parts]
    total, wanted = sum(planned), sum(demand)
    if not total or not wanted:
        return cut
    scaled: list[_Run] = []
    for runs, own, here in zip(parts, planned, demand, strict=True):
        for run in runs:
            units = run.units
            if run.chosen:
                # Both shares of the whole: what was wanted here, spread as planned; and the plan's own.
                seen = (_BY_PLAN - 1) * units * here * total // max(1, own * wanted)
                units = (seen + units) // _BY_PLAN
            scaled.append(_Run(begin=run.begin, end=run.end, units=units, bits=run.bits, chosen=run.chosen))
    return _cut(scaled, len(cut.shares), cut.bounds[-1])


def shards_of(plan: Plan, cut: Cut) -> tuple[Shard, ...]:
    """Return what each rank adds up."""
    known = _known_bounds(plan, cut.bounds)
    spans = list(accumulate(plan.known_sizes, initial=0))
    offsets = [s.offset for s in plan.choosing]
    ends = [s.offset + s.size for s in plan.choosing]
    # A segment that begins behind the last entry has none, and is the last range's.
    starts = [0, *(bisect_left(offsets, bound) for bound in cut.bounds[1:-1]), len(offsets)]
    out = []
    for r, (few, room) in enumerate(cut.rooms(plan.capacity)):
        begin, end = cut.bounds[r], cut.bounds[r + 1]
        first, last = bisect_right(ends, begin), bisect_left(offsets, end)
        pieces = tuple(
            range(max(begin, o), min(end, e)) for o, e in zip(offsets[first:last], ends[first:last], strict=True)
        )
        pieces = tuple(piece for piece in pieces if len(piece))
        there, sizes = sum(map(len, pieces)), _overlaps(spans, known[r], known[r + 1])
        parts = [
            Part(span=range(begin, end), room=min(there, most), known_sizes=sizes, pieces=pieces)
            for most in (room, few)
        ]
        told = slice(starts[r], max(starts[r], starts[r + 1]))
        out.append(Shard(part=parts[0], result=parts[1], known=slice(known[r], known[r + 1]), told=told))
    return tuple(out)


def _roomy(share: int, total: int, capacity: int) -> tuple[int, int]:
    """Return c = share / total rounded up, at least one, and c plus its root."""
    few = max(1, -(-share // total))
    most = (share << 16) // total + isqrt((share << 32) // total)
    return min(capacity, few), min(capacity, max(few, -(-most >> 16)))


def _runs(plan: Plan, value_bits: int) -> list[_Run]:
    """Return what is sent by the plan, in the order of entries."""
    runs = []
    for segment, room in zip(plan.choosing, plan.rooms, strict=True):
        if room:
            places = position_bits(segment.size, room, best_width(segment.size, room))
            bits = value_bits + places // room
            end = segment.offset + segment.size
            runs.append(_Run(begin=segment.offset, end=end, units=room * _UNIT, bits=bits, chosen=True))
    for begin, end in pairwise(accumulate(plan.known_sizes, initial=0)):
        if end > begin:
            first, last = _known_at(plan, begin), _known_at(plan, end - 1)
            units = (end - begin) * _UNIT
            runs.append(_Run(begin=first, end=last + 1, units=units, bits=value_bits, chosen=False))
    return sorted(runs, key=lambda run: run.begin)


def _cut(runs: Sequence[_Run], ranks: int, numel: int) -> Cut:
    """Return ranges of equal weight."""
    total, before, bounds = sum(run.weight for run in runs), 0, [0]
    for run in runs:
        while len(bounds) < ranks and (goal := total * len(bounds) // ranks) < before + run.weight:
            bounds.append(run.begin + max(0, goal - before) * (run.end - run.begin) // run.weight)
        before += run.weight
    if not total:
        bounds = [numel * r // ranks for r in range(ranks)]
    bounds += [numel] * (ranks + 1 - len(bounds))
    shares = [sum(run.units for run in _between(runs, begin, end) if run.chosen) for begin, end in pairwise(bounds)]
    return Cut(bounds=tuple(bounds), shares=tuple(shares))


def _between(runs: Sequence[_Run], begin: int, end: int) -> list[_Run]:
    first = bisect_right(runs, begin, key=lambda run: run.end)
    last = bisect_left(runs, end, key=lambda run: run.begin)
    return [run.within(begin, end) for run in runs[first:last]]


def _known_at(plan: Plan, index: int) -> int:
    """Return the position of a known entry."""
    return plan.known.start + index if isinstance(plan.known, slice) else int(plan.known[index])


def _known_bounds(plan: Plan, bounds: Sequence[int]) -> list[int]:
    """Return how many known entries lie before each bound."""
    if isinstance(plan.known, slice):
        return [min(max(bound - plan.known.start, 0), plan.known_count) for bound in bounds]
    found: list[int] = torch.searchsorted(plan.known.cpu(), torch.tensor(bounds)).tolist()
    return found


def _overlaps(edges: Sequence[int], begin: int, end: int) -> tuple[int, ...]:
    """Return how much of each stretch between edges lies within, of those of which anything does."""
    return tuple(size for size in _sizes(edges, begin, end) if size > 0)


def _sizes(edges: Sequence[int], begin: int, end: int) -> Iterator[int]:
    first = max(0, bisect_right(edges, begin) - 1)
    for low, high in pairwise(edges[first : bisect_left(edges, end) + 1]):
        yield min(high, end) - max(low, begin)
