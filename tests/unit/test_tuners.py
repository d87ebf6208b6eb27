"""The laws by which the amount moves, one number at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.compressors import Sidco, StdThreshold, TopK
from laconic.tuners import Constant, Progress, Relief, Stages, TargetDensity, Warmup
from laconic.types import Compressor, Observation, Tuner

RULE = StdThreshold(c=10.0)
# Of 5000 entries all but 1000 are sent whole.
SEEN = Observation(step=1, entries=5000, sent=4010, wanted=4010, skipped=False, qualified=10, choosable=1000)


def _path(tuner: Tuner, compressor: Compressor, history: list[Observation]) -> list:
    """The compressor of each step, as the reducer asks for it."""
    state, path = tuner.init(compressor), []
    for seen in history:
        state, compressor = tuner.update(state, seen, compressor)
        path.append(compressor)
    return path


def _losses(*losses: float) -> list[Observation]:
    return [replace(SEEN, step=step, loss=loss) for step, loss in enumerate(losses)]


def _qualified(*counts: int) -> list[Observation]:
    return [replace(SEEN, step=step, qualified=count, wanted=4000 + count) for step, count in enumerate(counts)]


def _alarms(*alarms: int) -> list[Observation]:
    return [replace(SEEN, step=step, alarmed=bool(alarm)) for step, alarm in enumerate(alarms)]


# Progress


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=20), st.floats(0.01, 1.0))
def test_progress_is_its_formula(losses, smoothing):
    path = _path(Progress(c_min=2.0, smoothing=smoothing), RULE, _losses(*losses))
    smooth = losses[0]
    for loss, rule in zip(losses, path, strict=True):
        smooth += smoothing * (loss - smooth)
        assert rule.c == pytest.approx(10.0 - (10.0 - 2.0) * min(1.0, smooth / losses[0]))


def test_progress_begins_at_the_least_and_comes_near_the_methods_own():
    path = _path(Progress(c_min=2.0, smoothing=1.0), RULE, _losses(4.0, 2.0, 1.0, 0.0))
    assert [rule.c for rule in path] == [2.0, 6.0, 8.0, 10.0]


def test_progress_never_leaves_its_range():
    path = _path(Progress(c_min=2.0, smoothing=1.0), RULE, _losses(4.0, 100.0, -50.0, 1e30))
    assert [rule.c for rule in path] == [2.0, 2.0, 10.0, 2.0]


def test_progress_waits_where_the_loss_is_not_told_not_finite_or_of_a_skipped_step():
    odd = [replace(SEEN, loss=1.0, skipped=True), *_losses(math.nan, math.inf)]
    tuner = Progress(c_min=2.0, smoothing=1.0)
    assert [rule.c for rule in _path(tuner, RULE, odd)] == [2.0] * 3
    path = _path(tuner, RULE, [*_losses(4.0, 2.0), *odd, *_losses(1.0)])
    assert [rule.c for rule in path] == [2.0, 6.0, 6.0, 6.0, 6.0, 8.0]


@pytest.mark.parametrize("first", [0.0, -1.0])
def test_progress_stays_at_the_least_where_the_first_loss_gives_no_share(first):
    assert [rule.c for rule in _path(Progress(c_min=2.0), RULE, _losses(first, 1.0, 5.0))] == [2.0] * 3


def test_progress_needs_somewhere_to_go():
    with pytest.raises(ValueError, match=r"c must be c_min = 11\.0 or more, got 10\.0\. Give .* larger c"):
        Progress(c_min=11.0).init(RULE)
    assert (Progress().needs_loss, Relief(inner=Progress()).needs_loss) == (True, True)


# A target density


def test_a_target_moves_the_coefficient_by_its_factor_every_few_steps_outside_a_fifth():
    tuner = TargetDensity(density=0.01, every=2, factor=1.5)
    path = _path(tuner, RULE, _qualified(13, 13, 12, 12, 8, 8, 7, 7, 0, 0))
    assert [rule.c for rule in path] == pytest.approx([10, 15, 15, 15, 15, 15, 15, 10, 10, 10 / 1.5])


def test_a_target_looks_at_the_mean_of_its_steps():
    tuner = TargetDensity(density=0.01, every=4, factor=1.5)
    assert _path(tuner, RULE, _qualified(0, 20, 5, 15))[-1].c == 10.0
    assert _path(tuner, RULE, _qualified(0, 20, 5, 35))[-1].c == 15.0


@given(st.lists(st.integers(0, 1000), max_size=40))
def test_a_target_keeps_the_coefficient_in_its_range(counts):
    tuner = TargetDensity(density=0.1, every=1, factor=3.0, c_min=4.0, c_max=30.0)
    assert all(4.0 <= rule.c <= 30.0 for rule in _path(tuner, RULE, _qualified(*counts)))


def test_a_target_does_not_count_skipped_or_empty_steps():
    odd = [replace(SEEN, qualified=900, skipped=True), replace(SEEN, qualified=0, choosable=0)]
    tuner = TargetDensity(density=0.01, every=1, factor=2.0)
    assert [rule.c for rule in _path(tuner, RULE, odd)] == [10.0, 10.0]


@pytest.mark.parametrize(
    ("tuner", "rule"),
    [
        (TargetDensity(density=0.01, every=1, factor=2.0), RULE),
        (Stages(every=1), Sidco(density=0.01, stages=3)),
    ],
    ids=["target", "stages"],
)
def test_parameters_that_are_sent_whole_do_not_count(tuner, rule):
    """Biases are sent whole whatever the coefficient: counted in, the target could never be met."""
    for whole in (0, 10, 10**6):
        total = whole + 1000
        history = [replace(SEEN, step=step, entries=total, wanted=whole + 10) for step in range(4)]
        assert _path(tuner, rule, history) == [rule] * 4
        moved = _path(tuner, rule, [replace(seen, qualified=20) for seen in history])
        assert moved[0] != rule


# Stages


def test_stages_follow_the_share_that_was_achieved():
    tuner, rule = Stages(every=2), Sidco(density=0.01)
    path = _path(tuner, rule, _qualified(7, 7, 10, 10, 7, 7, 13, 13, 13, 13, 13, 13))
    assert [r.stages for r in path] == [1, 2, 2, 2, 2, 3, 3, 2, 2, 1, 1, 1]


def test_stages_never_exceed_the_halvings_that_reach_the_density():
    path = _path(Stages(every=1), Sidco(density=0.1), _qualified(*[0] * 9))
    assert path[-1].stages == math.ceil(math.log(0.1) / math.log(0.5)) == 4
    assert _path(Stages(every=1), Sidco(density=1.0), _qualified(*[0] * 3))[-1].stages == 1


def test_stages_do_not_count_skipped_or_empty_steps():
    odd = [replace(SEEN, qualified=0, skipped=True), replace(SEEN, qualified=0, choosable=0)] * 2
    assert [r.stages for r in _path(Stages(every=1), Sidco(density=0.01, stages=2), odd)] == [2] * 4


# Warm-up


def test_warm_up_in_epochs_is_warm_up_in_their_steps():
    assert Warmup.epochs(2, steps_per_epoch=331) == Warmup(steps=662)
    assert Warmup.epochs(0.5, steps_per_epoch=3, start=1.0) == Warmup(steps=2, start=1.0)
    assert Warmup.epochs(0, steps_per_epoch=3) == Warmup(steps=1)


@pytest.mark.parametrize(
    ("epochs", "per_epoch", "field"), [(-1, 10, "epochs"), (math.nan, 10, "epochs"), (1, 0, "steps_per_epoch")]
)
def test_epochs_that_are_none_are_refused(epochs, per_epoch, field):
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got .*\. \w"):
        Warmup.epochs(epochs, steps_per_epoch=per_epoch)


@pytest.mark.parametrize("std_of", ["gradient", "residual"])
def test_a_threshold_warms_up_by_its_nominal_density_and_ends_at_its_own_coefficient(std_of):
    rule = StdThreshold(c=3.5, std_of=std_of)
    path = _path(Warmup(steps=10), rule, [replace(SEEN, step=step) for step in range(12)])
    assert path[0].density == pytest.approx(0.25)
    assert all(a.c < b.c for a, b in itertools.pairwise(path[:11]))
    assert path[10:] == [rule, rule]


# Relief


def test_relief_without_an_alarm_is_the_inner_tuner():
    """To the bit: a coefficient that went by way of its density would come back a little off."""
    history = [replace(SEEN, step=step, loss=4.0 / (step + 1), qualified=step) for step in range(30)]
    rule = StdThreshold(c=100 * math.pi)
    for inner in (Constant(), Warmup(steps=7), Progress(c_min=2.0), TargetDensity(density=0.01, every=1)):
        path = _path(inner, rule, history)
        assert _path(Relief(inner=inner), rule, history) == path
        assert type(inner) is Constant or len(set(path)) > 5


def test_while_it_relieves_the_inner_tuner_gets_no_counts():
    """They are of more than it asked for: a target would raise its coefficient against the relief."""
    inner = TargetDensity(density=0.01, every=1, factor=2.0)
    tuner = Relief(inner=inner, factor=4.0, every=2)
    # The first alarm comes with the counts of a step that was not relieved yet: they fit the target.
    flood = [replace(seen, qualified=400) for seen in _alarms(1, 1, 1, 1)]
    calm = [replace(seen, qualified=40) for seen in _alarms(0, 0, 0, 0)]
    history = [replace(SEEN, alarmed=True), *flood, *calm]
    state, rule = tuner.init(RULE), RULE
    for seen in history:
        state, rule = tuner.update(state, seen, rule)
        assert state["inner.c"] == 10.0
    state, rule = tuner.update(state, replace(SEEN, qualified=40), rule)
    while state["relief"] > 1.0:
        state, rule = tuner.update(state, SEEN, rule)
    assert rule.c == 10.0
    # At rest again it listens.
    assert tuner.update(state, replace(SEEN, qualified=40), rule)[1].c == 20.0


def test_relief_multiplies_the_density_at_once_and_again_while_the_alarm_lasts():
    path = _path(Relief(factor=4.0, every=3), TopK(density=0.01), _alarms(0, 1, 1, 1, 1, 1, 1, 1))
    densities = [rule.density for rule in path]
    assert densities == pytest.approx([0.01, 0.04, 0.04, 0.04, 0.16, 0.16, 0.16, 0.64])


def test_relief_goes_back_by_the_same_factor_after_as_many_calm_steps():
    path = _path(Relief(factor=4.0, every=2), TopK(density=0.01), _alarms(1, 1, 1, 0, 0, 0, 0, 0, 0))
    densities = [rule.density for rule in path]
    assert densities == pytest.approx([0.04, 0.04, 0.16, 0.16, 0.04, 0.04, 0.01, 0.01, 0.01])
    assert path[-1] == TopK(density=0.01)


def test_relief_never_asks_for_more_than_everything_and_then_goes_back():
    path = _path(Relief(factor=8.0, every=1), TopK(density=0.1), _alarms(1, 1, 1, 0, 0))
    assert [rule.density for rule in path] == pytest.approx([0.8, 1.0, 1.0, 0.125, 0.1], rel=0.3)
    assert max(rule.density for rule in path) <= 1.0
    assert path[-1].density == pytest.approx(0.1)


def test_relief_of_a_threshold_lowers_its_coefficient():
    for rule in (RULE, StdThreshold(c=3.0, std_of="residual")):
        path = _path(Relief(factor=4.0, every=2), rule, _alarms(0, 1, 0, 0, 0))
        share = [moved.density / rule.density for moved in path]
        assert share == pytest.approx([1.0, 4.0, 4.0, 1.0, 1.0], rel=1e-9)
        assert path[1].c < rule.c
        assert path[-1] == rule


def test_relief_names_an_inner_tuner_that_is_none():
    with pytest.raises(TypeError, match=r"inner must be a tuner such as Constant\(\), got <class"):
        Relief(inner=Constant)


def test_a_target_begins_to_choose_where_everything_was_sent():
    """At c = 0 all is sent whole and nothing is counted, so the law would never have moved."""
    tuner, rule = TargetDensity(density=0.01, c_min=0.5), StdThreshold(c=0.0)
    assert tuner.update(tuner.init(rule), _qualified(1)[0], rule)[1] == StdThreshold(c=0.5)


def test_relief_of_a_threshold_beyond_the_smallest_floats():
    tuner, rule = Relief(), StdThreshold(c=45.0, std_of="residual")
    moved = tuner.update(tuner.init(rule), _alarms(1)[0], rule)[1]
    assert isinstance(moved, StdThreshold)
    assert moved.c < rule.c
