"""Local clipping: the thresholds of each convention, and what a gradient is multiplied by."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.bad_settings import BAD_SETTINGS, NEEDED, refusal
from contracts.vectors import normal
from laconic.clipping import LocalClip, clip_factors

norms = st.floats(0.0, 1e6)


@given(st.lists(norms, max_size=5), st.floats(1e-3, 1e3))
def test_a_factor_is_one_or_brings_the_norm_to_the_threshold(values, threshold):
    factors = clip_factors(torch.tensor(values, dtype=torch.float64), threshold).tolist()
    for norm, factor in zip(values, factors, strict=True):
        assert 0 < factor <= 1
        assert factor * norm == pytest.approx(min(norm, threshold), rel=1e-12)
        assert factor == 1 if norm <= threshold else factor < 1 or norm < threshold * (1 + 1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(threshold=st.floats(2**-10, 2**10, width=32))
def test_a_norm_at_the_threshold_is_not_clipped_and_one_a_little_above_is(dtype, threshold):
    """A quotient of equal numbers may round to less than 1: a gradient at the threshold would count as clipped."""
    above = 1 + 4 * torch.finfo(dtype).eps
    factors = clip_factors(torch.tensor([threshold, threshold * above], dtype=dtype), threshold)
    assert float(factors[0]) == 1.0
    assert float(factors[1]) < 1.0


def test_a_clipped_gradient_has_the_threshold_for_a_norm_and_its_own_direction():
    g = normal(50, 1, torch.float64)
    clipped = g * clip_factors(torch.linalg.vector_norm(g).unsqueeze(0), 0.5)
    assert float(clipped.norm()) == pytest.approx(0.5)
    assert float(torch.nn.functional.cosine_similarity(clipped, g, dim=0)) == pytest.approx(1.0)


def test_it_is_what_clip_grad_norm_does():
    """Up to the 1e-6 that torch adds to the norm."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (3, 20)]
    for i, p in enumerate(parameters):
        p.grad = normal(p.numel(), i)
    whole = torch.linalg.vector_norm(torch.cat([p.grad for p in parameters]))
    ours = [p.grad * clip_factors(whole, 0.25) for p in parameters]
    torch.nn.utils.clip_grad_norm_(parameters, 0.25)
    for mine, p in zip(ours, parameters, strict=True):
        torch.testing.assert_close(mine, p.grad, rtol=1e-5, atol=0)


def test_a_gradient_of_zero_is_left_and_a_bad_norm_stays_visible():
    factors = clip_factors(torch.tensor([0.0, math.inf, math.nan]), 1.0)
    assert factors[:2].tolist() == [1.0, 0.0]
    assert math.isnan(float(factors[2]))


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_each_convention_has_its_threshold(ranks):
    def threshold(convention):
        return LocalClip(norm=3.0, convention=convention).threshold(world_size=ranks)

    assert threshold("mean") == pytest.approx(3.0 * math.sqrt(ranks))
    assert threshold("sum") == pytest.approx(3.0 / math.sqrt(ranks))
    assert threshold("local") == 3.0


def test_alone_all_conventions_are_the_same():
    assert {LocalClip(norm=3.0, convention=c).threshold(world_size=1) for c in ("mean", "sum", "local")} == {3.0}


@pytest.mark.parametrize(("field", "value"), BAD_SETTINGS[LocalClip])
def test_a_bad_setting_is_refused_with_what_it_got_what_it_wants_and_what_to_do(field, value):
    with pytest.raises(ValueError, match=refusal(field, value)):
        LocalClip(**{**NEEDED[LocalClip], field: value})


def test_every_setting_has_a_bad_value_that_is_refused():
    assert {field for field, _ in BAD_SETTINGS[LocalClip]} == {f.name for f in dataclasses.fields(LocalClip)}
