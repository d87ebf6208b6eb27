"""What selecting compressors share, and what is particular to each of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import Flat, known_positions, normal, segments_of, taken_by
from laconic.compressors import RandomK, TopK
from laconic.compressors.selection import counted_plan, kept, positions_of, rows_of, split_small, spread
from laconic.segments import Segments


@given(st.integers(0, 10**7), st.floats(1e-6, 1.0))
def test_a_density_keeps_its_share_to_the_nearest_and_at_least_one_of_any(size, density):
    count = kept(size, density)
    assert min(1, size) <= count <= size
    if size * density >= 1:
        assert abs(count - size * density) <= 0.5
    assert kept(size, 1.0) == size


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 10))
def test_small_and_large_segments_are_all_of_them(sizes, below):
    segments = segments_of(sizes)
    small, large = split_small(segments, below)
    assert all(s.size < below for s in small)
    assert all(s.size >= below for s in large)
    assert sorted((*small, *large), key=lambda s: s.name) == sorted(segments, key=lambda s: s.name)
    covered = positions_of(small).tolist() + positions_of(large).tolist()
    assert sorted(covered) == list(range(segments.numel))


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 10))
def test_chosen_segments_are_found_among_all(sizes, below):
    segments = segments_of(sizes)
    _, large = split_small(segments, below)
    rows = rows_of(segments, large, torch.device("cpu"))
    assert rows.dtype == torch.int64
    assert tuple(segments.items[row] for row in rows.tolist()) == large.items


@given(
    st.lists(st.integers(0, 9), max_size=4),
    st.dictionaries(st.sampled_from(["p0", "p1", "p2", "other"]), st.integers(0, 20)),
    st.integers(0, 10),
)
def test_a_counted_plan_has_the_agreed_rooms_or_a_first_guess_within_each_segment(sizes, agreed, below):
    plan = counted_plan(segments_of(sizes), step=5, rooms=agreed, whole_below=below, first=lambda size: size // 2)
    assert (plan.counted, plan.step) == (True, 5)
    assert plan.known_count == sum(size for size in sizes if size < below)
    for segment, room in zip(plan.choosing, plan.rooms, strict=True):
        assert room == min(segment.size, max(1, agreed.get(segment.name, segment.size // 2)))


def test_spread_is_the_population_deviation_and_the_mean():
    deviation, mean = spread(torch.tensor([1.0, 3.0, 3.0, 5.0]))
    assert (float(mean), float(deviation)) == (3.0, pytest.approx(2.0**0.5))
    assert [float(t) for t in spread(torch.empty(0))] == [0.0, 0.0]
    assert [float(t) for t in spread(torch.tensor([-4.0]))] == [0.0, -4.0]


def test_topk_takes_of_each_segment_and_sends_small_ones_whole():
    segments = segments_of([3, 10, 10])
    x = torch.zeros(23)
    x[[1, 5, 9, 20]] = torch.tensor([0.1, 5.0, -6.0, 7.0])
    topk = TopK(density=0.2, whole_below=4)
    sent = taken_by(topk, Flat(x, segments))
    assert sent.plan.rooms == (2, 2)
    assert known_positions(sent.plan, 23).tolist() == [0, 1, 2]
    # The third segment has one entry that is not zero; its second choice is the lowest index.
    assert sent.payload.positions.tolist() == [5, 9, 13, 20]
    assert not sent.left.any()


def test_topk_over_merged_segments_takes_of_the_whole_vector():
    segments = segments_of([3, 5]).merged()
    x = torch.tensor([1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0, 14.0])
    topk = TopK(density=0.25, whole_below=0)
    assert taken_by(topk, Flat(x, segments)).payload.positions.tolist() == [6, 7]


def test_whole_below_counts_entries_strictly():
    plan = TopK(density=0.5, whole_below=4).plan(segments_of([3, 4]), step=0, rooms={})
    assert (plan.known_count, plan.capacity) == (3, 2)


@given(st.integers(0, 10**6), st.integers(0, 2**31 - 1))
def test_a_random_draw_depends_on_seed_step_and_name_alone(step, seed):
    compressor = RandomK(density=0.3, seed=seed)
    alone = Segments.of(["w"], [20])
    behind = Segments.of(["other", "w"], [7, 20])
    drawn = known_positions(compressor.plan(alone, step=step, rooms={}), 20)
    moved = known_positions(compressor.plan(behind, step=step, rooms={}), 27)
    assert drawn.tolist() == [p - 7 for p in moved.tolist() if p >= 7]


def test_draws_differ_by_seed_step_and_name():
    def drawn(seed: int, step: int, name: str) -> tuple[int, ...]:
        plan = RandomK(density=0.1, seed=seed).plan(Segments.of([name], [200]), step=step, rooms={})
        return tuple(known_positions(plan, 200).tolist())

    draws = {drawn(seed, step, name) for seed in range(3) for step in range(3) for name in ("v", "w")}
    assert len(draws) == 18


def test_every_entry_is_drawn_about_equally_often():
    compressor, segments = RandomK(density=0.2), segments_of([50])
    times = torch.zeros(50)
    for step in range(500):
        times[compressor.plan(segments, step=step, rooms={}).known] += 1
    # 500 draws of 20%: mean 100, standard deviation about 9.
    assert times.sum() == 500 * 10
    assert float(times.min()) > 50
    assert float(times.max()) < 150


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 1.0])
def test_topk_contracts_at_least_as_the_theory_says(density):
    segments, topk = segments_of([400]), TopK(density=density, whole_below=0)
    for seed in range(20):
        y = normal(400, seed, torch.float64) ** (1 + 2 * (seed % 3))
        left = taken_by(topk, Flat(y, segments)).left
        assert float(left.square().sum()) <= (1 - kept(400, density) / 400) * float(y.square().sum()) + 1e-12
        assert float(left.abs().sum()) <= (1 - kept(400, density) / 400) * float(y.abs().sum()) + 1e-12


def test_the_contraction_is_tight_where_all_magnitudes_are_equal():
    sent = taken_by(TopK(density=0.25, whole_below=0), Flat(torch.ones(100), segments_of([100])))
    assert float(sent.left.square().sum()) == 75.0
