"""Runs with few directions of each matrix: they reach what dense ones do, and go on with what they found."""

from __future__ import annotations

import pytest
import torch

import laconic
from contracts.vectors import normal, same_bits
from laconic.segments import Segments
from lockstep.world import World, gradients

MODEL = Segments.of(["w", "b", "v"], [240, 7, 120], [20, 1, 10])
BUCKETS = [["v", "b"], ["w"]]
METHOD = laconic.powersgd(2)


def _run(world: World, steps: range, buckets=None) -> list[torch.Tensor]:
    return [world.step(gradients(3, step, numel=MODEL.numel), buckets=buckets)[0] for step in steps]


def _q(world: World) -> dict[str, torch.Tensor]:
    first, *others = [state["kept"] for state in world.save()]
    for other in others:
        assert all(same_bits(other[name], q) for name, q in first.items())
    return first


def test_every_rank_keeps_the_same_q_by_parameter_and_only_of_what_is_split():
    world = World(METHOD, 3, model=MODEL)
    assert _q(world) == {}
    _run(world, range(1), BUCKETS)
    assert {name: q.shape for name, q in _q(world).items()} == {"lowrank.w": (12, 2), "lowrank.v": (12, 2)}


def test_buckets_may_be_laid_out_anew_in_every_step():
    one, other = World(METHOD, 3, model=MODEL), World(METHOD, 3, model=MODEL)
    dealt = [BUCKETS, [["w"], ["b"], ["v"]], [["b", "v", "w"]], BUCKETS]
    for step, buckets in enumerate(dealt):
        whole, parts = _run(one, range(step, step + 1))[0], _run(other, range(step, step + 1), buckets)[0]
        torch.testing.assert_close(whole, parts, rtol=1e-10, atol=1e-10)
    for a, b in zip(one.owed(), other.owed(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_wire_bytes_are_those_of_the_thin_matrices():
    world = World(METHOD, 3, model=MODEL, dtype=torch.float32)
    for step in range(3):
        world.step(gradients(3, step, numel=MODEL.numel, dtype=torch.float32), buckets=BUCKETS)
    numbers = 2 * (20 + 12) + 2 * (10 + 12) + 7 + 2 * 32
    for reducer in world.reducers:
        stats = reducer.stats()
        assert (stats.wire_bytes, stats.collectives) == (3 * numbers * 4, 3 * 4)


def test_a_resumed_run_goes_on_with_its_q():
    straight, first, second, cold = (World(METHOD, 3, model=MODEL) for _ in range(4))
    expected = _run(straight, range(6), BUCKETS)
    _run(first, range(3), BUCKETS)
    states = first.save()
    second.load(states)
    resumed = _run(second, range(3, 6), BUCKETS)
    assert all(same_bits(a, b) for a, b in zip(expected[3:], resumed, strict=True))
    assert all(same_bits(q, _q(second)[name]) for name, q in _q(straight).items())
    cold.load([{**state, "kept": {}} for state in states])
    assert not torch.equal(_run(cold, range(3, 4), BUCKETS)[0], expected[3])


def test_a_run_may_go_on_with_another_rank():
    first, second = World(METHOD, 3, model=MODEL), World(laconic.powersgd(3), 3, model=MODEL)
    _run(first, range(3))
    second.load(first.save())
    assert all(same_bits(a, b) for a, b in zip(first.owed(), second.owed(), strict=True))
    _run(second, range(3, 4))
    assert {q.shape[1] for q in _q(second).values()} == {3}


def test_a_poisoned_step_leaves_what_is_kept_and_owed():
    world = World(METHOD, 3, model=MODEL)
    _run(world, range(2), BUCKETS)
    kept, owed = _q(world), world.owed()
    grads = gradients(3, 2, numel=MODEL.numel)
    grads[1][5] = torch.inf
    assert bool(world.step(grads, buckets=BUCKETS)[0].isnan().all())
    assert all(same_bits(a, b) for a, b in zip(world.owed(), owed, strict=True))
    assert all(same_bits(q, _q(world)[name]) for name, q in kept.items())


def test_a_parameter_that_is_held_for_a_while_is_sent_again_afterwards():
    world, rates = World(METHOD, 3, model=MODEL), dict.fromkeys(MODEL.names, 0.5)
    for rate in (0.5, 0.0, 0.5):
        mean = world.step(gradients(3, 0, numel=MODEL.numel), rates=rates | {"w": rate})[0]
        assert bool(MODEL.views(mean)[0].any()) is (rate > 0)


def _least_squares(method: laconic.Method, steps: int) -> float:
    """The loss after training a linear map on unlike data of two ranks."""
    inputs = [normal(40 * 12, rank, torch.float64).view(40, 12) for rank in range(2)]
    target, noise = (normal(numel, 9, torch.float64) for numel in (20 * 12, 40 * 20))
    outputs = [x @ target.view(20, 12).T + (-0.1) ** rank * noise.view(40, 20) for rank, x in enumerate(inputs)]
    world, w = World(method, 2, model=Segments.of(["w"], [240], [20])), torch.zeros(20, 12, dtype=torch.float64)
    for _ in range(steps):
        grads = [((x @ w.T - y).T @ x / len(x)).flatten() for x, y in zip(inputs, outputs, strict=True)]
        w -= 0.3 * world.step(grads, rates=0.3)[0].view_as(w)
    return float(sum((x @ w.T - y).square().mean() for x, y in zip(inputs, outputs, strict=True)))


def test_two_directions_reach_the_loss_that_all_of_them_do():
    dense = _least_squares(laconic.dense(), 60)
    assert _least_squares(METHOD, 5) > 2 * dense
    assert _least_squares(METHOD, 100) == pytest.approx(dense, rel=1e-3)
