"""``take_top_``, ``take_above_`` and ``take_where_`` against the obvious loop in plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import DTYPES, Flat, flats, same_bits, segments_of
from laconic import kernels
from laconic.kernels import reference
from laconic.segments import Segments

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _naive_top(values: list[float], count: int) -> list[int]:
    return sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:count])


def _naive_above(
    flat: Flat, thresholds: list[float], rooms: list[int], *, one: bool
) -> tuple[list[int], list[int]]:
    """Positions taken, and how many qualified in each segment."""
    values, positions, wanted = flat.x.tolist(), [], []
    for s, threshold, room in zip(flat.segments, thresholds, rooms, strict=True):
        entries = range(s.offset, s.offset + s.size)
        found = [i for i in entries if abs(values[i]) > threshold]
        if one and not found:
            largest = max((abs(values[i]) for i in entries), default=0.0)
            found = [i for i in entries if abs(values[i]) == largest > 0][:1]
        positions += found[:room]
        wanted.append(len(found))
    return positions, wanted


def _tensor(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def _largest(flat: Flat) -> torch.Tensor:
    return kernels.fresh_of(flat.x, flat.segments).largest


def _check_taken(flat: Flat, left: torch.Tensor, taken: kernels.Taken, positions: list[int]) -> None:
    assert taken.positions.tolist() == positions
    assert same_bits(taken.values, flat.x[positions])
    expected = flat.x.clone()
    expected[positions] = 0
    assert same_bits(left, expected)


@every_dtype
@given(data=st.data())
def test_take_top_is_the_largest_by_magnitude_and_then_by_lowest_index(dtype, data):
    flat = data.draw(flats(dtype))
    counts = [data.draw(st.integers(min(1, s.size), s.size + 2)) for s in flat.segments]
    positions = [
        s.offset + i
        for s, count in zip(flat.segments, counts, strict=True)
        for i in _naive_top(flat.x[s.offset : s.offset + s.size].tolist(), count)
    ]
    left = flat.x.clone()
    taken = kernels.take_top_(left, flat.segments, counts)
    _check_taken(flat, left, taken, positions)
    assert taken.wanted.tolist() == [min(n, s.size) for n, s in zip(counts, flat.segments, strict=True)]


@every_dtype
@given(data=st.data(), one=st.booleans())
def test_take_above_is_what_is_beyond_the_threshold_lowest_index_first(dtype, data, one):
    """``one``: of a segment where nothing passes, the first of its largest entries."""
    flat = data.draw(flats(dtype))
    levels = st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e30, float("inf")])
    thresholds = [data.draw(levels) for _ in flat.segments]
    rooms = [data.draw(st.integers(0, s.size + 1)) for s in flat.segments]
    positions, wanted = _naive_above(flat, thresholds, rooms, one=one)
    largest, left = _largest(flat) if one else None, flat.x.clone()
    taken = kernels.take_above_(left, flat.segments, _tensor(thresholds, dtype), rooms, largest=largest)
    _check_taken(flat, left, taken, positions)
    assert taken.wanted.tolist() == wanted


@every_dtype
@given(data=st.data())
def test_take_where_is_what_is_marked_lowest_index_first(dtype, data):
    flat = data.draw(flats(dtype))
    marks = [data.draw(st.lists(st.booleans(), min_size=s.size, max_size=s.size)) for s in flat.segments]
    rooms = [data.draw(st.integers(0, s.size + 1)) for s in flat.segments]
    positions: list[int] = []
    for s, marked, room in zip(flat.segments, marks, rooms, strict=True):
        positions += [s.offset + i for i, mark in enumerate(marked) if mark][:room]
    left = flat.x.clone()
    passed = [torch.tensor(marked, dtype=torch.bool) for marked in marks]
    taken = kernels.take_where_(left, flat.segments, passed, rooms)
    _check_taken(flat, left, taken, positions)
    assert taken.wanted.tolist() == [sum(marked) for marked in marks]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 10), st.integers(0, 10**6))
def test_where_not_all_fit_those_taken_follow_each_other_from_some_place_on(marks, room, turn):
    """From that place to the end, and then from the start; in index order all the same."""
    size, marked = len(marks), [i for i, mark in enumerate(marks) if mark]
    taken = _where(marks, room, turn).positions.tolist()
    runs = [[*marked[i:], *marked[:i]][:room] for i in range(len(marked))] or [[]]
    assert taken in [sorted(run) for run in runs]
    if turn == 0 or len(marked) <= room:
        assert taken == marked[:room]
    assert all(0 <= i < size for i in taken)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 10), st.integers(0, 10**6))
def test_every_entry_that_qualifies_is_taken_in_some_turn(marks, room, start):
    marked = {i for i, mark in enumerate(marks) if mark}
    reached: set[int] = set()
    for turn in range(start, start + 3 * len(marks)):
        reached.update(_where(marks, room, turn).positions.tolist())
    assert reached == marked


def test_no_place_in_a_layer_waits_far_longer_than_its_share():
    """A layer in which every entry qualifies in every step, with room for a twentieth of it.

    Lowest index first sent the first entries again and again, and those at the end of a layer never.
    """
    size, room, steps = 1000, 50, 400
    layer, last, longest = segments_of([size]), torch.zeros(size), torch.zeros(size)
    for step in range(1, steps + 1):
        taken = kernels.take_above_(torch.ones(size), layer, _tensor([0.5]), [room], turn=step)
        assert taken.positions.numel() == room
        longest = torch.maximum(longest, torch.where(last < step, step - last, 0.0))
        last[taken.positions] = step
    # In turn it would be every twentieth step.
    assert float(longest.max()) < 4 * size / room
    assert float(last.min()) > steps - 4 * size / room


def test_each_segment_is_turned_by_its_own_size():
    """Beginning at one place of the vector would be the end of a long layer and nowhere in a short one."""
    sizes = [3, 40, 7]
    layers, reached = segments_of(sizes), torch.zeros(sum(sizes))
    for turn in range(120):
        taken = kernels.take_above_(torch.ones(sum(sizes)), layers, _tensor([0.5] * 3), [1, 1, 1], turn=turn)
        assert taken.positions.numel() == 3
        reached[taken.positions] = 1
    assert bool(reached.all())


def _where(marks: list[bool], room: int, turn: int) -> kernels.Taken:
    return kernels.take_where_(
        torch.ones(len(marks)), segments_of([len(marks)]), [torch.tensor(marks)], [room], turn=turn
    )


@every_dtype
@given(data=st.data(), turn=st.integers(0, 10**6))
def test_the_way_without_asking_the_device_takes_the_same_and_fills_up_with_zeros(dtype, data, turn):
    flat = data.draw(flats(dtype))
    marks = [data.draw(st.lists(st.booleans(), min_size=s.size, max_size=s.size)) for s in flat.segments]
    rooms = [data.draw(st.integers(0, s.size)) for s in flat.segments]
    passed = [torch.tensor(marked, dtype=torch.bool) for marked in marks]
    here, there = flat.x.clone(), flat.x.clone()
    expected = kernels.take_where_(here, flat.segments, passed, rooms, turn=turn)
    taken = reference._take_static_(there, flat.segments, passed, rooms, expected.wanted, turn)
    count = int(torch.minimum(taken.wanted, torch.tensor(rooms)).sum())
    assert count == expected.positions.numel()
    assert taken.positions.numel() == taken.values.numel() == sum(rooms)
    assert torch.equal(taken.positions[:count], expected.positions)
    # What is left of -0.0 is 0.0 either way; a value is the same to the bit.
    assert same_bits(taken.values[:count], expected.values)
    assert torch.equal(there, here)
    assert not taken.positions[count:].any()
    assert not taken.values[count:].any()
    assert torch.equal(taken.wanted, expected.wanted)


@given(st.integers(1, 60), st.data())
def test_ties_go_to_the_lowest_index_at_every_size(size, data):
    count = data.draw(st.integers(1, size))
    x = torch.ones(size)
    x[data.draw(st.lists(st.integers(0, size - 1), max_size=5))] = -1.0
    taken = kernels.take_top_(x, segments_of([size]), [count])
    assert taken.positions.tolist() == list(range(count))
    assert not x[:count].any()


def test_a_large_vector_is_taken_from_as_a_small_one():
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(3))
    x[::7] = x[7]
    flat, left = Flat(x, segments_of([12_345, 7_655])), x.clone()
    positions = _naive_top(x[:12_345].tolist(), 1000) + [12_345 + i for i in _naive_top(x[12_345:].tolist(), 500)]
    _check_taken(flat, left, kernels.take_top_(left, flat.segments, [1000, 500]), positions)


@pytest.mark.parametrize("where", ["anywhere", "sampled", "between", "first", "none"])
@every_dtype
def test_wherever_the_largest_lie_they_are_taken(dtype, where):
    """A sample of lines tells a kernel beyond what to look: it may show all of the largest, some, or none."""
    x = torch.randn(40_000, generator=torch.Generator().manual_seed(5)).to(dtype)
    lines = (torch.arange(40_000) % 512 < 16).nonzero().flatten()
    places = {"anywhere": lines[:0], "sampled": lines, "between": lines[:-16] + 100, "first": torch.arange(500)}
    x[places.get(where, torch.arange(40_000))] *= 0 if where == "none" else 50
    left = x.clone()
    expected = reference.take_top_(here := x.clone(), segments_of([39_000, 1_000]), [100, 3])
    taken = kernels.take_top_(left, segments_of([39_000, 1_000]), [100, 3])
    assert torch.equal(taken.positions, expected.positions)
    assert same_bits(taken.values, expected.values)
    assert same_bits(left, here)


def test_what_does_not_fit_is_counted_as_wanted_and_left():
    x = torch.tensor([3.0, -1.0, -4.0, 0.5, 9.0])
    taken = kernels.take_above_(x, segments_of([3, 2]), _tensor([2.0, 0.1]), [1, 1])
    assert taken.positions.tolist() == [0, 3]
    assert taken.wanted.tolist() == [2, 2]
    assert x.tolist() == [0.0, -1.0, -4.0, 0.0, 9.0]


def test_zero_is_not_above_zero():
    x = torch.tensor([0.0, -0.0, 2.0**-149])
    assert kernels.take_above_(x, segments_of([3]), _tensor([0.0]), [3]).positions.tolist() == [2]


@pytest.mark.parametrize(
    ("values", "position"),
    [([1.0, -2.0, 2.0], [1]), ([0.0, 0.0, 0.0], []), ([0.0, 2.0**-149, -(2.0**-149)], [1]), ([5.0, 5.0, 5.0], [0])],
    ids=str,
)
def test_where_nothing_passes_the_first_of_the_largest_goes_unless_all_are_zero(values, position):
    flat = Flat(torch.tensor(values), segments_of([3]))
    taken = kernels.take_above_(flat.x, flat.segments, _tensor([5.0]), [3], largest=_largest(flat))
    assert taken.positions.tolist() == position
    assert taken.wanted.tolist() == [len(position)]


@every_dtype
@given(data=st.data(), turn=st.integers(0, 99))
def test_a_threshold_that_is_no_number_passes_nothing_but_the_largest(dtype, data, turn):
    """A fit may end in 0 / 0: one segment's, while the others have thresholds."""
    flat = data.draw(flats(dtype))
    thresholds, rooms = torch.zeros(len(flat.segments), dtype=dtype), [s.size for s in flat.segments]
    thresholds[data.draw(st.integers(0, len(flat.segments) - 1))] = torch.nan
    taken = kernels.take_above_(flat.x.clone(), flat.segments, thresholds, rooms, largest=_largest(flat), turn=turn)
    for i, (segment, view) in enumerate(zip(flat.segments, flat.segments.views(flat.x), strict=True)):
        here = (taken.positions >= segment.offset) & (taken.positions < segment.offset + segment.size)
        values = taken.values[here].abs().tolist()
        if torch.isnan(thresholds[i]):
            assert values == ([float(view.abs().max())] if view.any() else [])
        else:
            assert len(values) == int(view.count_nonzero())
        assert len(values) == int(taken.wanted[i])
    kept = flat.x.clone()
    assert kernels.take_above_(kept, flat.segments, thresholds * torch.nan, rooms).positions.numel() == 0
    assert same_bits(kept, flat.x)


