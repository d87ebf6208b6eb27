"""Values in bins: against the obvious loop, segment by segment, and what rounding loses stays owed."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import Flat, normal, segments_of, taken_by
from laconic import kernels
from laconic.compressors import AdaComp, Binned, ChunkTopK, GaussianK, TopK
from laconic.kernels import reference

ALL = TopK(density=1.0, whole_below=0)


def _one_by_one(values: list[float], bins: int) -> list[float]:
    """The formula, for the values of one segment."""
    if not values:
        return []
    mean = statistics.fmean(values)
    width = 6 * statistics.pstdev(values) / bins
    at = [min(bins - 1, max(0, round((v - mean) / width + bins / 2))) if width else 0 for v in values]
    return [statistics.fmean(v for v, other in zip(values, at, strict=True) if other == b) for b in at]


@given(sizes=st.lists(st.integers(0, 40), max_size=4), bits=st.integers(1, 6), seed=st.integers(0, 99))
def test_it_is_the_formula_for_each_segment(sizes, bits, seed):
    flat = Flat(normal(sum(sizes), seed, torch.float64), segments_of(sizes))
    sent = taken_by(Binned(inner=ALL, bits=bits), flat)
    expected = [v for part in flat.segments.views(flat.x) for v in _one_by_one(part.tolist(), 2**bits)]
    torch.testing.assert_close(sent.decoded(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("inner", [TopK(density=0.1), ChunkTopK(k=8, chunk=64), GaussianK(density=0.1)], ids=repr)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_it_chooses_as_the_inner_one_and_what_rounding_loses_stays(inner, bits):
    flat = Flat(normal(5000, 3), segments_of([3000, 100, 1900]))
    plain, ours = taken_by(inner, flat), taken_by(Binned(inner=inner, bits=bits), flat)
    assert torch.equal(ours.payload.positions, plain.payload.positions)
    assert torch.equal(ours.payload.wanted, plain.payload.wanted)
    assert torch.equal(ours.payload.known, plain.payload.known), "small parameters are not rounded"
    torch.testing.assert_close(ours.decoded() + ours.left, flat.x)
    assert not torch.equal(ours.left, plain.left)
    for segment in ours.plan.choosing:
        at = ours.payload.positions
        values = ours.payload.values[(at >= segment.offset) & (at < segment.offset + segment.size)]
        assert 1 < len(set(values.tolist())) <= 2**bits
    # A bin's mean has its bin's sum: nothing is shifted on the whole.
    torch.testing.assert_close(ours.payload.values.sum(), plain.payload.values.sum(), rtol=1e-5, atol=1e-3)


def test_many_bits_lose_little():
    flat = Flat(normal(2000, 3), segments_of([2000]))
    lost = [
        float(taken_by(Binned(inner=ALL, bits=bits), flat).left.norm() / flat.x.norm()) for bits in (1, 2, 4, 8)
    ]
    assert lost == sorted(lost, reverse=True)
    assert lost[-1] < 0.02
    assert lost[0] > 0.5


def test_a_segment_is_rounded_by_itself_whatever_lies_beside_it():
    x = normal(90, 1)
    alone = taken_by(Binned(inner=ALL), Flat(x[30:60], segments_of([30])))
    beside = taken_by(Binned(inner=ALL), Flat(torch.cat([100 * x[:30], x[30:]]), segments_of([30, 30, 0, 30])))
    assert torch.equal(beside.decoded()[30:60], alone.decoded())


def test_values_that_are_alike_and_single_ones_are_sent_as_they_are():
    x = torch.tensor([0.1] * 7 + [-3.3])
    sent = taken_by(Binned(inner=ALL), Flat(x, segments_of([7, 1])))
    assert torch.equal(sent.decoded(), x)
    assert not sent.left.any()


def test_zeros_stay_zeros_and_count_for_nothing():
    """A parameter that is held has zeros only, and nothing may be sent of it."""
    x = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0, 0.0])
    sent = taken_by(Binned(inner=ALL), Flat(x, segments_of([4, 2])))
    assert sent.payload.values.tolist() == [0.0, 1.0, 0.0, 3.0, 0.0, 0.0]
    few = normal(30, 1) + 1
    alone = taken_by(Binned(inner=ALL), Flat(few, segments_of([30])))
    among = taken_by(Binned(inner=ALL), Flat(torch.cat([few, torch.zeros(50)]), segments_of([80])))
    assert torch.equal(among.decoded()[:30], alone.decoded())
    assert not among.decoded()[30:].any()


def test_unused_room_stays_zero(monkeypatch):
    monkeypatch.setattr(kernels, "_twin", lambda x: reference)
    monkeypatch.setattr(reference, "_take_passed_", reference._take_static_)
    flat = Flat(normal(200, 3), segments_of([200]))
    sent = taken_by(Binned(inner=GaussianK(density=0.1, whole_below=0)), flat, rooms={"p0": 100})
    count = int(sent.payload.wanted)
    assert count < 100 == sent.payload.values.numel()
    assert sent.payload.values[:count].all()
    assert not sent.payload.values[count:].any()
    torch.testing.assert_close(sent.decoded() + sent.left, flat.x)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_breaks_nothing(bad):
    x = normal(20, 1)
    x[3] = bad
    sent = taken_by(Binned(inner=ChunkTopK(k=4, chunk=4, whole_below=0)), Flat(x, segments_of([20])))
    assert sent.payload.positions.tolist() == list(range(20))
    assert not torch.isfinite(sent.payload.values).all()


def test_it_varies_and_reads_as_the_inner_one():
    for inner in (ALL, GaussianK(density=0.1), AdaComp()):
        rule = Binned(inner=inner)
        assert (rule.counts_vary, rule.reads_before) == (inner.counts_vary, inner.reads_before)
