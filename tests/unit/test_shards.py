"""Ranges of entries: they have all there is, follow what ranks choose, and share their room out fairly."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.compressors import Dense, RandomK, TopK
from laconic.exchanges.adding import quotas
from laconic.segments import Segments
from laconic.shards import Cut, first_cut, next_cut, shards_of
from laconic.types import Compressor


def _plan(compressor: Compressor, segments: Segments):
    return compressor.plan(segments, step=0, rooms={})


def _one(numel: int) -> Segments:
    return Segments.of(["w"], [numel])


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=6),
    st.integers(1, 9),
    st.sampled_from(
        [TopK(density=0.1, whole_below=50), TopK(density=0.7, whole_below=0), Dense(), RandomK(density=0.2)]
    ),
    st.lists(st.integers(0, 1000), min_size=9, max_size=9),
)
def test_ranges_lie_side_by_side_and_have_all_there_is(sizes, ranks, compressor, demand):
    segments = Segments.of([f"p{i}" for i in range(len(sizes))], sizes)
    plan = _plan(compressor, segments)
    first = first_cut(plan, ranks=ranks, numel=segments.numel, value_bits=8)
    for cut in (first, next_cut(first, plan, demand[:ranks], value_bits=8)):
        assert Cut.read(cut.kept(), ranks, segments.numel) == cut
        assert cut.bounds[0] == 0
        assert cut.bounds[-1] == segments.numel
        assert list(cut.bounds) == sorted(cut.bounds)
        shards = shards_of(plan, cut)
        pieces = [at for shard in shards for piece in shard.part.pieces for at in piece]
        assert pieces == [s.offset + i for s in plan.choosing for i in range(s.size)]
        assert sum(shard.part.known for shard in shards) == plan.known_count
        assert [shard.known.stop for shard in shards][-1] == plan.known_count
        assert [i for shard in shards for i in range(shard.told.start, shard.told.stop)] == list(
            range(len(plan.choosing))
        )
        for shard in shards:
            there = sum(map(len, shard.part.pieces))
            assert min(1, there) <= shard.result.room <= shard.part.room <= there
        # Where every rank sends all there is room for everything.
        if plan.capacity == segments.numel:
            assert sum(shard.part.room for shard in shards) == segments.numel or cut is not first


def test_ranges_have_equally_many_bytes_by_the_plan():
    plan = _plan(TopK(density=0.1, whole_below=100), Segments.of(["w", "b", "v"], [60_000, 99, 30_000]))
    for ranks in (2, 3, 7):
        cut = first_cut(plan, ranks=ranks, numel=90_099, value_bits=32)
        assert max(cut.shares) <= 1.1 * min(cut.shares)
    even = first_cut(_plan(Dense(), _one(700)), ranks=7, numel=700, value_bits=32)
    assert even.bounds == (0, 100, 200, 300, 400, 500, 600, 700)


def test_ranges_follow_what_ranks_choose_and_stay_while_that_fits():
    plan = _plan(TopK(density=0.1, whole_below=0), _one(1000))
    cut = first_cut(plan, ranks=4, numel=1000, value_bits=32)
    assert cut.holds([100] * 4, plan.capacity)
    assert not cut.holds([400, 0, 0, 0], plan.capacity)
    for _ in range(6):
        # All that is chosen lies in the first 40 entries.
        demand = [10 * sum(1 for at in range(40) if low <= at < high) for low, high in pairwise(cut.bounds)]
        if cut.holds(demand, plan.capacity):
            break
        cut = next_cut(cut, plan, demand, value_bits=32)
    assert cut.holds(demand, plan.capacity)
    assert cut.bounds[3] <= 40


def test_a_cut_of_another_vector_is_not_used():
    kept = Cut(bounds=(0, 3, 9), shares=(1, 2)).kept()
    assert Cut.read(kept, 2, 9) == Cut(bounds=(0, 3, 9), shares=(1, 2))
    assert [Cut.read(kept, ranks, numel) for ranks, numel in ((2, 8), (3, 9), (1, 9))] == [None] * 3
    assert Cut.read(torch.tensor([0, 10, 9, 1, 2]), 2, 9) is None
    assert Cut.read(None, 2, 9) is None


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=6), st.integers(0, 300))
def test_quotas_use_the_room_and_nothing_that_is_not_there(pairs, room):
    there = [min(a, b) for a, b in pairs]
    came = [max(a, b) for a, b in pairs]
    given_ = quotas(came, there, room)
    assert sum(given_) == min(room, sum(there))
    assert all(0 <= n <= most for n, most in zip(given_, there, strict=True))
    # In proportion: who gets less than its share has all it had.
    for n, most, c in zip(given_, there, came, strict=True):
        assert n == most or n >= room * c // sum(came)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 30))
def test_over_many_turns_each_has_its_share(came, room):
    turns, there = 400, [1000] * len(came)
    total = [sum(n) for n in zip(*(quotas(came, there, room, turn=turn) for turn in range(turns)), strict=True)]
    for n, c in zip(total, came, strict=True):
        assert abs(n / turns - room * c / sum(came)) < 0.05
