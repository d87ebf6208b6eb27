"""Signs of the largest entries: TopK with one bit a value, and what that is worth by the CAT paper."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import laconic
from contracts.vectors import Flat, normal, segments_of, taken_by
from laconic.averaging import dense
from laconic.codecs import SignMean
from laconic.compressors import AdaComp, Strom, TopK
from laconic.exchanges import GatherMean
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope

# PAPERS.md 4.8: a gradient, and the decrease that sign times mean magnitude guarantees for 1 to 8 of its entries.
GOLDEN = torch.tensor([4, -3, 2, -1.5, 1, -0.5, 0.25, 0.1], dtype=torch.float64)
BETA = [0.491212, 0.752168, 0.828920, 0.846189, 0.812035, 0.736818, 0.658147, 0.585319]

# For the compressors whose counts vary.
ROOMS = {"p0": 40, "p1": 20}


def _sent_(compressor: Compressor, x: Tensor, sizes: list[int]) -> Tensor:
    """What one rank's message stands for; x is left with the rest."""
    world, envelope = Lockstep(1), Envelope(step=0, world_size=1, rooms=ROOMS)
    steps = GatherMean(values=SignMean()).steps(x, segments_of(sizes), compressor, envelope)
    future = world.ports[0].start(steps, label="signs")
    world.ports[0].drain()
    return dense(future.value().values, x)


def _one_by_one(values: list[float], density: float) -> list[float]:
    """The formula for one parameter. A chosen zero has the sign +: one bit says + or -, and nothing else."""
    count = min(len(values), max(1, round(len(values) * density))) if values else 0
    largest = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:count]
    mean = math.fsum(abs(values[i]) for i in largest) / max(1, count)
    return [(-mean if v < 0 else mean) if i in largest else 0.0 for i, v in enumerate(values)]


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 30), max_size=4), density=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_it_is_the_formula_for_each_parameter_and_the_rest_is_left(sizes, density, seed):
    # Multiples of 1/4, so that there are zeros and ties.
    x = (normal(sum(sizes), seed, torch.float64) * 4).round() / 4
    before = x.clone()
    expected = [v for part in x.split(sizes) for v in _one_by_one(part.tolist(), density)] if sizes else []
    sent = _sent_(TopK(density=density, whole_below=0), x, sizes)
    assert sent.tolist() == pytest.approx(expected, rel=1e-14, abs=1e-14)
    torch.testing.assert_close(sent + x, before, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("count", range(1, 9))
def test_what_is_sent_decreases_the_objective_as_published(count):
    """With step 1/L what is left of L/2 |x|^2 is 1 - beta of it."""
    left = GOLDEN.clone()
    sent = _sent_(TopK(density=count / 8, whole_below=0), left, [8])
    assert sent.count_nonzero() == count
    assert 1 - float(left.square().sum() / GOLDEN.square().sum()) == pytest.approx(BETA[count - 1], abs=1e-6)


def test_cat_by_signs_sends_the_largest_with_one_bit_each():
    method = laconic.cat("bits", rule="sign", start=0.25)
    assert (method.compressor, method.exchange) == (TopK(density=0.25), GatherMean(values=SignMean()))
    assert method.tuner.gain == "beta"
    with pytest.raises(ValueError, match=r"rule='sign' says how values are written, got values='int4'\. Leave"):
        laconic.cat("bits", rule="sign", values="int4")


@pytest.mark.parametrize("rule", [Strom(tau=0.7, whole_below=0), AdaComp(bin_size=8, whole_below=0)], ids=repr)
def test_where_one_magnitude_is_chosen_one_bit_loses_nothing(rule):
    x = normal(90, 1)
    exact = taken_by(rule, Flat(x, segments_of([60, 30])), rooms=ROOMS)
    assert exact.payload.values.numel() > 8
    assert torch.equal(_sent_(rule, x, [60, 30]), exact.decoded())
    assert torch.equal(x, exact.left)


def test_a_parameter_has_its_own_magnitude_whatever_lies_beside_it():
    x, rule = normal(90, 1), TopK(density=0.2, whole_below=0)
    alone = _sent_(rule, x[30:60].clone(), [30])
    beside = _sent_(rule, torch.cat([100 * x[:30], x[30:]]), [30, 30, 0, 30])
    assert torch.equal(beside[30:60], alone)


def test_a_parameter_that_is_sent_whole_has_one_bit_an_entry_too():
    x = normal(50, 1)
    sent = _sent_(TopK(density=0.2, whole_below=1024), x, [50])
    assert sent.abs().unique().numel() == 1


def test_a_parameter_of_zeros_stays_zero():
    """Of one that is held nothing may be sent."""
    x = torch.tensor([1.0, -3.0, 0.0, 0.0])
    assert _sent_(TopK(density=1.0, whole_below=0), x, [2, 2]).tolist() == [2.0, -2.0, 0.0, 0.0]
