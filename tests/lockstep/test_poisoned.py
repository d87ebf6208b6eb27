"""A gradient that is not finite never enters memory, and all ranks skip that step together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import same_bits
from laconic.exchanges import GatherMean
from laconic.methods import Method
from lockstep.world import MODEL, World, gradients

# Registered methods, and combinations that a user may write.
OWN = [
    replace(laconic.dense(), name="dense, gathered", exchange=GatherMean()),
    replace(laconic.dense(), name="dense, whole", scope="model"),
    replace(laconic.randomk(0.3), name="randomk, gathered", exchange=GatherMean()),
    replace(laconic.randomk(0.3), name="randomk, forgetful", memory="none"),
    replace(laconic.topk(0.3, whole_below=100), name="topk, all known"),
]
METHODS = [*recipes(), *OWN]
BUCKETS = [["v", "s"], ["b", "empty"], ["w"]]

every_method = pytest.mark.parametrize("method", METHODS, ids=label)
every_kind = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


def _poisoned(ranks: int, step: int, *, rank: int, name: str, bad: float) -> list[torch.Tensor]:
    grads = gradients(ranks, step, dtype=torch.float32)
    grads[rank][MODEL[name].offset + MODEL[name].size // 2] = bad
    return grads


def _world(method: Method, ranks: int) -> World:
    """A world that owes something."""
    world = World(method, ranks, dtype=torch.float32)
    for step in range(2):
        world.step(gradients(ranks, step, dtype=torch.float32), buckets=BUCKETS)
    return world


def _check_skipped(world: World, means: list[torch.Tensor], before: list[torch.Tensor], times: int) -> None:
    assert all(bool(mean.isnan().all()) for mean in means)
    assert all(same_bits(a, b) for a, b in zip(world.owed(), before, strict=True))
    for reducer in world.reducers:
        assert reducer.outcome.skipped
        assert reducer.stats().skipped_steps == times


@every_method
@every_kind
@pytest.mark.parametrize("name", ["w", "b", "s"])
def test_all_ranks_skip_together_and_remember_nothing_of_it(method, bad, name):
    world = _world(method, 3)
    before = world.owed()
    for times, rank in enumerate(range(3), start=1):
        means = world.step(_poisoned(3, 1 + times, rank=rank, name=name, bad=bad), buckets=BUCKETS)
        _check_skipped(world, means, before, times)


@every_method
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_next_step_is_a_step_like_any_other(method, ranks):
    world = _world(method, ranks)
    world.step(_poisoned(ranks, 2, rank=ranks - 1, name="w", bad=math.nan), buckets=BUCKETS)
    means = world.step(gradients(ranks, 3, dtype=torch.float32), buckets=BUCKETS)
    assert bool(torch.isfinite(means[0]).all())
    assert bool(means[0].any())
    assert all(same_bits(mean, means[0]) for mean in means)
    for reducer in world.reducers:
        assert not reducer.outcome.skipped
        assert reducer.step == reducer.stats().steps == 4


# A warm-up and a random draw follow the step's number, and a skipped step has one.
UNNUMBERED = [m for m in METHODS if m.compressor.name == "topk" and m.tuner.name == "constant"]


@pytest.mark.parametrize("method", UNNUMBERED, ids=label)
def test_after_a_skipped_step_it_goes_on_as_if_that_step_had_not_been(method):
    untouched, poisoned = _world(method, 2), _world(method, 2)
    poisoned.step(_poisoned(2, 9, rank=0, name="v", bad=math.inf), buckets=BUCKETS)
    for step in (2, 3):
        grads = gradients(2, step, dtype=torch.float32)
        assert same_bits(untouched.step(grads)[0], poisoned.step(grads)[0])


@every_method
def test_all_entries_on_all_ranks_may_be_bad(method):
    world = _world(method, 2)
    before = world.owed()
    means = world.step([torch.full((MODEL.numel,), math.nan)] * 2, buckets=BUCKETS)
    _check_skipped(world, means, before, 1)


@pytest.mark.parametrize("method", [m for m in recipes() if m.memory == "update"], ids=label)
def test_a_bad_gradient_at_a_rate_of_zero_is_bad_too(method):
    world = _world(method, 2)
    before = world.owed()
    means = world.step(_poisoned(2, 2, rank=1, name="w", bad=math.nan), rates=0.0)
    _check_skipped(world, means, before, 1)


@pytest.mark.parametrize("method", [m for m in recipes() if m.memory == "gradient"], ids=label)
def test_an_infinity_under_a_loss_scale_is_skipped_together(method):
    world = _world(method, 2)
    before = world.owed()
    means = world.step(_poisoned(2, 2, rank=0, name="v", bad=math.inf), grad_scale=65536.0)
    _check_skipped(world, means, before, 1)


@every_method
def test_large_gradients_that_are_finite_are_not_skipped(method):
    world = World(method, 2)
    grads = [g * 1e150 for g in gradients(2, 0)]
    assert bool(torch.isfinite(world.step(grads)[0]).all())
    assert not world.reducers[0].outcome.skipped


@pytest.mark.parametrize("method", [m for m in METHODS if m.memory == "gradient"], ids=label)
@pytest.mark.parametrize("large", [1, MODEL.numel])
def test_a_sum_with_what_is_owed_that_overflows_does_not_enter_memory(method, large):
    """Finite gradients, finite memory, and a sum beyond float32: infinities were owed from then on."""
    world = World(method, 1, dtype=torch.float32)
    for _ in range(12):
        grad = torch.zeros(MODEL.numel)
        grad[:large] = 3e38
        world.step([grad])
        assert all(bool(torch.isfinite(owed).all()) for owed in world.owed())


@pytest.mark.parametrize("method", METHODS, ids=label)
def test_a_mean_is_finite_or_the_step_is_skipped(method):
    """The sum over ranks overflowed before the division: infinities were handed back as a good step."""
    world = World(method, 4, dtype=torch.float32)
    means = world.step([torch.full((MODEL.numel,), 3e38) for _ in range(4)])
    assert bool(torch.isfinite(means[0]).all()) or all(r.outcome.skipped for r in world.reducers)
