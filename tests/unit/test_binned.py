"""Values in bins: against the obvious loop, span by span; zeros have a bin like any other value."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.vectors import normal
from laconic import kernels
from laconic.codecs import Binned

WIDTHS = [1, 2, 4, 8]


def _one_by_one(values: list[float], bins: int) -> list[float]:
    """The formula, for the values of one span."""
    if not values:
        return []
    mean = statistics.fmean(values)
    width = 6 * statistics.pstdev(values) / bins
    at = [min(bins - 1, max(0, round((v - mean) / width + bins / 2))) if width else 0 for v in values]
    means = {b: statistics.fmean(v for v, other in zip(values, at, strict=True) if other == b) for b in set(at)}
    return [means[b] for b in at]


def _read(codec: Binned, values: Tensor, sizes: list[int]) -> Tensor:
    """What arrives of values whose spans have these sizes."""
    ends = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    coded = codec.encode(values, ends, seed=0)
    return kernels.dequantise(coded.codes, ends, coded.numbers, codec.form)[: sum(sizes)]


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    bits=st.sampled_from(WIDTHS),
    seed=st.integers(0, 99),
)
def test_it_is_the_formula_for_each_span(sizes, bits, seed):
    values = normal(sum(sizes), seed, torch.float64)
    expected = [v for part in values.split(sizes) for v in _one_by_one(part.tolist(), 2**bits)]
    torch.testing.assert_close(_read(Binned(bits=bits), values, sizes), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_span_has_as_many_values_as_bins_and_the_sum_it_had(bits):
    values = normal(900, 3, torch.float64)
    read = _read(Binned(bits=bits), values, [500, 400])
    assert all(1 < part.unique().numel() <= 2**bits for part in read.split([500, 400]))
    torch.testing.assert_close(read.split([500, 400])[0].sum(), values[:500].sum())


def test_many_bits_lose_little():
    values = normal(2000, 3)
    lost = [float((_read(Binned(bits=bits), values, [2000]) - values).norm() / values.norm()) for bits in WIDTHS]
    assert lost == sorted(lost, reverse=True)
    assert lost[-1] < 0.02
    assert lost[0] > 0.5


def test_a_span_is_rounded_by_itself_whatever_lies_beside_it():
    x = normal(90, 1)
    alone = _read(Binned(), x[30:60], [30])
    beside = _read(Binned(), torch.cat([100 * x[:30], x[30:]]), [30, 30, 0, 30])
    assert torch.equal(beside[30:60], alone)


def test_values_that_are_alike_and_single_ones_are_sent_as_they_are():
    x = torch.tensor([0.1] * 7 + [-3.3])
    assert torch.equal(_read(Binned(), x, [7, 1]), x)


def test_a_span_of_zeros_stays_zero_and_a_zero_among_others_is_a_value():
    """Of a parameter that is held nothing may be sent; but a chosen zero has a bin, as published."""
    x = torch.tensor([0.0, 0.5, 0.0, 3.0, 0.0, 0.0])
    assert _read(Binned(), x, [4, 2]).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 3.0, 0.0, 0.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so_and_harms_no_other_span(bad):
    x = normal(20, 1)
    x[3] = bad
    read = _read(Binned(), x, [10, 10])
    assert not torch.isfinite(read[:10]).all()
    assert torch.equal(read[10:], _read(Binned(), x[10:], [10]))
