"""A gradient that is not finite never enters memory, and all ranks skip that step together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import same_bits
from covering import in_turn
from laconic.exchanges import GatherMean
from laconic.method import Method
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
KINDS = [math.nan, math.inf, -math.inf]


def _poisoned(ranks: int, step: int, *, rank: int, name: str, bad: float) -> list[torch.Tensor]:
    grads = gradients(ranks, step, dtype=torch.float32)
    grads[rank][MODEL[name].offset + MODEL[name].size // 2] = bad
    return grads


def _world(method: Method, ranks: int) -> World:
    """A world that owes something."""
    world = World(method, ranks, dtype=torch.float32, track_age=method.memory != "none")
    for step in range(2):
        world.step(gradients(ranks, step, dtype=torch.float32), buckets=BUCKETS)
    return world


def _remembered(world: World) -> list[dict]:
    """All that a poisoned step must leave alone: memory of every kind, rooms, deviations and the alarm."""
    states = world.save()
    return [
        {"memory": s["memory"], "ledger": s["ledger"], "alarm": s["alarm"] | {"skipped_in_a_row": 0}}
        for s in states
    ]


def _check_skipped(world: World, means: list[torch.Tensor], before: list[dict], times: int) -> None:
    assert all(bool(mean.isnan().all()) for mean in means)
    for now, then in zip(_remembered(world), before, strict=True):
        assert now["ledger"] == then["ledger"]
        assert now["alarm"] == then["alarm"]
        assert now["memory"].keys() == then["memory"].keys()
        for kind, vectors in now["memory"].items():
            assert all(torch.equal(v, then["memory"][kind][name]) for name, v in vectors.items())
    for reducer in world.reducers:
        assert reducer.outcome.skipped
        assert reducer.stats().skipped_steps == times


@pytest.mark.parametrize(("method", "turn"), in_turn(METHODS, range(3), ids=label))
def test_all_ranks_skip_together_and_remember_nothing_of_it(method, turn):
    """Each rank, each kind of bad number and a parameter of each size, met in another way by the next method."""
    world = _world(method, 3)
    before = _remembered(world)
    for rank, bad in enumerate(KINDS):
        name = ["w", "b", "s"][(rank + turn) % 3]
        means = world.step(_poisoned(3, 2 + rank, rank=rank, name=name, bad=bad), buckets=BUCKETS)
        _check_skipped(world, means, before, rank + 1)


@pytest.mark.parametrize(("method", "ranks"), in_turn(METHODS, [1, 2], ids=label))
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


# A warm-up, a random draw and whose turn it is follow the step's number, and a skipped step has one.
NUMBERED = {"in_parts", "led_mean"}
UNNUMBERED = [
    m
    for m in METHODS
    if m.compressor.name == "topk" and m.tuner.name == "constant" and m.exchange.name not in NUMBERED
]
LEARNING = [m for m in METHODS if m.tuner.name in ("target_density", "progress", "stages")]


@pytest.mark.parametrize("method", UNNUMBERED, ids=label)
def test_after_a_skipped_step_it_goes_on_as_if_that_step_had_not_been(method):
    untouched, poisoned = _world(method, 2), _world(method, 2)
    poisoned.step(_poisoned(2, 9, rank=0, name="v", bad=math.inf), buckets=BUCKETS)
    for step in (2, 3):
        grads = gradients(2, step, dtype=torch.float32)
        assert same_bits(untouched.step(grads)[0], poisoned.step(grads)[0])


@pytest.mark.parametrize("method", LEARNING, ids=label)
def test_a_tuner_learns_nothing_from_a_skipped_step(method):
    world = _world(method, 2)
    for step in range(2, 12):
        world.step(_poisoned(2, step, rank=0, name="w", bad=math.nan), losses=[1e-6, 1e6])
        before = world.save()
        world.step(gradients(2, step, dtype=torch.float32), losses=[3.0 / step, 2.0])
        for now, then in zip(world.save(), before, strict=True):
            assert now["tuner"] == then["tuner"]
            assert now["setting"] == then["setting"]
    assert world.save()[0]["tuner"] != method.tuner.init(method.compressor)


@every_method
def test_all_entries_on_all_ranks_may_be_bad(method):
    world = _world(method, 2)
    before = _remembered(world)
    means = world.step([torch.full((MODEL.numel,), math.nan)] * 2, buckets=BUCKETS)
    _check_skipped(world, means, before, 1)


@pytest.mark.parametrize("method", [m for m in recipes() if m.memory == "update"], ids=label)
def test_a_bad_gradient_at_a_rate_of_zero_is_bad_too(method):
    world = _world(method, 2)
    before = _remembered(world)
    means = world.step(_poisoned(2, 2, rank=1, name="w", bad=math.nan), rates=0.0)
    _check_skipped(world, means, before, 1)


@pytest.mark.parametrize("method", [m for m in recipes() if m.memory == "gradient"], ids=label)
def test_an_infinity_under_a_loss_scale_is_skipped_together(method):
    world = _world(method, 2)
    before = _remembered(world)
    means = world.step(_poisoned(2, 2, rank=0, name="v", bad=math.inf), grad_scale=65536.0)
    _check_skipped(world, means, before, 1)


# A norm that overflows says nothing of how much to clip: such a step is skipped.
@pytest.mark.parametrize("method", [m for m in METHODS if m.clip is None], ids=label)
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


@pytest.mark.parametrize("method", [m for m in recipes() if m.name == "sdagc"], ids=label)
def test_a_gradient_whose_norm_overflows_does_not_silence_a_parameter_for_ever(method):
    """Its entries are finite, the sum of their squares is not: an infinite deviation must not be remembered."""
    world = _world(method, 2)
    world.step([g * 1e25 for g in gradients(2, 2, dtype=torch.float32)])
    for state in world.save():
        numbers = state["ledger"]
        for kind in ("running", "deviation"):
            assert all(math.isfinite(value) for value in numbers[kind].values())
