"""The threshold in deviations against the obvious loop, for every choice of whose deviation it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import Flat, known_positions, normal, same_bits, segments_of, taken_by
from laconic import kernels
from laconic.compressors import StdThreshold
from laconic.segments import Segments
from laconic.types import Fresh, Payload

COEFFICIENTS = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 15.0])


def _passing(values: list[float], threshold: float) -> list[int]:
    """What exceeds the threshold; of nothing the first of the largest, unless all are zero."""
    found = [i for i, v in enumerate(values) if abs(v) > threshold]
    largest = max((abs(v) for v in values), default=0.0)
    return found or [i for i, v in enumerate(values) if abs(v) == largest > 0][:1]


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / max(1, len(values)))


def _residual(values: list[float], c: float) -> float:
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    return abs(mean) + c * math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))


def _with(rule: StdThreshold, x: torch.Tensor, segments: Segments, **known: torch.Tensor) -> Payload:
    """What the rule takes when this is known of the segments; the deviation is 1 where nothing else is said."""
    fresh = replace(kernels.fresh_of(x, segments), deviation=torch.ones(len(segments)), **known)
    return rule.compress_(x, segments, rule.plan(segments, step=0, rooms=_rooms(segments)), fresh)


def _rooms(segments: Segments) -> dict[str, int]:
    """Room for everything."""
    return {s.name: s.size for s in segments}


@pytest.mark.parametrize("std_of", ["gradient", "residual"])
@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4), c=COEFFICIENTS, seed=st.integers(0, 99))
def test_each_layer_has_its_own_threshold_and_gives_what_exceeds_it_in_index_order(std_of, sizes, c, seed):
    segments = segments_of(sizes)
    x = normal(sum(sizes), seed, torch.float64) ** 3
    for i, view in enumerate(segments.views(x)):
        view.mul_(10.0**i)
    expected, thresholds = [], []
    for segment, view in zip(segments, segments.views(x), strict=True):
        values = view.tolist()
        thresholds.append(c * _rms(values) if std_of == "gradient" else _residual(values, c))
        expected += [segment.offset + i for i in _passing(values, thresholds[-1])]
    rule = StdThreshold(c=c, std_of=std_of, whole_below=0)
    sent = taken_by(rule, Flat(x, segments), rooms=_rooms(segments))
    assert sent.payload.positions.tolist() == expected
    assert sent.payload.thresholds.tolist() == pytest.approx(thresholds, rel=1e-12)


def test_the_gradients_deviation_is_what_it_is_told_and_not_that_of_the_vector():
    segments, x = segments_of([4, 4]), torch.tensor([1.0, 3.0, -5.0, 0.0] * 2)
    rule, told = StdThreshold(c=2.0, whole_below=0), torch.tensor([1.0, 2.0])
    fresh = replace(kernels.fresh_of(x, segments), deviation=told)
    payload = rule.compress_(x, segments, rule.plan(segments, step=0, rooms=_rooms(segments)), fresh)
    assert payload.positions.tolist() == [1, 2, 6]
    assert payload.thresholds.tolist() == [2.0, 4.0]


def test_the_residuals_deviation_is_that_of_the_vector_and_not_what_it_is_told():
    segments, rule = segments_of([4]), StdThreshold(c=1.0, std_of="residual", whole_below=0)
    x = torch.tensor([0.0, 0.0, 0.0, 8.0])
    payload = _with(rule, x, segments, running=torch.tensor([9.0]))
    assert payload.thresholds.tolist() == pytest.approx([2.0 + math.sqrt(12.0)])
    assert payload.positions.tolist() == [3]


def test_a_running_deviation_is_that_of_the_steps_before_and_this_steps_where_there_were_none():
    segments, x = segments_of([2, 2]), torch.tensor([1.0, 3.0, 1.0, 3.0])
    rule = StdThreshold(c=2.0, running=0.9, whole_below=0)
    payload = _with(rule, x, segments, running=torch.tensor([0.25, 0.0]))
    assert payload.thresholds.tolist() == [0.5, 2.0]
    assert payload.positions.tolist() == [0, 1, 3]


def test_over_the_model_all_layers_have_one_threshold():
    segments, x = segments_of([2, 2]), torch.tensor([1.0, 3.0, 1.0, 3.0])
    rule = StdThreshold(c=2.0, running=0.9, over="model", whole_below=0)
    running, overall = torch.tensor([0.25, 7.0]), torch.tensor(0.4)
    assert _with(rule, x.clone(), segments, running=running, overall=overall).thresholds.tolist() == pytest.approx(
        [0.8, 0.8]
    )
    first = _with(rule, x.clone(), segments, running=running, overall=torch.tensor(0.0))
    assert first.thresholds.tolist() == [2.0, 2.0]


def test_without_the_running_one_an_old_deviation_is_not_looked_at():
    segments = segments_of([3])
    payload = _with(StdThreshold(c=2.0, whole_below=0), torch.ones(3), segments, running=torch.tensor([0.1]))
    assert payload.thresholds.tolist() == [2.0]


def test_small_segments_go_whole_and_the_others_keep_their_own_thresholds():
    segments = Segments.of(["small", "a", "b"], [2, 4, 4])
    x = torch.tensor([0.1, 0.2, 1.0, 3.0, 0.5, 0.0, 1.0, 3.0, 0.5, 9.0])
    rule = StdThreshold(c=1.0, whole_below=3)
    fresh = replace(kernels.fresh_of(x, segments), deviation=torch.tensor([9.0, 2.0, 4.0]))
    plan = rule.plan(segments, step=0, rooms=_rooms(segments))
    payload = rule.compress_(x, segments, plan, fresh)
    assert known_positions(plan, 10).tolist() == [0, 1]
    assert payload.thresholds.tolist() == [2.0, 4.0]
    assert payload.positions.tolist() == [3, 9]


@pytest.mark.parametrize("std_of", ["gradient", "residual"])
@pytest.mark.parametrize(
    ("values", "position"),
    [
        ([1.0, -3.0, 3.0, 2.0], [1]),
        ([2.0, 2.0, 2.0, 2.0], [0]),
        ([0.0, 0.0, 0.0, 0.0], []),
        ([0.0, 0.0, -1e-40, 0.0], [2]),
    ],
    ids=str,
)
def test_where_none_passes_the_largest_goes_the_lowest_index_among_ties_and_none_of_zeros(std_of, values, position):
    flat = Flat(torch.tensor(values), segments_of([4]))
    sent = taken_by(StdThreshold(c=50.0, std_of=std_of, whole_below=0), flat)
    assert sent.payload.positions.tolist() == position
    assert sent.payload.wanted.tolist() == [len(position)]
    assert int(sent.left.count_nonzero()) == int(flat.x.count_nonzero()) - len(position)


def test_what_passes_beyond_the_room_stays_and_is_counted():
    x = torch.tensor([5.0, 0.1, -6.0, 7.0, 0.0, 8.0, 0.2, 9.0])
    flat = Flat(x, segments_of([4, 4]))
    rule = StdThreshold(c=0.5, whole_below=0)
    sent = taken_by(rule, flat, rooms={"p0": 2, "p1": 1})
    assert sent.payload.positions.tolist() == [0, 2, 5]
    assert sent.payload.wanted.tolist() == [3, 2]
    assert same_bits(sent.left, torch.tensor([0.0, 0.1, 0.0, 7.0, 0.0, 0.0, 0.2, 9.0]))


@pytest.mark.parametrize("std_of", ["gradient", "residual"])
def test_at_c_zero_everything_goes_and_nothing_is_chosen(std_of):
    x = torch.tensor([0.0, -0.0, 1.0, -2.0, 0.0])
    sent = taken_by(
        StdThreshold(c=0.0, std_of=std_of, whole_below=0), Flat(x, segments_of([3, 2])), rooms={"p0": 1}
    )
    assert (sent.plan.known_count, sent.plan.capacity) == (5, 0)
    assert same_bits(sent.payload.known, x)
    assert not sent.left.any()


@given(st.floats(0.5, 100.0), st.integers(0, 10**6))
def test_the_first_room_cannot_be_too_small_for_a_vector_that_is_the_gradient(c, size):
    """Chebyshev: at most 1 / c^2 of the entries exceed c times their root mean square."""
    plan = StdThreshold(c=c, whole_below=0).plan(segments_of([size]), step=0, rooms={})
    assert plan.capacity >= min(size, size / c**2)
    assert plan.capacity <= max(1, math.ceil(size / c**2))


@settings(max_examples=20)
@given(st.integers(0, 10**4), COEFFICIENTS, st.integers(1, 5))
def test_a_first_step_never_overflows_its_room(seed, c, power):
    x = normal(500, seed, torch.float64) ** power
    sent = taken_by(StdThreshold(c=c, whole_below=0), Flat(x, segments_of([500])))
    assert sent.payload.wanted.tolist() == [sent.payload.values.numel()]


@pytest.mark.parametrize("std_of", ["gradient", "residual"])
def test_a_larger_coefficient_sends_a_part_of_what_a_smaller_one_sends(std_of):
    flat = Flat(normal(3000, 5) ** 3, segments_of([1000, 2000]))
    before = None
    for c in (0.3, 0.6, 1.2, 2.4, 4.8):
        rule = StdThreshold(c=c, std_of=std_of, whole_below=0)
        now = set(taken_by(rule, flat, rooms=_rooms(flat.segments)).payload.positions.tolist())
        assert before is None or now < before
        before = now


@given(st.floats(1e-3, 1e6), st.floats(1.001, 100.0))
def test_the_nominal_density_of_the_gradient_form_is_near_chebyshevs_bound_and_below_it(c, factor):
    density, bound = StdThreshold(c=c).density, min(1.0, 1 / c**2)
    assert bound / 2 <= density <= bound
    assert c < 30 or density == pytest.approx(bound, rel=2e-3)
    # Where the bound is 1 it goes on falling with c, so that coefficients below 1 can be told apart.
    assert 0 < StdThreshold(c=c * factor).density < density


def test_at_c_zero_either_form_is_nominally_everything():
    assert [StdThreshold(c=0.0, std_of=form).density for form in ("gradient", "residual")] == [1.0, 1.0]


def test_the_nominal_density_of_the_residual_form_is_gaussian():
    assert StdThreshold(c=1.0, std_of="residual").density == pytest.approx(0.31731, abs=1e-5)
    flat = Flat(normal(200_000, 1), segments_of([200_000]))
    rule = StdThreshold(c=2.0, std_of="residual", whole_below=0)
    sent = taken_by(rule, flat, rooms={"p0": 200_000}).payload.wanted
    assert float(sent) / 200_000 == pytest.approx(rule.density, rel=0.03)


@pytest.mark.parametrize(("std_of", "most"), [("gradient", 10_000), ("residual", 300)])
@given(data=st.data())
def test_there_and_back_again_is_the_coefficient_that_was_set(std_of, most, data):
    c = data.draw(st.integers(1, most)) / 10
    rule = StdThreshold(c=c, std_of=std_of)
    assert rule.at_density(rule.density) == rule
    assert rule.at_density(1.0).c == 0.0


@pytest.mark.parametrize(("std_of", "least"), [("gradient", 1e-12), ("residual", 1e-190)])
@given(data=st.data())
def test_a_density_that_is_asked_for_is_the_one_that_is_had(std_of, least, data):
    exponent = data.draw(st.floats(math.log10(least), -0.05))
    density = 10.0**exponent
    # Far out in the normal tail the density changes fast with the coefficient, which has twelve digits.
    assert StdThreshold(c=2.0, std_of=std_of).at_density(density).density == pytest.approx(density, rel=1e-8)


def test_a_running_residual_is_refused():
    with pytest.raises(ValueError, match=r"running must be 0 with std_of='residual', got 0\.9\. Leave it out\."):
        StdThreshold(c=2.0, std_of="residual", running=0.9)


def test_what_it_is_told_is_not_changed():
    segments = segments_of([6])
    one = torch.ones(1)
    fresh = Fresh(deviation=one, running=one.clone(), overall=torch.ones(()), largest=one * 2)
    rule = StdThreshold(c=1.5, running=0.5, whole_below=0)
    rule.compress_(torch.full((6,), 2.0), segments, rule.plan(segments, step=0, rooms={}), fresh)
    assert [float(t) for t in (fresh.deviation, fresh.running, fresh.overall, fresh.largest)] == [
        1.0,
        1.0,
        1.0,
        2.0,
    ]
