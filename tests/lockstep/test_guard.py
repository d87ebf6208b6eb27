"""The guard, and laws that follow what all ranks know: alarm, fall-back and loss are the same everywhere."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch

import laconic
from contracts.vectors import normal, same_bits
from laconic.guard import Guard
from laconic.segments import Segments
from laconic.tuners import Progress, Relief
from lockstep.world import World

MODEL = Segments.of(["w"], [400])
ALARM = "what some rank owes is more than"
# At c = 1000 one entry a step is sent, and what is owed soon outgrows a few gradients.
STARVING = laconic.sdagc(1000.0, momentum=False, fallback=True, whole_below=0, scope="layer", values="exact")
STARVING = replace(STARVING, guard=Guard(limit=4.0, every=5), tuner=Relief(factor=1e5, every=5))


def _grads(ranks: int, step: int, *, size: float = 1.0, still: bool = True) -> list[torch.Tensor]:
    """The same gradient over and over piles up; where ``still`` is false, every step has another."""
    return [size * normal(400, (0 if still else 1000 * step) + rank, torch.float64) for rank in range(ranks)]


def _run(world: World, steps: range, **options) -> list[tuple[bool, float]]:
    """Whether all ranks heard an alarm, and the c that the step used, step by step."""
    heard = []
    for step in steps:
        means = world.step(_grads(len(world.reducers), step), **options)
        states = world.save()
        assert all(same_bits(mean, means[0]) for mean in means)
        assert all(repr(state["seen"]) == repr(states[0]["seen"]) for state in states)
        settings = {state["setting"]["c"] for state in states}
        assert len(settings) == 1
        heard.append((states[0]["seen"]["alarmed"], settings.pop()))
    return heard


def test_an_alarm_makes_all_ranks_denser_in_the_same_step_and_they_go_back():
    world = World(STARVING, 3, model=MODEL)
    with pytest.warns(UserWarning, match=ALARM):
        heard = _run(world, range(30))
    alarms, settings = [alarmed for alarmed, _ in heard], [c for _, c in heard]
    first = alarms.index(True)
    assert set(settings[: first + 1]) == {1000.0}
    # The step after the one in which it was heard sends more, on every rank.
    assert settings[first + 1] < 10
    calm = alarms.index(False, first)
    assert 1000.0 in settings[calm:]
    assert not all(alarms[first:])


def _until_alarmed(world: World, grads: list[torch.Tensor]) -> None:
    for _ in range(20):
        world.step(grads)
        if world.save()[0]["seen"]["alarmed"]:
            return


def test_an_alarm_on_one_rank_is_heard_by_all():
    world = World(STARVING, 3, model=MODEL)
    quiet = [torch.zeros(400, dtype=torch.float64)] * 2
    loud = _grads(3, 0)[2]
    with pytest.warns(UserWarning, match=ALARM):
        _until_alarmed(world, [*quiet, loud])
    assert [bool(state["alarm"]["raised"]) for state in world.save()] == [False, False, True]
    assert all(state["seen"]["alarmed"] for state in world.save())
    world.step([*quiet, loud])
    assert {state["setting"]["c"] < 10 for state in world.save()} == {True}


def test_without_a_fall_back_the_alarm_is_said_once_and_changes_nothing():
    guarded = replace(STARVING, tuner=laconic.Constant())
    watched, alone = World(guarded, 2, model=MODEL), World(replace(guarded, guard=None), 2, model=MODEL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(40):
            grads = _grads(2, step)
            assert same_bits(watched.step(grads)[0], alone.step(grads)[0])
    assert [ALARM in str(w.message) for w in caught] == [True]


def test_a_run_that_sends_enough_is_not_alarmed():
    world = World(replace(STARVING, compressor=laconic.StdThreshold(c=2.0, whole_below=0)), 2, model=MODEL)
    for step in range(60):
        world.step(_grads(2, step, still=False))
        assert not world.save()[0]["seen"]["alarmed"]


def test_a_fall_back_goes_on_after_a_checkpoint():
    straight, first, second = (World(STARVING, 2, model=MODEL) for _ in range(3))
    with pytest.warns(UserWarning, match=ALARM):
        expected = _run(straight, range(30))
    with pytest.warns(UserWarning, match=ALARM):
        _run(first, range(14))
    second.load(first.save())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _run(second, range(14, 30)) == expected[14:]
    assert all(same_bits(a, b) for a, b in zip(straight.owed(), second.owed(), strict=True))


def test_steps_skipped_in_a_row_are_said_once_on_the_first_rank():
    world = World(
        replace(laconic.sdagc(2.0, whole_below=0, scope="layer", values="exact"), guard=Guard(skipped=5)),
        2,
        model=MODEL,
    )
    bad = [torch.full((400,), math.nan, dtype=torch.float64)] * 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            world.step(bad)
        assert not caught
        world.step(_grads(2, 0))
        for _ in range(12):
            world.step(bad)
    assert len(caught) == 1
    assert "5 steps up to step 9 were skipped in a row" in str(caught[0].message)


def test_a_loss_that_is_not_finite_is_said():
    world = World(laconic.sdagc(2.0, whole_below=0, scope="layer", values="exact"), 2, model=MODEL)
    with pytest.warns(UserWarning, match="the loss was not finite at step 0"):
        world.step(_grads(2, 0), losses=[1.0, math.inf])


LOSSES = [[3.0, 5.0, 1.0], [2.0, 2.5, 0.5], [1.0, 0.1, 0.7], [0.3, 0.2, 0.1], [9.0, 9.0, 9.0], [0.3, 0.3, 0.0]]


@pytest.mark.parametrize("smoothing", [1.0, 0.3])
def test_the_law_of_progress_follows_the_mean_loss_alike_on_ranks_whose_losses_differ(smoothing):
    method = laconic.sdagc(8.0, law="progress", momentum=False, whole_below=0, scope="layer", values="exact")
    world = World(replace(method, tuner=Progress(c_min=1.0, smoothing=smoothing)), 3, model=MODEL)
    smooth = first = None
    expected = [1.0]
    for step, losses in enumerate(LOSSES):
        means = world.step(_grads(3, step), losses=losses)
        assert all(same_bits(mean, means[0]) for mean in means)
        settings = [state["setting"]["c"] for state in world.save()]
        assert settings == pytest.approx([expected[-1]] * 3, rel=1e-12)
        assert len(set(settings)) == 1
        mean = sum(losses) / 3
        smooth = mean if smooth is None else smooth + smoothing * (mean - smooth)
        first = first or smooth
        expected.append(8.0 - 7.0 * min(1.0, smooth / first))
    assert max(expected) > 2.0


def test_a_step_that_was_skipped_does_not_move_the_law_of_progress():
    method = laconic.sdagc(8.0, law="progress", momentum=False, whole_below=0, scope="layer", values="exact")
    one, other = (World(method, 2, model=MODEL) for _ in range(2))
    for step, losses in enumerate(LOSSES):
        for world in (one, other):
            world.step(_grads(2, step), losses=losses[:2])
        assert one.save()[0]["setting"] == other.save()[0]["setting"]
        other.step([torch.full((400,), math.nan, dtype=torch.float64)] * 2, losses=[1e-9, 1e9])
    one.step(_grads(2, 9), losses=[1.0, 1.0])
    other.step(_grads(2, 9), losses=[1.0, 1.0])
    assert one.save()[0]["setting"] == other.save()[0]["setting"]


@pytest.mark.parametrize("density", [0.01, 0.1])
def test_a_target_density_is_held_on_noise(density):
    method = laconic.sdagc(
        3.0,
        law="target",
        density=density,
        momentum=False,
        running=0.0,
        whole_below=0,
        scope="layer",
        values="exact",
    )
    method = replace(method, tuner=replace(method.tuner, factor=1.1))
    world, model = None, Segments.of(["w"], [2000])
    world = World(method, 2, model=model, dtype=torch.float32)
    sent = []
    for step in range(160):
        world.step([normal(2000, 100 * step + rank) for rank in range(2)])
        sent.append(world.reducers[0].stats().density)
    assert density / 1.5 < sum(sent[80:]) / 80 < density * 1.5
