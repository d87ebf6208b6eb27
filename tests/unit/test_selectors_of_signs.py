"""The selectors that send one magnitude, Strom and AdaComp, each against an obvious loop over its formula."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import Flat, normal, segments_of, taken_by
from laconic import kernels
from laconic.compressors import AdaComp, Strom

ROOMY = {"p0": 10**6, "p1": 10**6}
seeds, powers = st.integers(0, 10**4), st.sampled_from([1, 3, 5])
some = settings(max_examples=20)


def _heavy(size: int, seed: int, power: int = 3) -> torch.Tensor:
    """A vector with a heavier tail the larger the power."""
    return normal(size, seed, torch.float64) ** power


# Strom


@some
@given(seeds, st.sampled_from([0.1, 0.5, 1.5]), st.integers(1, 60))
def test_strom_sends_tau_of_what_is_beyond_it(seed, tau, room):
    x = _heavy(60, seed)
    sent = taken_by(Strom(tau=tau, whole_below=0), Flat(x, segments_of([60])), rooms={"p0": room})
    beyond = [i for i, v in enumerate(x.tolist()) if abs(v) > tau]
    assert sent.payload.wanted.tolist() == [len(beyond)]
    assert sent.payload.positions.tolist() == beyond[:room]
    assert sent.payload.values.tolist() == [math.copysign(tau, float(x[i])) for i in beyond[:room]]
    for i, (before, after) in enumerate(zip(x.tolist(), sent.left.tolist(), strict=True)):
        assert after == (before - math.copysign(tau, before) if i in beyond[:room] else before)


def test_strom_sends_nothing_where_nothing_is_beyond():
    sent = taken_by(Strom(tau=2.0, whole_below=0), Flat(torch.tensor([2.0, -2.0, 1.0]), segments_of([3])))
    assert sent.payload.count == 0
    assert sent.left.tolist() == [2.0, -2.0, 1.0]


# AdaComp


def _leaders(owed: list[float], before: list[float], bin_size: int) -> tuple[list[int], float]:
    found, maxima = [], []
    for start in range(0, len(owed), bin_size):
        entries = range(start, min(start + bin_size, len(owed)))
        maxima.append(max(abs(owed[i]) for i in entries))
        fresh = {i: owed[i] - before[i] for i in entries}
        found += [i for i in entries if abs(owed[i] + fresh[i]) >= maxima[-1]]
    return found, sum(maxima) / len(maxima)


@some
@given(seeds, st.sampled_from([1, 7, 20, 100]), st.booleans())
def test_adacomp_sends_each_bins_leaders_as_one_magnitude(seed, bin_size, empty_memory):
    segments, rule = segments_of([60]), AdaComp(bin_size=bin_size, whole_below=0)
    # Multiples of 1/8: the loop's sums are exact.
    x = (normal(60, seed, torch.float64) * 8).round() / 8 + 0.0625
    before = torch.zeros_like(x) if empty_memory else (normal(60, seed + 1, torch.float64) * 8).round() / 8
    fresh = kernels.fresh_of(x, segments)
    fresh = fresh if empty_memory else replace(fresh, before=before)
    found, scale = _leaders(x.tolist(), before.tolist(), bin_size)
    left = x.clone()
    payload = rule.compress_(left, segments, rule.plan(segments, step=0, rooms=ROOMY), fresh)
    assert payload.positions.tolist() == found
    assert payload.values.tolist() == pytest.approx([math.copysign(scale, float(x[i])) for i in found], rel=1e-14)
    x[payload.positions] -= payload.values
    torch.testing.assert_close(left, x, rtol=0, atol=1e-15)


def test_adacomp_has_a_magnitude_for_each_layer():
    flat = Flat(torch.tensor([4.0, 1.0, 2.0, 10.0, 1.0, 30.0]), segments_of([3, 3]))
    sent = taken_by(AdaComp(bin_size=2, whole_below=0), flat, rooms=ROOMY)
    # Bins (4, 1), (2) and (10, 1), (30); everything at half its bin's largest or more leads it.
    assert sent.payload.positions.tolist() == [0, 2, 3, 5]
    assert sent.payload.values.tolist() == [3.0, 3.0, 20.0, 20.0]
    assert sent.left.tolist() == [1.0, 1.0, -1.0, -10.0, 1.0, 10.0]


def test_adacomp_goes_by_the_room():
    flat = Flat(torch.ones(10), segments_of([10]))
    sent = taken_by(AdaComp(bin_size=5, whole_below=0), flat, rooms={"p0": 3})
    assert sent.payload.positions.tolist() == [0, 1, 2]
    assert sent.payload.wanted.tolist() == [10]
    assert sent.left.tolist() == [0.0] * 3 + [1.0] * 7
