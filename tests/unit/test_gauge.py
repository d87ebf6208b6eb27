"""The change along what was sent, where it is known: for a quadratic it is the step times the curvature."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import pytest
import torch

import laconic
from contracts.vectors import dyadic
from covering import crossed
from laconic.method import Method
from lockstep.world import MODEL, World

ALL = laconic.cat("bits", start=1.0, floor=1.0, ceiling=1.0, whole_below=0, gain="curvature")
PART = laconic.cat("bits", start=0.3, floor=0.3, ceiling=0.3, whole_below=0, gain="curvature")
BUCKETS = [
    None,
    [["w", "b", "empty", "v", "s"]],
    [["v", "s"], ["empty", "w"], ["b"]],
    [["b"], ["s", "w", "v", "empty"]],
]


class Descent:
    """Gradient descent on the mean of curvature * |x - a_r|^2 / 2, a_r being rank r's own; no numbers round."""

    def __init__(self, method: Method, ranks: int, *, rate: float, curvature: float) -> None:
        self.world, self.rate, self.curvature = World(method, ranks), rate, curvature
        self.x = dyadic(MODEL.numel, 99)
        self.wanted = [dyadic(MODEL.numel, rank) * (ranks > 1) for rank in range(ranks)]

    def step(self, *, poisoned: bool = False, buckets: list[list[str]] | None = None) -> float:
        """Take a step; return the change that all ranks were told of in it."""
        grads = [self.curvature * (self.x - a) for a in self.wanted]
        if poisoned:
            grads[-1][0] = nan
        mean = self.world.step(grads, buckets=buckets, rates=self.rate)[0]
        if not poisoned:
            self.x = self.x - self.rate * mean
        told = {repr(reducer._state.ledger.seen.change) for reducer in self.world.reducers}
        assert len(told) == 1
        return float(told.pop())


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("memory", ["update", "gradient"])
def test_after_a_whole_step_of_one_along_a_curvature_of_one_all_is_used_up(ranks, memory):
    descent = Descent(replace(ALL, memory=memory), ranks, rate=1.0, curvature=1.0)
    told = [descent.step() for _ in range(3)]
    assert isnan(told[0])
    assert isnan(told[1])
    assert told[2] == 1.0


@pytest.mark.parametrize(("buckets", "scope", "ranks"), crossed(BUCKETS, ["layer", "model"], [1, 4]))
@pytest.mark.parametrize("method", [ALL, PART], ids=["all", "part"])
def test_the_change_is_the_step_times_the_curvature_however_little_is_sent(method, buckets, scope, ranks):
    descent = Descent(replace(method, scope=scope), ranks, rate=0.5, curvature=0.25)
    told = [descent.step(buckets=buckets) for _ in range(4)]
    assert told[2:] == pytest.approx([0.125] * 2, rel=1e-6)


def test_buckets_may_be_dealt_anew_in_every_step():
    descent = Descent(replace(PART, scope="layer"), 4, rate=0.5, curvature=0.25)
    told = [descent.step(buckets=BUCKETS[step % len(BUCKETS)]) for step in range(9)]
    assert told[2:] == pytest.approx([0.125] * 7, rel=1e-6)


def test_in_the_units_of_gradients_it_is_the_fall_for_one_unit_sent():
    """Memory in gradient units knows no learning rate: the fall of the gradient is the step's all the same."""
    descent = Descent(replace(PART, memory="gradient"), 4, rate=0.5, curvature=0.25)
    assert [descent.step() for _ in range(6)][2:] == pytest.approx([0.125] * 4, rel=1e-6)


def test_a_parameter_without_a_gradient_is_left_out():
    descent = Descent(replace(PART, scope="layer"), 2, rate=0.5, curvature=0.25)
    some = [["w", "b"], ["v"]]
    told = []
    for _ in range(5):
        grads = [0.25 * (descent.x - a) for a in descent.wanted]
        mean = descent.world.step(grads, buckets=some, rates=0.5)[0]
        descent.x = descent.x - 0.5 * torch.where(mean.isfinite(), mean, 0.0)
        told.append(descent.world.reducers[0]._state.ledger.seen.change)
    assert told[2:] == pytest.approx([0.125] * 3, rel=1e-6)


def test_a_skipped_step_leaves_nothing_to_compare_with():
    descent = Descent(PART, 4, rate=0.5, curvature=0.25)
    told = [descent.step(poisoned=step == 3) for step in range(9)]
    assert [isnan(change) for change in told] == [True, True, False, False, True, True, False, False, False]
    assert told[6:] == pytest.approx([0.125] * 3, rel=1e-6)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_it_goes_on_from_a_saved_state(at):
    straight, first = (Descent(PART, 4, rate=0.5, curvature=0.25) for _ in range(2))
    expected = [straight.step() for _ in range(6)]
    for _ in range(at):
        first.step()
    second = Descent(PART, 4, rate=0.5, curvature=0.25)
    second.world.load(first.world.save())
    second.x = first.x
    assert repr([second.step() for _ in range(at, 6)]) == repr(expected[at:])


@pytest.mark.parametrize(
    "method", [laconic.topk(0.3, whole_below=0), laconic.cat("bits", rule="sign", whole_below=0)]
)
def test_who_does_not_weigh_by_it_does_not_measure_it(method):
    descent = Descent(method, 2, rate=0.5, curvature=0.25)
    assert all(isnan(descent.step()) for _ in range(4))
    assert descent.world.reducers[0]._state.gauge.state_dict() == {}


def test_what_cannot_be_sent_does_not_show_in_the_spectrum():
    method = laconic.cat("bits", start=0.3, floor=0.3, ceiling=0.3, whole_below=0)
    tops = []
    for rates in (0.5, {"w": 0.0, "b": 0.5, "v": 0.5, "s": 0.5, "empty": 0.5}):
        world = World(method, 2)
        # What w owes grows beyond all that is fresh, and then w is held.
        big = dyadic(MODEL.numel, 1) * 2.0**-6
        big[MODEL["w"].offset : MODEL["w"].offset + MODEL["w"].size] *= 2.0**12
        world.step([big, big], rates=0.5)
        small = dyadic(MODEL.numel, 2) * 2.0**-6
        world.step([small, small], rates=rates)
        tops.append(world.reducers[0]._state.ledger.seen.spectrum.top)
    assert tops[1] <= tops[0]
