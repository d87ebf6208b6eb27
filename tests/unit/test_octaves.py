"""Values by octaves of magnitude: against the obvious loop, span by span, and on values as ranks owe them."""

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
from laconic.codecs import Linear, Octaves, SignMean
from laconic.coding import Codec


def _octaves(values: list[float]) -> list[int]:
    """How many octaves of two each magnitude lies below the largest one's; 15 at most."""
    top = math.frexp(max(map(abs, values)))[1]
    return [min(15, top - math.frexp(v)[1]) if v else 15 for v in values]


def _by_class(values: list[float], classes: list[int]) -> list[float]:
    sizes = {c: [abs(v) for v, other in zip(values, classes, strict=True) if other == c] for c in set(classes)}
    return [math.copysign(statistics.fmean(sizes[c]), v) for v, c in zip(values, classes, strict=True)]


def _lost(values: list[float], read: list[float]) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(values, read, strict=True))


def _read(codec: Codec, values: Tensor, sizes: list[int]) -> Tensor:
    """What arrives of values whose spans have these sizes."""
    ends = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    coded = codec.encode(values, ends, seed=0)
    return kernels.dequantise(coded.codes, ends, coded.numbers, codec.form)


def _heavy(count: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Most are small, and a few are dozens of times as large: what ranks have where another has chosen."""
    return normal(count, seed, dtype) * normal(count, seed + 1, dtype).exp()


_spans = st.lists(st.integers(0, 40), min_size=1, max_size=4)


@settings(max_examples=25)
@given(sizes=_spans, seed=st.integers(0, 99))
def test_with_four_bits_each_octave_has_its_mean(sizes, seed):
    values = _heavy(sum(sizes), seed)
    expected = []
    for part in values.split(sizes):
        if part.numel():
            expected += _by_class(part.tolist(), [min(7, octave) for octave in _octaves(part.tolist())])
    torch.testing.assert_close(_read(Octaves(), values, sizes), torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=25)
@given(sizes=_spans, seed=st.integers(0, 99))
def test_with_two_bits_no_other_parting_between_octaves_loses_less(sizes, seed):
    values = _heavy(sum(sizes), seed)
    for part, read in zip(values.split(sizes), _read(Octaves(bits=2), values, sizes).split(sizes), strict=True):
        if not part.numel():
            continue
        octaves = _octaves(part.tolist())
        least = min(
            _lost(part.tolist(), _by_class(part.tolist(), [int(octave > split) for octave in octaves]))
            for split in range(16)
        )
        assert read.abs().unique().numel() <= 2
        assert _lost(part.tolist(), read.tolist()) == pytest.approx(least)


def test_of_values_as_ranks_owe_them_it_loses_least_at_its_bits():
    values = _heavy(20_000, 5)
    lost = {
        codec: float(((_read(codec, values, [20_000]) - values).norm() / values.norm()) ** 2)
        for codec in (SignMean(), Octaves(bits=2), Linear(bits=2), Octaves(), Linear(bits=4))
    }
    assert lost[Octaves()] < 0.3 * lost[Linear(bits=4)]
    assert lost[Octaves(bits=2)] < 0.7 * min(lost[SignMean()], lost[Linear(bits=2)])


@pytest.mark.parametrize("bits", [2, 4])
def test_signs_stay_and_so_does_the_sum_of_magnitudes(bits):
    values = _heavy(900, 3)
    read = _read(Octaves(bits=bits), values, [500, 400])
    assert torch.equal(read.sign(), values.sign())
    for ours, theirs in zip(read.split([500, 400]), values.split([500, 400]), strict=True):
        torch.testing.assert_close(ours.abs().sum(), theirs.abs().sum())


@pytest.mark.parametrize("bits", [2, 4])
def test_a_span_is_rounded_by_itself_whatever_lies_beside_it(bits):
    codec, x = Octaves(bits=bits), normal(90, 1)
    alone = _read(codec, x[30:60], [30])
    beside = _read(codec, torch.cat([100 * x[:30], x[30:]]), [30, 30, 0, 30])
    assert torch.equal(beside[30:60], alone)


@pytest.mark.parametrize("bits", [2, 4])
def test_room_behind_the_last_span_stands_for_nothing(bits):
    coded = Octaves(bits=bits).encode(torch.tensor([8.0, -1.0, 0.0, -3.0]), torch.tensor([2]), seed=0)
    assert coded.codes[:2].any()
    assert not coded.codes[2:].any()


@pytest.mark.parametrize("bits", [2, 4])
def test_values_that_are_alike_and_single_ones_are_sent_as_they_are(bits):
    x = torch.tensor([0.1, -0.1] * 4 + [-3.3] + [0.0] * 3)
    assert torch.equal(_read(Octaves(bits=bits), x, [8, 1, 3]), x)


def test_a_zero_among_others_is_the_smallest_there_is():
    x = torch.tensor([0.0, 0.5, 0.0, 3.0])
    assert torch.equal(_read(Octaves(), x, [4]), x)
    assert _read(Octaves(bits=2), x, [4]).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 3.0])


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so_and_harms_no_other_span(bad, bits):
    x = normal(20, 1)
    x[3] = bad
    read = _read(Octaves(bits=bits), x, [10, 10])
    assert not torch.isfinite(read[:10]).all()
    assert torch.equal(read[10:], _read(Octaves(bits=bits), x[10:], [10]))
