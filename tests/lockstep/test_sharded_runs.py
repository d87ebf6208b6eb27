"""Runs with a sparse all-reduce: nothing is lost, models stay equal, ranges follow, a restart changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import laconic
from contracts.vectors import normal, same_bits
from laconic.codecs import WORDS, Linear
from laconic.exchanges import GatherMean, ShardedMean, SmallestMean, TwoLevel
from laconic.method import Method
from laconic.segments import Segments
from lockstep.world import World, gradients

MODEL = Segments.of(["w", "b", "empty", "v", "s"], [120, 8, 0, 70, 1])


def _with(method: Method, exchange: object = None) -> Method:
    return replace(method, exchange=exchange or ShardedMean())


def _topk(density: float = 0.1, values: str = "exact", **settings: object) -> Method:
    return _with(laconic.topk(density, whole_below=4, **settings), ShardedMean(values=WORDS[values]()))


def _run(world: World, steps: int, *, first: int = 0, buckets=None) -> list[list[Tensor]]:
    ranks = world.lockstep.world_size
    return [
        world.step(gradients(ranks, step, numel=MODEL.numel), buckets=buckets)
        for step in range(first, first + steps)
    ]


BUCKETS = [("s", "v"), ("empty", "b", "w")]


@pytest.mark.parametrize("values", WORDS)
def test_nothing_is_lost_over_a_run(values):
    ranks, world = 2, World(_topk(values=values), 2, model=MODEL)
    came, moved = torch.zeros(MODEL.numel, dtype=torch.float64), torch.zeros(MODEL.numel, dtype=torch.float64)
    for step in range(20):
        grads = gradients(ranks, step, numel=MODEL.numel)
        came += sum(grads)
        first, *others = world.step(grads)
        assert all(same_bits(first, other) for other in others)
        moved += ranks * first
    torch.testing.assert_close(moved + sum(world.owed()), came)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("exchange", [ShardedMean(), SmallestMean(values=Linear(bits=8))], ids=repr)
def test_momentum_masking_and_ages_go_by_what_arrived(exchange, ranks):
    world = World(
        _with(laconic.dgc(0.1, whole_below=4, warmup_steps=0), exchange), ranks, model=MODEL, track_age=True
    )
    for means in _run(world, 6, buckets=BUCKETS):
        assert all(same_bits(means[0], mean) for mean in means)
    for sent_at, velocity in zip(world.kept("sent_at"), world.kept("velocity"), strict=True):
        just = sent_at[:120] == 6
        assert int(just.sum()) in range(1, 13)
        assert not velocity[:120][just].any()
        assert velocity[:120][~just].all()


def test_rooms_follow_the_counts_as_with_gathering():
    """What is counted is what qualified on each rank, before anything travels."""
    grads = [gradients(4, 0, numel=MODEL.numel)]
    rooms = []
    for exchange in (GatherMean(), ShardedMean()):
        world = World(
            _with(laconic.sdagc(1.5, whole_below=4, scope="layer", values="exact"), exchange), 4, model=MODEL
        )
        world.step([g.clone() for g in grads[0]])
        rooms.append(world.rooms())
    assert rooms[0] == rooms[1]
    later = World(_with(laconic.sdagc(1.5, whole_below=4, scope="layer", values="exact")), 4, model=MODEL)
    _run(later, 8, buckets=BUCKETS)
    assert set(later.rooms()) == {"w", "b", "v"}
    assert all(1 <= room <= MODEL[name].size for name, room in later.rooms().items())


def test_ranges_follow_entries_that_lie_in_one_corner():
    """Every rank chooses the first 40 of 4000 entries: at first one range gets all, and has room for a quarter."""
    model, ranks = Segments.of(["w"], [4000]), 4
    world = World(_with(laconic.topk(0.01, memory="none", whole_below=0)), ranks, model=model)
    told = []
    for step in range(8):
        grads = [1e-3 * normal(4000, 10 * step + rank, torch.float64) for rank in range(ranks)]
        for grad in grads:
            grad[:40] += 100.0
        told.append(int(world.step(grads)[0].count_nonzero()))
    (kept,) = world.save()[0]["kept"].values()
    assert told[0] <= 20
    assert told[-1] >= 36
    assert kept[:5].tolist()[3] <= 40
    assert all(torch.equal(next(iter(state["kept"].values())), kept) for state in world.save())


@pytest.mark.parametrize("values", ["exact", "stochastic4"])
def test_a_resumed_run_gives_the_same_bits(values):
    through = World(_topk(values=values), 3, model=MODEL)
    expected = _run(through, 7)
    begun = World(_topk(values=values), 3, model=MODEL)
    _run(begun, 4)
    resumed = World(_topk(values=values), 3, model=MODEL)
    resumed.load(begun.save())
    for ours, theirs in zip(_run(resumed, 3, first=4), expected[4:], strict=True):
        assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(same_bits(a, b) for a, b in zip(resumed.owed(), through.owed(), strict=True))


@pytest.mark.parametrize("values", ["exact", "int4"])
def test_a_poisoned_step_leaves_everything_as_it_was(values):
    world = World(_topk(values=values), 3, model=MODEL)
    _run(world, 2)
    before = world.save()
    grads = gradients(3, 5, numel=MODEL.numel)
    grads[2][17] = float("nan")
    assert all(bool(torch.isnan(mean).all()) for mean in world.step(grads))
    for old, new in zip(before, world.save(), strict=True):
        assert all(torch.equal(old["memory"]["owed"][n], new["memory"]["owed"][n]) for n in MODEL.names)
        assert all(torch.equal(old["kept"][k], new["kept"][k]) for k in old["kept"])


@pytest.mark.parametrize("exchange", [ShardedMean(), ShardedMean(values=Linear(bits=4)), SmallestMean()], ids=repr)
def test_with_everything_sent_it_is_the_mean(exchange):
    grads = gradients(3, 1, numel=MODEL.numel)
    dense = replace(laconic.dense(), exchange=exchange, memory="none" if exchange.lossless else "gradient")
    means = World(dense, 3, model=MODEL).step([g.clone() for g in grads])
    close = 1e-12 if exchange.lossless else 1.0
    torch.testing.assert_close(means[0], sum(grads) / 3, rtol=0, atol=close)
    gathered = World(laconic.topk(1.0, whole_below=0), 3, model=MODEL).step([g.clone() for g in grads])
    if exchange.lossless:
        assert same_bits(means[0], gathered[0])


def test_the_whole_model_as_one_vector_and_measurements_of_the_theory():
    world = World(_topk(scope="model"), 3, model=MODEL, measure_every=1)
    _run(world, 6, buckets=BUCKETS)
    history = world.reducers[0].stats().history
    assert len(history) == 6
    assert all(m.identity_error < 1e-9 for m in history)
    assert all(m.drift <= m.drift_bound * (1 + 1e-9) for m in history)


def test_between_nodes_it_is_what_it_is_between_ranks():
    grads = gradients(3, 1, numel=MODEL.numel)
    alone = World(_topk(), 3, model=MODEL).step([g.clone() for g in grads])
    nodes = World(_with(_topk(), TwoLevel(inner=ShardedMean(), node_size=1)), 3, model=MODEL)
    assert same_bits(nodes.step([g.clone() for g in grads])[0], alone[0])


def test_it_learns_as_gathering_does_that_moves_as_many_entries():
    """Least squares, each rank with rows of its own. A mean has as many entries as one rank chooses, not as all."""
    source, ranks = torch.Generator().manual_seed(3), 3
    rows = torch.randn(ranks, 60, MODEL.numel, generator=source, dtype=torch.float64)
    truth, losses = normal(MODEL.numel, 5, torch.float64), []
    for exchange, density in (
        (GatherMean(), 0.1 / ranks),
        (ShardedMean(), 0.1),
        (ShardedMean(values=Linear(bits=4)), 0.1),
    ):
        world = World(_with(laconic.topk(density, whole_below=4), exchange), ranks, model=MODEL)
        x = torch.zeros(MODEL.numel, dtype=torch.float64)
        for _ in range(40):
            grads = [a.T @ (a @ (x - truth)) / 60 for a in rows]
            x -= 0.1 * world.step(grads, rates=0.1)[0]
        losses.append(float((rows @ (x - truth)).square().mean()))
    assert losses[0] < 0.1 * float((rows @ truth).square().mean())
    assert max(losses) < 1.5 * losses[0]
