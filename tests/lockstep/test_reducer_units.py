"""Units of what is owed: learning rates that change or are zero, and the factor of a loss scaler."""

from __future__ import annotations

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import dyadic, same_bits
from laconic.errors import GroupError
from lockstep.world import MODEL, World, gradients

IN_GRADIENTS = [m for m in recipes() if m.memory == "gradient"]
REMEMBERING = [m for m in recipes() if m.memory != "none"]
# With decay what is owed fades in every exchange, at any rate.
WAITING = [m for m in REMEMBERING if m.decay == 1]
RATES = [0.5, 0.25, 0.25, 2.0, 0.125, 1.0]

update_methods = pytest.mark.parametrize("method", [m for m in WAITING if m.memory == "update"], ids=label)


def _rates(**special: float) -> dict[str, float]:
    return dict.fromkeys(MODEL.names, 0.5) | special


def _part(flat: torch.Tensor, name: str) -> torch.Tensor:
    return flat[MODEL[name].offset : MODEL[name].offset + MODEL[name].size]


@pytest.mark.parametrize("scope", ["layer", "model"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_update_units_are_gradient_units_rescaled_by_old_rate_over_new(scope, ranks):
    updates = World(laconic.topk(0.3, memory="update", scope=scope, whole_below=0), ranks)
    rescaled = World(laconic.topk(0.3, memory="gradient", scope=scope, whole_below=0), ranks)
    before = RATES[0]
    for step, rate in enumerate(RATES):
        grads = gradients(ranks, step, draw=dyadic)
        states = rescaled.save()
        for state in states:
            state["memory"]["owed"] = {n: v * (before / rate) for n, v in state["memory"]["owed"].items()}
        rescaled.load(states)
        assert same_bits(updates.step(grads, rates=rate)[0], rescaled.step(grads, rates=rate)[0])
        for owed, gradient_owed in zip(updates.owed(), rescaled.owed(), strict=True):
            assert torch.equal(owed, gradient_owed * rate)
        before = rate


@pytest.mark.parametrize("method", IN_GRADIENTS, ids=label)
def test_gradient_units_do_not_know_the_rate(method):
    one, other = World(method, 2), World(method, 2)
    for step, rate in enumerate(RATES):
        grads = gradients(2, step)
        assert same_bits(one.step(grads, rates=rate)[0], other.step(grads, rates=0.5)[0])
    assert all(same_bits(a, b) for a, b in zip(one.owed(), other.owed(), strict=True))


@pytest.mark.parametrize("method", WAITING, ids=label)
def test_at_a_rate_of_zero_nothing_is_handed_back_and_what_is_owed_waits(method):
    """As for the dense parent, a gradient at rate 0 counts for nothing; in either unit memory is as before."""
    world = World(method, 2)
    world.step(gradients(2, 0))
    before = [owed.clone() for owed in world.owed()]
    assert any(owed.any() for owed in before) or method.compressor.density == 1
    for step in (1, 2):
        means = world.step(gradients(2, step), rates=0.0)
        assert not any(mean.any() for mean in means)
        assert all(same_bits(a, b) for a, b in zip(world.owed(), before, strict=True))


@pytest.mark.parametrize("method", REMEMBERING, ids=label)
def test_a_rate_too_small_to_divide_by_is_a_rate_of_zero(method):
    tiny, zero = World(method, 2, dtype=torch.float32), World(method, 2, dtype=torch.float32)
    for step, rate in enumerate([0.5, 1e-40, 0.5]):
        grads = gradients(2, step, dtype=torch.float32)
        mean = tiny.step(grads, rates=rate)[0]
        assert bool(torch.isfinite(mean).all())
        assert same_bits(mean, zero.step(grads, rates=rate if rate > 1e-30 else 0.0)[0])


@update_methods
def test_one_parameter_at_a_rate_of_zero_waits_and_the_others_go_on(method):
    world = World(method, 2)
    world.step(gradients(2, 0))
    before = [owed.clone() for owed in world.owed()]
    mean = world.step(gradients(2, 1), rates=_rates(w=0.0), buckets=[["v", "s", "b"], ["w", "empty"]])[0]
    assert not _part(mean, "w").any()
    assert bool(_part(mean, "v").any())
    for now, then in zip(world.owed(), before, strict=True):
        assert same_bits(_part(now, "w"), _part(then, "w"))
        assert not torch.equal(_part(now, "v"), _part(then, "v"))


@update_methods
def test_each_parameter_has_its_own_rate(method):
    world = World(method, 2)
    rates = _rates(w=0.25, v=4.0)
    given = handed = torch.zeros(MODEL.numel, dtype=torch.float64)
    for step in range(5):
        grads = gradients(2, step, draw=dyadic)
        given = given + torch.stack(world.enters(grads, rates=rates)).sum(0)
        handed = handed + world.step(grads, rates=rates)[0] * 2 * world.units(rates)
    torch.testing.assert_close(handed + torch.stack(world.owed()).sum(0), given, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("method", REMEMBERING, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_memory_is_the_same_whatever_the_loss_scale(method, dtype):
    plain, scaled = World(method, 2, dtype=dtype), World(method, 2, dtype=dtype)
    for step, scale in enumerate([1024.0, 1.0, 65536.0, 0.5]):
        grads = gradients(2, step, dtype=dtype)
        mean = plain.step(grads)[0]
        scaled_mean = scaled.step([g * scale for g in grads], grad_scale=scale)[0]
        # Handed back in the caller's own units: the scaler divides by its scale later.
        assert same_bits(scaled_mean, mean * scale)
        assert all(same_bits(a, b) for a, b in zip(scaled.owed(), plain.owed(), strict=True))
    assert plain.owed()[0].any()


@pytest.mark.parametrize("method", [m for m in recipes() if m.memory == "none"], ids=label)
def test_without_memory_scaled_gradients_stay_scaled(method):
    grads = gradients(2, 0)
    plain = World(method, 2).step([g.clone() for g in grads])[0]
    scaled = World(method, 2).step([g * 1024 for g in grads], grad_scale=1024.0)[0]
    assert same_bits(scaled, plain * 1024)


@pytest.mark.parametrize("method", REMEMBERING, ids=label)
@pytest.mark.parametrize("other", [_rates(w=0.25), _rates(w=0.25, v=0.75)], ids=["one", "same sum"])
def test_ranks_at_different_rates_are_told_so(method, other):
    world = World(method, 2)
    grads = gradients(2, 0)
    for rank, reducer in enumerate(world.reducers):
        reducer.begin_step(rates=other if rank else _rates())
        reducer.begin(grads[rank], MODEL)
    world.reducers[0].end_step()
    with pytest.raises(GroupError, match=r"rates.*schedule"):
        world.reducers[1].end_step()
