"""Notes travel with the exchange: every rank sees the sum over ranks."""

from __future__ import annotations

import math

import pytest
import torch

from contracts.registry import label, recipes
from contracts.vectors import same_bits
from lockstep.world import MODEL, World, gradients

every_recipe = pytest.mark.parametrize("method", recipes(), ids=label)


def _notes(ranks: int) -> list[torch.Tensor]:
    return [torch.tensor([1, rank % 2, 0, rank], dtype=torch.uint8) for rank in range(ranks)]


@every_recipe
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_rank_sees_the_sum(method, ranks):
    world, notes = World(method, ranks), _notes(ranks)
    for step in range(2):
        world.step(gradients(ranks, step), notes=notes)
        for reducer in world.reducers:
            assert reducer.outcome.notes.tolist() == torch.stack(notes).sum(0).tolist()


@every_recipe
def test_notes_do_not_change_the_mean(method):
    # Two ranks: in a longer ring more numbers behind an entry may change the order in which it is added.
    grads = gradients(2, 0)
    with_notes, without = World(method, 2), World(method, 2)
    assert same_bits(with_notes.step(grads, notes=_notes(2))[0], without.step(grads)[0])
    assert without.reducers[0].outcome.notes is None


@every_recipe
def test_notes_arrive_from_a_poisoned_step_too(method):
    world, grads = World(method, 2), gradients(2, 0)
    grads[1][3] = math.nan
    world.step(grads, notes=_notes(2))
    for reducer in world.reducers:
        assert reducer.outcome.skipped
        assert reducer.outcome.notes.tolist() == [2, 1, 0, 1]


def test_notes_are_as_many_as_the_caller_has():
    world = World(recipes()[0], 2)
    world.step(gradients(2, 0), notes=[torch.ones(MODEL.numel + 50, dtype=torch.uint8)] * 2)
    assert world.reducers[0].outcome.notes.tolist() == [2] * (MODEL.numel + 50)