def test_take_top_of_zeros_takes_zeros():
    x = torch.zeros(4)
    assert kernels.take_top_(x, segments_of([4]), [2]).positions.tolist() == [0, 1]


def test_a_count_of_zero_takes_nothing():
    x = torch.tensor([1.0, 2.0, 3.0])
    taken = kernels.take_top_(x, segments_of([2, 1]), [0, 1])
    assert taken.positions.tolist() == [2]
    assert x.tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "take",
    [
        lambda x, s: kernels.take_top_(x, s, []),
        lambda x, s: kernels.take_above_(x, s, torch.empty(0), []),
        lambda x, s: kernels.take_above_(x, s, torch.empty(0), [], largest=torch.empty(0)),
        lambda x, s: kernels.take_where_(x, s, [], []),
        lambda x, s: reference._take_static_(x, s, [], [], torch.empty(0, dtype=torch.int64), 0),
    ],
)
def test_no_segments_give_nothing(take):
    taken = take(torch.empty(0), Segments(()))
    assert taken.positions.dtype == taken.wanted.dtype == torch.int64
    assert taken.positions.numel() == taken.values.numel() == taken.wanted.numel() == 0


def test_a_count_or_threshold_for_each_segment_is_wanted():
    for wrong in ([1], [1, 1, 1]):
        with pytest.raises(ValueError, match="counts were given for 2 segments"):
            kernels.take_top_(torch.ones(4), segments_of([2, 2]), wrong)
        with pytest.raises(ValueError, match="thresholds were given for 2 segments"):
            kernels.take_above_(torch.ones(4), segments_of([2, 2]), _tensor([1.0] * len(wrong)), [4, 4])
        with pytest.raises(ValueError, match="rooms were given for 2 segments"):
            kernels.take_above_(torch.ones(4), segments_of([2, 2]), _tensor([1.0, 1.0]), wrong)
