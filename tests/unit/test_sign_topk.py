"""Signs of the largest entries: against the obvious loop, and what one magnitude is worth by the paper."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import Flat, normal, segments_of, taken_by
from laconic.compressors import SignTopK, TopK

# PAPERS.md 4.8: a gradient, and the decrease that sign times mean magnitude guarantees for 1 to 8 of its entries.
GOLDEN = torch.tensor([4, -3, 2, -1.5, 1, -0.5, 0.25, 0.1], dtype=torch.float64)
BETA = [0.491212, 0.752168, 0.828920, 0.846189, 0.812035, 0.736818, 0.658147, 0.585319]


def _one_by_one(values: list[float], count: int) -> dict[int, float]:
    """The formula for one segment: what is sent, by place."""
    largest = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:count]
    there = [i for i in largest if values[i] != 0]
    mean = math.fsum(abs(values[i]) for i in there) / max(1, len(there))
    return {i: math.copysign(mean, values[i]) if values[i] else 0.0 for i in sorted(largest)}


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 30), max_size=4), density=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_it_is_the_formula_for_each_segment(sizes, density, seed):
    # Multiples of 1/4, so that there are zeros and ties.
    flat = Flat((normal(sum(sizes), seed, torch.float64) * 4).round() / 4, segments_of(sizes))
    sent = taken_by(SignTopK(density=density, whole_below=0), flat)
    expected = {}
    for segment, room in zip(flat.segments, sent.plan.rooms, strict=True):
        part = flat.x[segment.offset : segment.offset + segment.size].tolist()
        expected |= {segment.offset + i: v for i, v in _one_by_one(part, room).items()}
    assert sent.payload.positions.tolist() == list(expected)
    assert sent.payload.values.tolist() == pytest.approx(list(expected.values()), rel=1e-14)


def test_it_chooses_as_topk_does_and_what_one_magnitude_changes_stays():
    flat = Flat(normal(5000, 3), segments_of([3000, 100, 1900]))
    plain, ours = taken_by(TopK(density=0.1), flat), taken_by(SignTopK(density=0.1), flat)
    assert (ours.plan.rooms, ours.plan.counted) == (plain.plan.rooms, False)
    assert torch.equal(ours.payload.positions, plain.payload.positions)
    assert torch.equal(ours.payload.wanted, plain.payload.wanted)
    assert torch.equal(ours.payload.known, plain.payload.known), "small parameters are sent as they are"
    at = ours.payload.positions
    assert torch.equal(ours.left[at], flat.x[at] - ours.payload.values)
    assert torch.equal(ours.decoded()[at] + ours.left[at], flat.x[at])
    # One magnitude has the sum of those it stands for.
    torch.testing.assert_close(ours.payload.values.abs().sum(), plain.payload.values.abs().sum())
    magnitudes = [part.abs().unique().numel() for part in ours.payload.values.split(list(ours.plan.rooms))]
    assert magnitudes == [1, 1]


@pytest.mark.parametrize("count", range(1, 9))
def test_what_is_sent_decreases_the_objective_as_published(count):
    """With step 1/L what is left of L/2 |x|^2 is 1 - beta of it."""
    sent = taken_by(SignTopK(density=count / 8, whole_below=0), Flat(GOLDEN, segments_of([8])))
    assert sent.payload.values.numel() == count
    assert 1 - float(sent.left.square().sum() / GOLDEN.square().sum()) == pytest.approx(BETA[count - 1], abs=1e-6)


def test_zeros_stay_zeros_and_count_for_nothing():
    sent = taken_by(
        SignTopK(density=1.0, whole_below=0),
        Flat(torch.tensor([0.0, 1.0, -0.0, -3.0, 0.0, 0.0]), segments_of([4, 2])),
    )
    assert sent.payload.values.tolist() == [0.0, 2.0, 0.0, -2.0, 0.0, 0.0]
    assert sent.left.tolist() == [0.0, -1.0, 0.0, -1.0, 0.0, 0.0]


def test_a_segment_has_its_own_magnitude_whatever_lies_beside_it():
    x, rule = normal(90, 1), SignTopK(density=0.2, whole_below=0)
    alone = taken_by(rule, Flat(x[30:60], segments_of([30])))
    beside = taken_by(rule, Flat(torch.cat([100 * x[:30], x[30:]]), segments_of([30, 30, 0, 30])))
    assert torch.equal(beside.decoded()[30:60], alone.decoded())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_breaks_nothing(bad):
    x = normal(20, 1)
    x[3] = bad
    sent = taken_by(SignTopK(density=0.2, whole_below=0), Flat(x, segments_of([20])))
    # What is not a number may be taken or left, as TopK does; it is never lost sight of.
    assert sent.payload.values.numel() <= 4
    assert not torch.isfinite(torch.cat([sent.payload.values, sent.left])).all()


def test_no_parameters_at_all():
    sent = taken_by(SignTopK(density=0.5), Flat(torch.empty(0), segments_of([])))
    assert sent.payload.count == 0
