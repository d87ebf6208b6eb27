"""Reducers of which only some send in a step: agreement, conservation, honest bytes, nothing poisoned, decay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import normal
from laconic.exchanges import GatherMean
from lockstep.world import MODEL, World

RANKS = 4
TURNS = [(0,), (1, 3), (0, 1, 2, 3), (2,), (0, 2, 3)]
GATHERED = [m for m in recipes() if isinstance(m.exchange, GatherMean)]
# Probability-free selections whose memory holds all that was not sent, in the units of what came.
KEEPING = [
    laconic.topk(0.3, whole_below=0),
    laconic.topk(0.3, memory="update", whole_below=4),
    laconic.topk(0.3, scope="model", whole_below=0),
    laconic.gaussiank(0.3, whole_below=0),
    laconic.strom(0.05, whole_below=0),
    replace(laconic.randomk(0.3), exchange=GatherMean()),
]
every_method = pytest.mark.parametrize("method", GATHERED, ids=label)
keeping = pytest.mark.parametrize("method", KEEPING, ids=label)


def _step(world, grads, senders, *, buckets=None):
    """As ``World.step``, with senders; what each rank got, in the model's order."""
    momenta = None if world.momentum is None else dict.fromkeys(MODEL.names, world.momentum)
    out = []
    for rank, (reducer, grad) in enumerate(zip(world.reducers, grads, strict=True)):
        reducer.loss = float(rank)
        reducer.begin_step(rates=dict.fromkeys(MODEL.names, 0.5), momenta=momenta, senders=senders)
        layouts = world._layouts(buckets)
        flats = [world._gather(grad, layout) for layout in layouts]
        for flat, layout in zip(flats, layouts, strict=True):
            reducer.begin(flat, layout)
        reducer.end_step()
        out.append(flats)
    return [world._scatter(flats, world._layouts(buckets)) for flats in out]


def _grads(step):
    return [normal(MODEL.numel, 10 * step + rank, torch.float64) for rank in range(RANKS)]


@every_method
def test_all_ranks_get_the_same_mean_and_agree_on_what_comes_next(method):
    world = World(method, RANKS, track_age=method.memory != "none")
    for step, senders in enumerate(TURNS):
        means = _step(world, _grads(step), senders)
        assert all(torch.equal(mean, means[0]) for mean in means)
        assert bool(torch.isfinite(means[0]).all())
        assert len({reducer.agreement() for reducer in world.reducers}) == 1
        world.rooms()


@every_method
def test_where_every_rank_is_named_it_is_as_if_none_were(method):
    named, plain = World(method, RANKS), World(method, RANKS)
    for step in range(3):
        ours, theirs = _step(named, _grads(step), (0, 1, 2, 3)), _step(plain, _grads(step), None)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for a, b in zip(named.reducers, plain.reducers, strict=True):
        for x, y in zip(a.stats().layers, b.stats().layers, strict=True):
            assert x == y
        assert (a.stats().density, a.transport.wire_bytes) == (b.stats().density, b.transport.wire_bytes)


@keeping
@pytest.mark.parametrize("buckets", [None, [("v", "s"), ("empty", "b", "w")]], ids=["one", "two"])
def test_what_came_is_what_senders_delivered_and_what_is_owed(method, buckets):
    world = World(method, RANKS)
    for step, senders in enumerate(TURNS):
        before, came = world.owed(), world.enters(_grads(step))
        means = _step(world, _grads(step), senders, buckets=buckets)
        after = world.owed()
        delivered = means[0] * world.units(0.5)
        sent = [b + c - a for b, c, a in zip(before, came, after, strict=True)]
        for rank in range(RANKS):
            if rank not in senders:
                assert torch.equal(after[rank], before[rank] + came[rank])
        torch.testing.assert_close(delivered, sum(sent[r] for r in senders) / len(senders), atol=1e-12, rtol=1e-12)
        assert all(sent[r].any() for r in senders)


@keeping
def test_bytes_are_those_of_senders_and_the_density_is_theirs(method):
    world = World(method, RANKS)
    for step, senders in enumerate(TURNS):
        before = [port.wire_bytes for port in world.lockstep.ports]
        _step(world, _grads(step), senders)
        grown = [port.wire_bytes - b for port, b in zip(world.lockstep.ports, before, strict=True)]
        assert [g > 0 for g in grown] == [rank in senders for rank in range(RANKS)]
        assert len({grown[rank] for rank in senders}) == 1
        densities = {reducer.stats().density for reducer in world.reducers}
        assert len(densities) == 1
        assert 0 < densities.pop() <= 1
    first = world.reducers[0].stats()
    assert first.wire_bytes == world.lockstep.ports[0].wire_bytes
    total = sum(layer.density * layer.entries for layer in first.layers)
    assert total == pytest.approx(first.density * MODEL.numel)


def test_the_density_does_not_depend_on_who_sends():
    world, seen = World(laconic.topk(0.3, whole_below=0), RANKS), set()
    for step, senders in enumerate(TURNS):
        _step(world, _grads(step), senders)
        seen.add(world.reducers[1].stats().density)
    assert len(seen) == 1


