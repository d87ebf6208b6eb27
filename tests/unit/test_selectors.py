"""The selectors that others published, each against an obvious loop over its formula."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import Flat, Sent, normal, segments_of, taken_by
from laconic.compressors import GaussianK, SampledTopK, Sidco

ROOMY = {"p0": 10**6, "p1": 10**6}
seeds, powers = st.integers(0, 10**4), st.sampled_from([1, 3, 5])
some = settings(max_examples=20)


def _heavy(size: int, seed: int, power: int = 3) -> torch.Tensor:
    """A vector with a heavier tail the larger the power."""
    return normal(size, seed, torch.float64) ** power


def _above(values: list[float], threshold: float) -> list[int]:
    found = [i for i, v in enumerate(values) if abs(v) > threshold]
    largest = max(abs(v) for v in values)
    return found or [[abs(v) for v in values].index(largest)]


def _expect(sent: Sent, positions: list[int], threshold: float) -> None:
    assert sent.payload.thresholds.tolist() == pytest.approx([threshold], rel=1e-10)
    assert sent.payload.positions.tolist() == positions
    assert sent.payload.wanted.tolist() == [len(positions)]


# Gaussian-k


def _gaussian(values: list[float], density: float) -> float:
    n = len(values)
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / n)
    threshold = mean - NormalDist().inv_cdf(density / 2) * deviation
    aim = min(n, max(1, round(n * density)))
    for _ in range(3):
        count = sum(abs(v) > threshold for v in values)
        if count < 2 * aim / 3:
            threshold *= 0.5
        elif count > 4 * aim / 3:
            threshold *= 1.5
    return threshold


@some
@given(seeds, powers, st.sampled_from([0.01, 0.1, 0.4]))
def test_gaussian_k_is_its_formula(seed, power, density):
    x = _heavy(300, seed, power) + 0.1
    threshold = _gaussian(x.tolist(), density)
    sent = taken_by(GaussianK(density=density, whole_below=0), Flat(x, segments_of([300])), rooms=ROOMY)
    _expect(sent, _above(x.tolist(), threshold), threshold)


def test_gaussian_k_is_near_its_share_where_gradients_are_normal():
    flat = Flat(normal(100_000, 3), segments_of([100_000]))
    sent = taken_by(GaussianK(density=0.01, whole_below=0), flat, rooms=ROOMY)
    assert float(sent.payload.wanted) == pytest.approx(1000, rel=0.1)


# SIDCo


def _fitted(values: list[float], floor: float, share: float, fit: str) -> float:
    excess = [v - floor for v in values if v >= floor]
    mean = sum(excess) / len(excess)
    if fit == "exponential":
        return floor - mean * math.log(share)
    variance = sum((e - mean) ** 2 for e in excess) / len(excess)
    shape, scale = 0.5 * (mean**2 / variance - 1), 0.5 * mean * (mean**2 / variance + 1)
    return floor + scale * (1 - share**shape) / shape


def _staged(values: list[float], density: float, stages: int, fit: str) -> float:
    magnitudes = [abs(v) for v in values]
    if stages == 1 or density >= 0.25:
        return _fitted(magnitudes, 0.0, density, fit)
    threshold = _fitted(magnitudes, 0.0, 0.25, fit)
    for _ in range(stages - 1):
        threshold = _fitted(magnitudes, threshold, (density / 0.25) ** (1 / (stages - 1)), fit)
    return threshold


@some
@pytest.mark.parametrize("fit", ["exponential", "pareto"])
@given(seed=seeds, power=powers, stages=st.integers(1, 3), density=st.sampled_from([0.02, 0.1, 0.25, 0.5]))
def test_sidco_is_its_formula(fit, seed, power, stages, density):
    x = _heavy(400, seed, power)
    threshold = _staged(x.tolist(), density, stages, fit)
    rule = Sidco(density=density, stages=stages, fit=fit, whole_below=0)
    sent = taken_by(rule, Flat(x, segments_of([400])), rooms=ROOMY)
    _expect(sent, _above(x.tolist(), threshold), threshold)


@pytest.mark.parametrize(("stages", "fit"), [(1, "exponential"), (3, "exponential"), (1, "pareto")])
def test_sidco_is_near_its_share_where_the_fit_is_true(stages, fit):
    source = torch.Generator().manual_seed(1)
    x = torch.empty(100_000).exponential_(generator=source)
    x[::2] *= -1
    rule = Sidco(density=0.01, stages=stages, fit=fit, whole_below=0)
    sent = taken_by(rule, Flat(x, segments_of([100_000])), rooms=ROOMY)
    assert float(sent.payload.wanted) == pytest.approx(1000, rel=0.2)


def test_more_stages_follow_a_heavy_tail_better():
    """One exponential fit sends far too much of a heavy tail: the reason for the stages."""
    flat = Flat(_heavy(100_000, 2, 5), segments_of([100_000]))

    def miss(stages: int) -> float:
        rule = Sidco(density=0.001, stages=stages, whole_below=0)
        return abs(math.log(float(taken_by(rule, flat, rooms=ROOMY).payload.wanted) / 100))

    assert miss(1) > math.log(10)
    assert miss(4) < miss(1) / 2


@pytest.mark.parametrize("cls", [GaussianK, Sidco, SampledTopK], ids=lambda cls: cls.__name__)
def test_a_share_of_all_is_everything_whatever_the_fit_says(cls):
    """A fit of a vector that is nothing like it would leave some of it owed."""
    x = torch.cat([_heavy(300, 1, 5), torch.zeros(20, dtype=torch.float64)])
    sent = taken_by(cls(density=1.0, whole_below=0), Flat(x, segments_of([200, 120])), rooms={"p0": 3})
    assert (sent.plan.known_count, sent.plan.capacity) == (320, 0)
    assert torch.equal(sent.decoded(), x)
    assert not sent.left.any()


@pytest.mark.parametrize("fit", ["exponential", "pareto"])
def test_where_the_fit_ends_in_no_number_the_largest_goes(fit):
    """Stages that have nothing left above their floor."""
    x = torch.zeros(50)
    x[[7, 33]] = torch.tensor([1.0, -2.0])
    sent = taken_by(Sidco(density=0.001, stages=9, fit=fit, whole_below=0), Flat(x, segments_of([50])))
    assert sent.payload.positions.tolist() == [33]
    assert sent.payload.wanted.tolist() == [1]


# DGC's sample


@some
@given(seeds, powers, st.sampled_from([0.01, 0.1, 0.3]), st.integers(0, 50))
def test_a_sampled_top_k_never_sends_more_than_its_share_nor_far_less(seed, power, density, step):
    x = _heavy(2000, seed, power)
    sent = taken_by(SampledTopK(density=density, sample=0.2, whole_below=0), Flat(x, segments_of([2000])), step)
    aim = round(2000 * density)
    assert sent.plan.rooms == (aim,)
    # Ten cuts by a fifth reach 0.8 of the share unless the sample had a tail of its own.
    assert 0.8 * aim <= sent.payload.values.numel() <= aim
    assert sent.payload.wanted.tolist() == [sent.payload.values.numel()]


@some
@given(seeds, powers, st.integers(1, 250))
def test_with_the_whole_vector_for_a_sample_it_is_top_k(seed, power, kept):
    x = _heavy(250, seed, power)
    sent = taken_by(SampledTopK(density=kept / 250, sample=1.0, whole_below=0), Flat(x, segments_of([250])))
    largest = sorted(range(250), key=lambda i: -abs(float(x[i])))[:kept]
    assert sent.payload.positions.tolist() == sorted(largest)
    assert float(sent.payload.thresholds) == abs(float(x[largest[-1]]))


@some
@given(seeds, powers, st.sampled_from([0.01, 0.1, 0.3]), st.integers(0, 50))
def test_the_threshold_told_is_the_one_that_the_entries_passed(seed, power, density, step):
    """After the corrections: not the first guess from the sample."""
    x = _heavy(2000, seed, power)
    sent = taken_by(SampledTopK(density=density, sample=0.05, whole_below=0), Flat(x, segments_of([2000])), step)
    threshold = float(sent.payload.thresholds)
    assert float(sent.payload.values.abs().min()) >= threshold
    # Between the share and 1.3 times it, what passes does not all fit.
    over = int((sent.left.abs() >= threshold).sum())
    assert over <= 0.3 * sent.plan.capacity
    assert over == 0 or sent.payload.values.numel() == sent.plan.capacity


def test_where_too_many_pass_the_exact_largest_are_taken():
    """A sample that saw none of the large entries: its threshold lets 40 of 1024 pass where 10 are wanted."""
    rule, segments = SampledTopK(density=10 / 1024, sample=0.01, whole_below=0), segments_of([1024])
    offsets = {int(_first_seen(rule, segments, step)) for step in range(60)}
    assert offsets == {0, 1, 2, 3}, "a random stride begins anywhere in it"
    step = next(s for s in range(60) if _first_seen(rule, segments, s) == 0)
    x = torch.full((1024,), 1e-3, dtype=torch.float64)
    x[1:160:4] = torch.arange(1.0, 41.0, dtype=torch.float64)
    x[0::4] = 0.5
    sent = taken_by(rule, Flat(x, segments), step)
    assert sorted(sent.payload.values.tolist()) == [float(v) for v in range(31, 41)]
    assert sent.payload.thresholds.tolist() == [31.0]


def test_between_the_share_and_its_limit_those_that_are_left_out_change_with_the_step():
    """Twenty equal entries pass where sixteen are wanted: within 1.3 times it, nothing tells them apart."""
    rule, flat, left_out = SampledTopK(density=0.8, whole_below=0), Flat(torch.ones(20), segments_of([20])), set()
    for step in range(20):
        sent = taken_by(rule, flat, step)
        assert sent.payload.values.numel() == 16
        left_out.add(tuple(sent.left.nonzero().flatten().tolist()))
    assert not set.intersection(*(set(places) for places in left_out))


def test_where_too_few_pass_the_threshold_falls_by_fifths():
    rule, segments = SampledTopK(density=10 / 1024, sample=0.01, whole_below=0), segments_of([1024])
    step = next(s for s in range(60) if _first_seen(rule, segments, s) == 0)
    x = torch.zeros(1024, dtype=torch.float64)
    # The sample sees two large entries and takes their lesser for the threshold; eight lie a little below.
    x[[0, 4]] = torch.tensor([100.0, 90.0], dtype=torch.float64)
    x[1:33:4] = 60.0
    sent = taken_by(rule, Flat(x, segments), step)
    assert sent.payload.values.tolist() == [100.0, 60.0, 90.0, *[60.0] * 7]
    # Two cuts: after the first, at 72, there were still but two.
    assert sent.payload.thresholds.tolist() == pytest.approx([90.0 * 0.8**2])


def _first_seen(rule: SampledTopK, segments, step: int) -> int:
    """Where the stride of four begins: its second largest entry is another for each beginning.

    Of seven wanted there are four of 100 and, by beginning, one of 8, 7, 6 and 5; with a threshold of 8 too few
    pass, and it falls by a fifth.
    """
    x = torch.zeros(1024, dtype=torch.float64)
    x[:4], x[4:8] = 100.0, torch.tensor([8.0, 7.0, 6.0, 5.0])
    threshold = float(taken_by(replace(rule, density=7 / 1024), Flat(x, segments), step).payload.thresholds)
    return [8.0 * 0.8, 7.0, 6.0, 5.0].index(threshold)
