"""The theory of TopK-SGD, measured while it runs, against the formulas computed on the gathered vectors."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

import laconic
from contracts.registry import label
from contracts.vectors import same_bits
from laconic.method import Method
from laconic.reducer import Reducer
from laconic.transports import Lockstep
from lockstep.world import MODEL, World, gradients, top_of

MEASURED = [
    laconic.topk_sgd(0.3),
    laconic.topk(0.1, memory="update", whole_below=0),
    laconic.topk(0.3, whole_below=0),
    laconic.topk(0.3, whole_below=10),
    laconic.topk(0.1, whole_below=0, warmup_steps=5),
    laconic.topk(1.0),
]
every_method = pytest.mark.parametrize("method", MEASURED, ids=label)
every_world = pytest.mark.parametrize("ranks", [1, 2, 4])
BUCKETS = [["v", "s"], ["w", "empty", "b"]]
RATES = [0.5, 0.25, 0.25, 0.125]


def _norm(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _run(method: Method, ranks: int, steps: int, *, every: int = 1) -> World:
    world = World(method, ranks, measure_every=every)
    for step in range(steps):
        world.step(gradients(ranks, step), rates=RATES[step % 4], buckets=BUCKETS)
    return world


@cache
def _seen(method: Method, ranks: int) -> tuple[list[torch.Tensor], list[Any]]:
    """The mean of what ranks owed after each of 12 steps, and what each rank measured: run once for three laws."""
    world, owed = World(method, ranks, measure_every=1), []
    for step in range(12):
        world.step(gradients(ranks, step), rates=RATES[step % 4], buckets=BUCKETS)
        owed.append(torch.stack(world.owed()).mean(0))
    return owed, [reducer.stats().history for reducer in world.reducers]


@every_method
@every_world
def test_the_distance_to_the_virtual_iterate_is_the_mean_memory(method, ranks):
    owed, histories = _seen(method, ranks)
    for history in histories:
        for seen, mean in zip(history, owed, strict=True):
            assert seen.identity_error < 1e-12
            assert seen.drift == pytest.approx(_norm(mean), rel=1e-9, abs=1e-12)


@every_method
@every_world
def test_the_drift_stays_within_its_bound_when_every_step_is_measured(method, ranks):
    history = _seen(method, ranks)[1][0]
    assert len(history) == 12
    for seen in history:
        assert seen.drift <= seen.drift_bound * (1 + 1e-9) + 1e-12


@every_method
def test_xi_is_zero_for_one_rank(method):
    for seen in _seen(method, 1)[1][0]:
        assert seen.xi == 0.0


@every_method
@every_world
def test_every_rank_measures_the_same(method, ranks):
    first, *others = _seen(method, ranks)[1]
    for history in others:
        for ours, theirs in zip(history, first, strict=True):
            assert (ours.step, ours.xi, ours.drift) == (theirs.step, theirs.xi, theirs.drift)
            assert (ours.drift_bound, ours.gradient_norm) == (theirs.drift_bound, theirs.gradient_norm)


@pytest.mark.parametrize("scope", ["layer", "model"])
@every_world
def test_xi_and_its_company_are_the_formulas(scope, ranks):
    world = World(laconic.topk(0.3, memory="update", scope=scope, whole_below=0), ranks, measure_every=1)
    segments = MODEL if scope == "layer" else MODEL.merged()
    gamma = math.sqrt(max(1 - max(1, round(0.3 * s.size)) / s.size for s in segments if s.size))
    largest_xi = largest_fresh = 0.0
    for step in range(5):
        rate, owed, grads = RATES[step % 4], world.owed(), gradients(ranks, step)
        accs = [o + rate * g for o, g in zip(owed, grads, strict=True)]
        sent = torch.stack([top_of(acc, segments, 0.3) for acc in accs])
        fresh = _norm(rate * torch.stack(grads).mean(0))
        xi = _norm(top_of(torch.stack(accs).mean(0), segments, 0.3) - sent.mean(0)) / fresh
        largest_xi, largest_fresh = max(largest_xi, xi), max(largest_fresh, fresh)
        world.step(grads, rates=rate, buckets=BUCKETS)
        for rank, reducer in enumerate(world.reducers):
            seen = reducer.stats().history[-1]
            assert seen.xi == pytest.approx(xi, rel=1e-9, abs=1e-12)
            assert seen.gradient_norm == pytest.approx(fresh, rel=1e-9)
            assert seen.kept_error == pytest.approx(_norm(accs[rank] - sent[rank]) / _norm(accs[rank]), rel=1e-9)
            assert seen.drift_bound == pytest.approx((gamma + largest_xi) / (1 - gamma) * largest_fresh, rel=1e-9)


@every_method
def test_measuring_changes_nothing_but_the_bytes(method):
    watched, alone = World(method, 3, measure_every=2), World(method, 3)
    for step in range(5):
        grads = gradients(3, step)
        assert same_bits(watched.step(grads, buckets=BUCKETS)[0], alone.step(grads, buckets=BUCKETS)[0])
    assert watched.reducers[0].stats().wire_bytes > alone.reducers[0].stats().wire_bytes


@pytest.mark.parametrize("every", [1, 2, 3])
def test_only_every_so_many_steps_are_measured_and_the_identity_holds(every):
    history = _run(MEASURED[0], 2, 7, every=every).reducers[0].stats().history
    assert [seen.step for seen in history] == list(range(0, 7, every))
    assert all(seen.identity_error < 1e-12 for seen in history)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@every_method
def test_a_poisoned_step_is_not_recorded(method, bad):
    world = World(method, 2, measure_every=1)
    for step in range(5):
        grads = gradients(2, step)
        if step == 2:
            grads[1][4] = bad
        world.step(grads, buckets=BUCKETS)
    history = world.reducers[0].stats().history
    assert [seen.step for seen in history] == [0, 1, 3, 4]
    for seen in history:
        assert math.isfinite(seen.xi)
        assert seen.identity_error < 1e-12
        assert seen.drift <= seen.drift_bound * (1 + 1e-9) + 1e-12


@every_method
def test_a_resumed_run_measures_on(method):
    straight, first = _run(method, 2, 6), _run(method, 2, 3)
    second = World(method, 2, measure_every=1)
    second.load(first.save())
    for step in range(3, 6):
        second.step(gradients(2, step), rates=RATES[step % 4], buckets=BUCKETS)
    expected = straight.reducers[0].stats().history[3:]
    for ours, theirs in zip(second.reducers[0].stats().history, expected, strict=True):
        assert ours.step == theirs.step
        assert ours.drift == pytest.approx(theirs.drift, rel=1e-9, abs=1e-12)
        assert ours.drift_bound == pytest.approx(theirs.drift_bound, rel=1e-9)
        assert ours.identity_error < 1e-12


@pytest.mark.parametrize("names", [["w"], list(MODEL.names)], ids=["one", "all"])
def test_a_step_at_a_rate_of_zero_does_not_break_the_identity(names):
    """What is held back at rate 0 looked like a gradient of minus what is owed, and the drift forgot it."""
    world = World(laconic.topk_sgd(0.3), 2, measure_every=1)
    for step in range(4):
        rates = dict.fromkeys(MODEL.names, 0.5) | (dict.fromkeys(names, 0.0) if step == 2 else {})
        world.step(gradients(2, step), rates=rates)
        seen = world.reducers[0].stats().history[-1]
        assert seen.identity_error < 1e-12
        assert seen.drift == pytest.approx(_norm(torch.stack(world.owed()).mean(0)), rel=1e-9)


@pytest.mark.parametrize("memory", ["gradient", "update"])
def test_the_bound_holds_over_steps_at_a_rate_of_zero(memory):
    """Gradients that pile up while nothing may be sent do not contract, and the bound was passed."""
    world = World(laconic.topk(0.5, memory=memory, whole_below=0), 2, measure_every=1)
    for step in range(8):
        world.step(gradients(2, 0), rates=0.0 if step else 0.5)
        seen = world.reducers[0].stats().history[-1]
        assert seen.drift <= seen.drift_bound * (1 + 1e-9)


def test_what_cannot_be_measured_is_refused():
    port = Lockstep(1).ports[0]
    with pytest.raises(ValueError, match=r"measure_every must be .*0 or more, got -1\. Write 0 for never"):
        Reducer(MEASURED[0], MODEL, port, measure_every=-1)
    with pytest.raises(ValueError, match=r"dense keeps no memory.*Leave it at 0"):
        Reducer(laconic.dense(), MODEL, port, measure_every=1)
    with pytest.raises(ValueError, match=r"sdagc.*no fixed share: nothing to measure\. Leave it at 0"):
        Reducer(laconic.sdagc(scope="layer", values="exact"), MODEL, port, measure_every=1)
