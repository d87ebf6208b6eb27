"""``accumulate_`` and ``add_payloads_`` against the formulas of their docstrings, one number at a time."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import DTYPES, dyadic, normal, same_bits, segments_of
from laconic import kernels
from laconic.types import Segments

HOME = Segments.of(["a", "b", "empty", "c"], [3, 1, 0, 5])
MODES = [(None, False), (0.0, False), (0.9, False), (0.9, True), (1.0, True)]


def _naive(
    g: float, owed: float, u: float, scale: float, momentum: float | None, nesterov: bool
) -> tuple[float, float]:
    """One entry: what x becomes and what the velocity becomes."""
    g = scale * g
    if momentum is None:
        return g + owed, u
    if nesterov:
        u = momentum * (u + g)
        return (g + u) + owed, u
    u = momentum * u + g
    return u + owed, u


def _spread(home_flat: torch.Tensor, layout: Segments) -> torch.Tensor:
    """The entries of a vector in the model's order, laid out as ``layout`` says."""
    pieces = [home_flat[HOME[s.name].offset : HOME[s.name].offset + s.size] for s in layout]
    return torch.cat([torch.empty(0, dtype=home_flat.dtype), *pieces])


@pytest.mark.parametrize(("momentum", "nesterov"), MODES)
@pytest.mark.parametrize("names", [["a", "b", "empty", "c"], ["c", "a"], ["b", "empty"], ["empty"]], ids=str)
@settings(max_examples=10)
@given(seed=st.integers(0, 50))
def test_it_is_the_formula_entry_by_entry_in_any_layout(momentum, nesterov, names, seed):
    layout = Segments.of(names, [HOME[n].size for n in names])
    grads, owed, velocity = (normal(HOME.numel, 3 * seed + i, torch.float64) for i in range(3))
    scales = {"a": 0.5, "b": -3.0, "empty": 7.0, "c": 0.1}
    x, u, before = _spread(grads, layout), velocity.clone(), owed.clone()
    kernels.accumulate_(
        x,
        owed,
        [scales[n] for n in names],
        layout,
        HOME,
        velocity=None if momentum is None else u,
        momentum=momentum or 0.0,
        nesterov=nesterov,
    )
    expected_x, expected_u = torch.zeros(HOME.numel, dtype=torch.float64), velocity.clone()
    for name in names:
        for i in range(HOME[name].offset, HOME[name].offset + HOME[name].size):
            entry = (float(grads[i]), float(owed[i]), float(velocity[i]))
            expected_x[i], expected_u[i] = _naive(*entry, scales[name], momentum, nesterov)
    assert same_bits(x, _spread(expected_x, layout))
    assert same_bits(u, expected_u)
    assert same_bits(owed, before)


def test_momentum_over_steps_is_sgd_with_momentum():
    layout, owed = segments_of([6]), torch.zeros(6, dtype=torch.float64)
    grads = [dyadic(6, seed) for seed in range(5)]
    for nesterov in (False, True):
        parameter = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
        optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5, nesterov=nesterov)
        total, u = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
        for grad in grads:
            parameter.grad = grad.clone()
            optimizer.step()
            x = grad.clone()
            kernels.accumulate_(x, owed, [1.0], layout, layout, velocity=u, momentum=0.5, nesterov=nesterov)
            total += x
        torch.testing.assert_close(total, -parameter.detach(), rtol=1e-12, atol=0)


@given(st.lists(st.integers(0, 70), min_size=1, max_size=3), st.data())
def test_a_number_that_is_not_finite_is_seen_wherever_it_stands(sizes, data):
    layout, numel = segments_of(sizes), sum(sizes)
    x, owed = normal(numel, 1), torch.zeros(numel)
    bad = data.draw(st.integers(0, numel - 1)) if numel else None
    if bad is not None:
        x[bad] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    sums = kernels.accumulate_(x, owed, [1.0] * len(sizes), layout, layout)
    assert sums.finite() is (bad is None)
    seen = torch.isfinite(sums.largest).tolist()
    assert seen == [bad is None or not s.offset <= bad < s.offset + s.size for s in layout]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_number_is_seen_under_a_scale_of_zero(value):
    layout = segments_of([3])
    assert not kernels.accumulate_(torch.tensor([1.0, value, 2.0]), torch.zeros(3), [0.0], layout, layout).finite()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_finite_numbers_are_finite(dtype):
    layout, largest = segments_of([4]), torch.finfo(dtype).max
    x = torch.tensor([largest, -largest, 0.0, largest], dtype=dtype)
    assert kernels.accumulate_(x, torch.zeros(4, dtype=dtype), [1.0], layout, layout).finite()


def test_squares_are_of_the_gradient_before_scaling_and_the_largest_is_of_what_is_owed_after():
    layout = segments_of([2, 0, 3])
    x = torch.tensor([3.0, -4.0, 1.0, 2.0, -2.0])
    sums = kernels.accumulate_(x, torch.ones(5), [10.0, 10.0, 10.0], layout, layout)
    torch.testing.assert_close(sums.squares, torch.tensor([25.0, 0.0, 9.0]))
    assert sums.largest.tolist() == [39.0, 0.0, 21.0]


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_sum_that_overflows_is_seen(nesterov):
    layout, large = segments_of([3]), torch.tensor([0.0, 3e38, 0.0])
    assert not kernels.accumulate_(large.clone(), large, [1.0], layout, layout).finite()
    assert not kernels.accumulate_(large.clone(), torch.zeros(3), [2.0], layout, layout).finite()
    sums = kernels.accumulate_(
        large.clone(),
        torch.zeros(3),
        [1.0],
        layout,
        layout,
        velocity=large.clone(),
        momentum=1.0,
        nesterov=nesterov,
    )
    assert not sums.finite()


@given(st.integers(0, 70), st.data())
def test_all_finite_sees_the_one_that_is_not(numel, data):
    x = normal(numel, 1) * 1e30
    assert kernels.all_finite(x)
    if numel:
        x[data.draw(st.integers(0, numel - 1))] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
        assert not kernels.all_finite(x)


@pytest.mark.parametrize("order", list(itertools.permutations([1e16, 1.0, -1e16])), ids=str)
def test_payloads_are_added_in_the_order_of_ranks(order):
    out = torch.tensor([0.5, 7.0], dtype=torch.float64)
    at = torch.tensor([0])
    kernels.add_payloads_(out, [at] * 3, [torch.tensor([v], dtype=torch.float64) for v in order])
    assert float(out[0]) == ((0.5 + order[0]) + order[1]) + order[2]
    assert float(out[1]) == 7.0


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 100))
def test_payloads_are_added_entry_by_entry(numel, ranks, seed):
    source = torch.Generator().manual_seed(seed)
    out = normal(numel, seed)
    expected = out.tolist()
    positions, values = [], []
    for _ in range(ranks):
        at = torch.nonzero(torch.rand(numel, generator=source) < 0.5).flatten()
        value = torch.randn(at.numel(), generator=source)
        positions.append(at)
        values.append(value)
        for i, v in zip(at.tolist(), value.tolist(), strict=True):
            expected[i] = float(torch.tensor(expected[i]) + torch.tensor(v))
    kernels.add_payloads_(out, positions, values)
    assert out.tolist() == expected


def test_no_payload_adds_nothing():
    out = torch.ones(3)
    kernels.add_payloads_(out, [torch.empty(0, dtype=torch.int64)], [torch.empty(0)])
    kernels.add_payloads_(out, [], [])
    assert out.tolist() == [1.0, 1.0, 1.0]
