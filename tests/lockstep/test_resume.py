"""A saved and loaded run goes on with the same bits; a state that does not fit changes nothing."""

from __future__ import annotations

import copy
import io
from dataclasses import asdict, replace

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import same_bits
from covering import in_turn
from laconic.errors import GroupError, LaconicError, WireError
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports import Lockstep
from lockstep.world import MODEL, World, gradients

every_recipe = pytest.mark.parametrize("method", recipes(), ids=label)
TOPK = laconic.topk(0.3, whole_below=0)


def _through_a_file(state):
    """What ``torch.save`` and a load that trusts nothing make of it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _run(world: World, steps: range) -> list[torch.Tensor]:
    return [world.step(gradients(3, step), buckets=[["v", "s"], ["empty", "w", "b"]])[0] for step in steps]


def _without_seconds(world: World) -> list[dict]:
    return [asdict(replace(r.stats(), select_seconds=0.0, wait_seconds=0.0)) for r in world.reducers]


def _plain(state: dict) -> dict:
    return {**state, "counters": {k: v for k, v in state["counters"].items() if "seconds" not in k}}


def _equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    # A loss that was not told is NaN.
    return a == b or (a != a and b != b)


@pytest.mark.parametrize(("method", "at"), in_turn(recipes(), [1, 6], ids=label))
def test_a_resumed_run_gives_the_same_bits(method, at):
    straight, first = World(method, 3), World(method, 3)
    _run(first, range(at))
    second = World(method, 3)
    second.load([_through_a_file(state) for state in first.save()])
    expected, resumed = _run(straight, range(8)), _run(second, range(at, 8))
    assert all(same_bits(a, b) for a, b in zip(expected[at:], resumed, strict=True))
    assert all(same_bits(a, b) for a, b in zip(straight.owed(), second.owed(), strict=True))
    assert _without_seconds(straight) == _without_seconds(second)
    assert all(_equal(_plain(a), _plain(b)) for a, b in zip(straight.save(), second.save(), strict=True))


@every_recipe
def test_a_run_that_is_killed_after_every_one_of_sixty_steps_gives_the_same_bits(method):
    straight, killed = World(method, 2), World(method, 2)
    for step in range(60):
        expected = straight.step(gradients(2, step), losses=[3.0 / (1 + step)] * 2)
        again = World(method, 2)
        again.load([_through_a_file(state) for state in killed.save()])
        got, killed = again.step(gradients(2, step), losses=[3.0 / (1 + step)] * 2), again
        assert all(same_bits(a, b) for a, b in zip(expected, got, strict=True)), step


@every_recipe
def test_a_saved_state_is_a_copy(method):
    world = World(method, 3)
    _run(world, range(2))
    states = world.save()
    kept = copy.deepcopy(states)
    _run(world, range(2, 4))
    assert all(_equal(a, b) for a, b in zip(states, kept, strict=True))
    world.load(states)
    _run(world, range(2, 4))
    assert all(_equal(a, b) for a, b in zip(states, kept, strict=True))


@every_recipe
def test_saving_does_not_change_the_run(method):
    watched, alone = World(method, 3), World(method, 3)
    for step in range(3):
        watched.save()
        assert same_bits(_run(watched, range(step, step + 1))[0], _run(alone, range(step, step + 1))[0])


def test_a_run_may_go_on_with_other_settings_and_keeps_what_is_owed():
    first = World(laconic.topk(0.1, whole_below=0, warmup_steps=4), 3)
    _run(first, range(2))
    second = World(laconic.topk(1.0, whole_below=0), 3)
    second.load(first.save())
    assert all(same_bits(a, b) for a, b in zip(first.owed(), second.owed(), strict=True))
    grads = gradients(3, 2)
    expected = (torch.stack(first.owed()).sum(0) + torch.stack(grads).sum(0)) / 3
    torch.testing.assert_close(second.step(grads)[0], expected)
    assert not any(owed.any() for owed in second.owed())


def _without(state: dict, key: str) -> dict:
    return {k: v for k, v in state.items() if k != key}


SPOILED = [
    ("version", lambda s: {**s, "version": 0}, "version 0, this laconic reads 5"),
    ("no version", lambda s: {}, "version None"),
    ("unit", lambda s: {**s, "memory_unit": "update"}, r"'update' units.*keeps 'gradient'\. Attach a method with"),
    ("no memory", lambda s: {**s, "memory": {}}, r"missing \['owed'\]"),
    ("missing", lambda s: {**s, "memory": {"owed": {"w": torch.ones(14)}}}, "missing"),
    ("another counter", lambda s: {**s, "counters": {**s["counters"], "x": 1}}, "saved by another laconic.*x"),
    ("another sight", lambda s: {**s, "seen": {"step": 1}}, "saved by another laconic"),
    ("size", lambda s: {**s, "memory": {"owed": {**s["memory"]["owed"], "w": torch.ones(2)}}}, "w has 2 entries"),
]
SPOILED += [
    (f"no {key} in the {part}", lambda s, part=part, key=key: {**s, part: _without(s[part], key)}, key)
    for part, key in [
        ("ledger", "running"),
        ("ledger", "rooms"),
        ("ledger", "shares"),
        ("alarm", "raised"),
        ("alarm", "skipped_in_a_row"),
    ]
]
SPOILED += [
    (f"no {lost}", lambda s, lost=lost: {k: v for k, v in s.items() if k != lost}, lost)
    for lost in (
        "method",
        "step",
        "tuner",
        "setting",
        "seen",
        "ledger",
        "alarm",
        "gauge",
        "counters",
        "theory",
        "memory",
    )
]


@pytest.mark.parametrize(("spoil", "says"), [s[1:] for s in SPOILED], ids=[s[0] for s in SPOILED])
def test_a_foreign_state_is_refused_and_changes_nothing(spoil, says):
    world, other = World(TOPK, 1), World(TOPK, 1)
    for step in range(3):
        world.step(gradients(1, step))
        other.step(gradients(1, step + 50))
    other.step(gradients(1, 60))
    (reducer,), before = world.reducers, world.save()[0]
    with pytest.raises(ValueError, match=says):
        reducer.load_state_dict(spoil(other.save()[0]))
    assert _equal(reducer.state_dict(), before)


@pytest.mark.parametrize("foreign", [None, 3, "state", [1]])
def test_what_is_no_state_at_all_is_refused(foreign):
    (reducer,) = World(TOPK, 1).reducers
    with pytest.raises(TypeError, match="wants what state_dict returned, got "):
        reducer.load_state_dict(foreign)


def test_a_state_of_another_model_is_refused():
    other = World(TOPK, 1, model=Segments.of(["w", "x"], [14, 2]))
    with pytest.raises(ValueError, match=r"this model's parameters|missing"):
        World(TOPK, 1).load(other.save())


def test_ranks_that_loaded_different_steps_are_told_so():
    early, late, world = World(TOPK, 2), World(TOPK, 2), World(TOPK, 2)
    early.step(gradients(2, 0))
    late.step(gradients(2, 0))
    late.step(gradients(2, 1))
    world.load([early.save()[0], late.save()[1]])
    with pytest.raises(GroupError, match="rank 1 is at step 2 while this rank is at step 1"):
        world.step(gradients(2, 2))


def test_ranks_of_different_runs_are_told_so():
    ports = Lockstep(2).ports
    reducers = [Reducer(TOPK, MODEL, port, dtype=torch.float64, fingerprint=port.rank) for port in ports]
    for reducer, grad in zip(reducers, gradients(2, 0), strict=True):
        reducer.begin_step()
        reducer.begin(grad, MODEL)
    reducers[0].end_step()
    with pytest.raises(GroupError, match="rank 1 is at fingerprint 1 while this rank is at fingerprint 0"):
        reducers[1].end_step()


def test_a_step_that_is_under_way_cannot_be_saved():
    reducer = World(TOPK, 2).reducers[0]
    reducer.begin_step()
    with pytest.raises(LaconicError, match=r"step 0 is under way\. Save between"):
        reducer.state_dict()


def test_a_step_that_was_never_ended_is_told_at_the_next():
    reducer = World(TOPK, 2).reducers[0]
    reducer.begin_step()
    reducer.begin(gradients(1, 0)[0], MODEL)
    with pytest.raises(LaconicError, match=r"step 0 was begun and never ended.*load the last checkpoint"):
        reducer.begin_step()


def test_a_step_whose_exchange_raised_is_not_exchanged_a_second_time(monkeypatch):
    """What was to be sent is used up then: to send it again would count what is owed twice."""

    def damaged(*_):
        raise WireError("damaged on the way")

    reducer = Reducer(TOPK, MODEL, Lockstep(1).ports[0])
    reducer.begin_step()
    with monkeypatch.context() as broken:
        broken.setattr("laconic.wire.unpack", damaged)
        reducer.begin(torch.ones(MODEL.numel), MODEL)
        with pytest.raises(WireError, match="damaged on the way"):
            reducer.end_step()
    with pytest.raises(LaconicError, match=r"never ended: a backward pass or an exchange broke off"):
        reducer.end_step()
