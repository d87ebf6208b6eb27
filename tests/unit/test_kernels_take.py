"""``take_top_`` and ``take_above_`` against the obvious loop in plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import DTYPES, Flat, flats, same_bits, segments_of
from laconic import kernels
from laconic.types import Segments

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _naive_top(values: list[float], count: int) -> list[int]:
    return sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:count])


def _naive_above(flat: Flat, thresholds: list[float]) -> list[int]:
    values = flat.x.tolist()
    return [
        s.offset + i
        for s, threshold in zip(flat.segments, thresholds, strict=True)
        for i in range(s.size)
        if abs(values[s.offset + i]) > threshold
    ]


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
    assert taken.wanted == len(positions)


@every_dtype
@given(data=st.data())
def test_take_above_is_what_is_beyond_the_threshold_lowest_index_first(dtype, data):
    flat = data.draw(flats(dtype))
    thresholds = [data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e30, float("inf")])) for _ in flat.segments]
    capacity = data.draw(st.integers(0, flat.x.numel() + 1))
    wanted = _naive_above(flat, thresholds)
    left = flat.x.clone()
    taken = kernels.take_above_(left, flat.segments, thresholds, capacity)
    _check_taken(flat, left, taken, wanted[:capacity])
    assert taken.wanted == len(wanted)


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


def test_what_does_not_fit_is_counted_as_wanted_and_left():
    x = torch.tensor([3.0, -1.0, -4.0, 0.5, 9.0])
    taken = kernels.take_above_(x, segments_of([3, 2]), [2.0, 0.1], 2)
    assert taken.positions.tolist() == [0, 2]
    assert taken.wanted == 4
    assert x.tolist() == [0.0, -1.0, 0.0, 0.5, 9.0]


def test_zero_is_not_above_zero():
    x = torch.tensor([0.0, -0.0, 2.0**-149])
    assert kernels.take_above_(x, segments_of([3]), [0.0], 3).positions.tolist() == [2]


def test_take_top_of_zeros_takes_zeros():
    x = torch.zeros(4)
    assert kernels.take_top_(x, segments_of([4]), [2]).positions.tolist() == [0, 1]


def test_a_count_of_zero_takes_nothing():
    x = torch.tensor([1.0, 2.0, 3.0])
    taken = kernels.take_top_(x, segments_of([2, 1]), [0, 1])
    assert taken.positions.tolist() == [2]
    assert x.tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "take", [lambda x, s: kernels.take_top_(x, s, []), lambda x, s: kernels.take_above_(x, s, [], 3)]
)
def test_no_segments_give_nothing(take):
    taken = take(torch.empty(0), Segments(()))
    assert taken.positions.dtype == torch.int64
    assert taken.positions.numel() == taken.values.numel() == taken.wanted == 0


def test_a_count_or_threshold_for_each_segment_is_wanted():
    for wrong in ([1], [1, 1, 1]):
        with pytest.raises(ValueError, match="zip"):
            kernels.take_top_(torch.ones(4), segments_of([2, 2]), wrong)
        with pytest.raises(ValueError, match="zip"):
            kernels.take_above_(torch.ones(4), segments_of([2, 2]), wrong, 4)
