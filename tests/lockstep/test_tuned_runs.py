"""What a tuner is told of the step before, and that its state and its setting survive a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

import laconic
from contracts.vectors import same_bits
from laconic.method import Method
from laconic.segments import Segments
from laconic.spectrum import SpectrumOf
from laconic.types import Compressor, Observation, TunerState
from lockstep.world import MODEL, World, gradients

BUCKETS = [["v", "s"], ["w", "empty", "b"]]
TOLD = [
    laconic.topk(0.3, whole_below=4),
    laconic.randomk(0.3),
    laconic.topk_sgd(0.3),
    laconic.sdagc(1.5, whole_below=4, scope="layer", values="exact"),
    laconic.dgc(0.3, whole_below=0),
]


@dataclass(frozen=True, kw_only=True)
class Listening:
    """A tuner that writes down what it is told."""

    name: ClassVar[str] = "listening"
    needs_loss: ClassVar[bool] = False
    spectrum_of: ClassVar[SpectrumOf] = "none"
    heard: list[Observation] = field(default_factory=list, compare=False, repr=False)

    def init(self, compressor: Compressor) -> TunerState:
        return {}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor):
        self.heard.append(seen)
        return state, compressor


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """A tuner that goes on from the setting it is given, by a factor that it remembers."""

    name: ClassVar[str] = "stepping"
    needs_loss: ClassVar[bool] = False
    spectrum_of: ClassVar[SpectrumOf] = "none"

    def init(self, compressor: Compressor) -> TunerState:
        return {"factor": 0.9}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor):
        return {"factor": state["factor"] * 0.95}, compressor.at_density(compressor.density * state["factor"])


def _heard(method: Method, ranks: int, steps: int, *, poisoned: int | None = None) -> list[list[Observation]]:
    """What each rank's tuner is told; the ranks share a tuner object, so calls come rank after rank."""
    tuner = Listening()
    world = World(replace(method, tuner=tuner), ranks)
    for step in range(steps):
        grads = gradients(ranks, step)
        if step == poisoned:
            grads[-1][0] = math.nan
        world.step(grads, buckets=BUCKETS)
    return [tuner.heard[rank::ranks] for rank in range(ranks)]


@pytest.mark.parametrize("method", TOLD, ids=lambda m: m.name)
def test_every_rank_is_told_the_same(method):
    first, *others = _heard(method, 3, 4)
    assert [seen.step for seen in first] == [0, 1, 2, 3]
    # Their texts: a loss that was not told is NaN, which differs from itself.
    assert all(repr(heard) == repr(first) for heard in others)


def test_a_tuner_is_told_what_was_sent_over_all_ranks():
    first, *rest = _heard(laconic.topk(0.3, whole_below=4), 3, 4)[0]
    assert (first.entries, first.sent, first.wanted, first.skipped) == (0, 0, 0, False)
    # Of 14 and 9 entries 30% are 4 and 3; 3 and 1 entries are sent whole.
    for seen in rest:
        assert seen.entries == 3 * MODEL.numel
        assert seen.sent == seen.wanted == 3 * (4 + 3 + 3 + 1)
        assert not seen.skipped


def test_a_tuner_is_told_of_a_skipped_step():
    heard = _heard(laconic.topk(0.3), 2, 4, poisoned=1)[0]
    assert [seen.skipped for seen in heard] == [False, False, True, False]


@pytest.mark.parametrize("at", [1, 4])
def test_a_tuner_with_a_state_goes_on_after_a_checkpoint(at):
    model = Segments.of(["w"], [200])
    method = replace(laconic.topk(0.8, whole_below=0), tuner=Stepping())
    straight, first, second = (World(method, 2, model=model) for _ in range(3))
    for step in range(at):
        first.step(gradients(2, step, numel=200))
    second.load(first.save())
    densities = []
    for step in range(7):
        grads = gradients(2, step, numel=200)
        mean = straight.step(grads)[0]
        densities.append(straight.reducers[0].stats().density)
        if step >= at:
            assert same_bits(second.step(grads)[0], mean)
            assert second.reducers[0].stats().density == densities[-1]
    assert densities == sorted(densities, reverse=True)
    assert len(set(densities)) == 7