def test_the_density_is_that_of_the_buckets_that_came():
    world = World(laconic.topk(1.0, whole_below=0), RANKS)
    _step(world, _grads(0), (1, 2), buckets=[("b", "v")])
    assert world.reducers[0].stats().density == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@keeping
def test_a_poisoned_gradient_of_who_does_not_send_goes_nowhere(method, bad):
    world = World(method, RANKS)
    _step(world, _grads(0), (0, 1, 2, 3))
    before, grads = world.owed(), _grads(1)
    grads[2][5] = bad
    means = _step(world, grads, (0, 3))
    assert all(torch.equal(mean, means[0]) for mean in means)
    assert bool(torch.isfinite(means[0]).all())
    assert [reducer.outcome.skipped for reducer in world.reducers] == [False] * RANKS
    assert torch.equal(world.owed()[2], before[2])
    assert all(math.isfinite(layer.owed_gradients) for layer in world.reducers[2].stats().layers)
    assert bool(torch.isfinite(world.reducers[2]._state.ledger.running).all())
    assert not torch.equal(world.owed()[1], before[1])


@keeping
def test_a_poisoned_gradient_of_a_sender_is_skipped_by_all(method):
    world = World(method, RANKS)
    _step(world, _grads(0), (0, 1, 2, 3))
    before, grads = world.owed(), _grads(1)
    grads[2][5] = math.nan
    _step(world, grads, (0, 2))
    assert [reducer.outcome.skipped for reducer in world.reducers] == [True] * RANKS
    assert all(torch.equal(a, b) for a, b in zip(world.owed(), before, strict=True))


def test_momentum_is_masked_only_where_it_was_sent():
    method = replace(laconic.sdagc(1.5, whole_below=0, scope="layer", values="exact"), guard=None)
    world = World(method, RANKS)
    for step, senders in enumerate(TURNS):
        before = world.kept("velocity")
        grads = _grads(step)
        _step(world, grads, senders)
        for rank, (old, new) in enumerate(zip(before, world.kept("velocity"), strict=True)):
            fresh = 0.5 * old + grads[rank]
            kept = new != 0
            torch.testing.assert_close(new[kept], fresh[kept])
            assert bool(kept.all()) is (rank not in senders)


@pytest.mark.parametrize("scope", ["layer", "model"])
def test_what_is_owed_fades_by_the_decay_each_exchange(scope):
    """SparseLoCo: e <- beta e + fresh, then what is sent is taken out."""
    method = replace(laconic.topk(0.3, scope=scope, whole_below=0), decay=0.75)
    world, plain = World(method, RANKS), World(replace(method, decay=1.0), RANKS)
    for step, senders in enumerate(TURNS):
        faded = [0.75 * owed for owed in plain.owed()]
        plain.load([s | {"memory": {"owed": _named(owed)}} for s, owed in zip(plain.save(), faded, strict=True)])
        ours, theirs = _step(world, _grads(step), senders), _step(plain, _grads(step), senders)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert all(torch.equal(a, 0.75 * b) for a, b in zip(world.owed(), plain.owed(), strict=True))


def _named(owed):
    return dict(zip(MODEL.names, MODEL.views(owed), strict=True))


def test_a_run_goes_on_from_a_saved_state_whoever_sends():
    method = replace(laconic.gaussiank(0.3, whole_below=0), decay=0.9)
    one, other = World(method, RANKS), World(method, RANKS)
    for step, senders in enumerate(TURNS[:3]):
        _step(one, _grads(step), senders)
    other.load(one.save())
    for step, senders in enumerate(TURNS[3:], start=3):
        ours, theirs = _step(one, _grads(step), senders), _step(other, _grads(step), senders)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_over_senders_a_rarely_sent_entry_moves_further():
    grads = [torch.zeros(MODEL.numel, dtype=torch.float64) for _ in range(RANKS)]
    grads[1][4], grads[2][4], grads[2][9] = 1.0, 3.0, 5.0
    method = laconic.topk(0.2, whole_below=0)
    over_ranks = _step(World(method, RANKS), grads, (0, 1, 2))[0]
    over_senders = _step(World(replace(method, exchange=GatherMean(over="senders")), RANKS), grads, (0, 1, 2))[3]
    torch.testing.assert_close(over_ranks[[4, 9]], torch.tensor([4 / 3, 5 / 3], dtype=torch.float64))
    assert over_senders[[4, 9]].tolist() == [2.0, 5.0]


def test_who_sends_must_be_ranks_and_an_all_reduce_has_none():
    with pytest.raises(ValueError, match=r"senders must be one or more of the ranks 0 to 3"):
        _step(World(KEEPING[0], RANKS), _grads(0), (4,))
    with pytest.raises(ValueError, match=r"Use GatherMean\(\) where only some ranks send"):
        _step(World(laconic.randomk(0.3), RANKS), _grads(0), (1,))
