"""Rooms: message sizes that all ranks know beforehand, follow the counts, and make nothing be lost."""

from __future__ import annotations

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import normal
from laconic.segments import Segments
from lockstep.world import MODEL, World, gradients

COUNTED = [m for m in recipes() if m.compressor.counts_vary]
# DGC's share is its room, whatever the counts.
FOLLOWING = [m for m in COUNTED if m.compressor.name != "sampled_topk"]
LARGE = Segments.of(["w", "v", "b"], [400, 150, 3])


class Overheard:
    """What the reducers of a world were told of each exchange: counts and rooms, as all ranks see them."""

    def __init__(self, world: World) -> None:
        self.means = [[] for _ in world.reducers]
        for rank, reducer in enumerate(world.reducers):
            commit = reducer._state.ledger.commit

            def heard(entered, mean, *, rank=rank, commit=commit, **rest):
                self.means[rank].append(mean)
                commit(entered, mean, **rest)

            reducer._state.ledger.commit = heard


@pytest.mark.parametrize("method", COUNTED, ids=label)
def test_rooms_are_the_same_on_every_rank_though_counts_are_not(method):
    world = World(method, 4, model=LARGE)
    overheard = Overheard(world)
    for step in range(6):
        grads = gradients(4, step, numel=LARGE.numel)
        grads[3] = grads[3].pow(5)
        world.step(grads)
        # ``rooms`` itself compares all ranks.
        assert world.rooms()
    first, *others = overheard.means
    for mean in others:
        assert [m.counts for m in mean] == [m.counts for m in first]
        assert [m.rooms for m in mean] == [m.rooms for m in first]
    if method in FOLLOWING:
        assert any(len(set(counts)) > 1 for m in first for counts in m.counts.values())


@pytest.mark.parametrize("method", FOLLOWING, ids=label)
def test_a_room_is_at_most_a_tenth_over_the_largest_count_of_the_step_before(method):
    world = World(method, 4, model=LARGE)
    overheard = Overheard(world)
    for step in range(8):
        # Some steps are much busier than others.
        world.step([g.pow(3) if step % 3 else g for g in gradients(4, step, numel=LARGE.numel)])
        for name, counts in overheard.means[0][-1].counts.items():
            assert 1 <= world.rooms()[name] <= max(1, int(max(counts) * 1.1))


def test_steady_counts_fit_their_rooms():
    """Where every rank has as many as in the step before, nothing overflows."""
    world, grads = (
        World(
            laconic.sdagc(
                1.5, momentum=False, revision="none", running=0.0, whole_below=0, scope="layer", values="exact"
            ),
            3,
        ),
        [],
    )
    for rank in range(3):
        grad = torch.zeros(MODEL.numel, dtype=torch.float64)
        grad[[rank, 17 + rank]] = 5.0
        grads.append(grad)
    overheard = Overheard(world)
    for step in range(4):
        world.step(grads)
        if step:
            seen = world.save()[0]["seen"]
            assert seen["sent"] == seen["wanted"]
    assert overheard.means[0][-1].counts["w"] == (1, 1, 1)


def test_what_does_not_fit_stays_owed_and_is_sent_later():
    model = Segments.of(["w"], [200])
    method = laconic.strom(0.5, memory="gradient", whole_below=0)
    world = World(method, 2, model=model)
    flood = torch.full((200,), 0.75, dtype=torch.float64)
    none = torch.zeros_like(flood)
    # First guess: two entries. The rest waits, is counted, and follows when there is room.
    first = world.step([flood, flood])[0]
    assert int(torch.count_nonzero(first)) == 2
    assert int((world.owed()[0] == 0.75).sum()) == 198
    assert world.rooms() == {"w": 200}
    second = world.step([none, none])[0]
    assert int(torch.count_nonzero(second)) == 198
    total = first + second
    for _ in range(3):
        total += world.step([none, none])[0]
    assert torch.equal(total, torch.full_like(total, 0.5))
    assert all(torch.equal(owed, torch.full_like(owed, 0.25)) for owed in world.owed())


def test_a_rank_that_wants_more_than_the_others_is_not_forgotten():
    """One rank's flood in a world of four: it is through after a few steps, whatever rule the rooms follow."""
    model = Segments.of(["w"], [300])
    world = World(laconic.strom(0.5, memory="gradient", whole_below=0), 4, model=model)
    none = torch.zeros(300, dtype=torch.float64)
    total = world.step([torch.full_like(none, 0.5001), none, none, none])[0]
    for _ in range(60):
        total = total + world.step([none] * 4)[0]
    assert torch.equal(total, torch.full_like(total, 0.125))


@pytest.mark.parametrize("method", COUNTED, ids=label)
def test_no_sizes_are_exchanged(method):
    world = World(method, 3)
    for step in range(4):
        world.step(gradients(3, step), buckets=[["w"], ["v", "b", "empty", "s"]])
    buckets = 1 if method.scope == "model" else 2
    assert [port.collectives for port in world.lockstep.ports] == [4 * buckets] * 3


def test_a_parameter_of_which_nothing_qualifies_sends_one_entry_and_keeps_room_for_one():
    model = Segments.of(["w"], [100])
    world = World(laconic.sdagc(50.0, momentum=False, whole_below=0, scope="layer", values="exact"), 2, model=model)
    for step in range(4):
        mean = world.step([normal(100, 10 * step + rank, torch.float64) for rank in range(2)])[0]
        assert 1 <= int(torch.count_nonzero(mean)) <= 2
        assert world.rooms() == {"w": 1}
