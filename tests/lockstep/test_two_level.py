"""Nodes of several ranks: each is one worker, and every rank of it holds a copy of the node's memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import exchanges, pairs
from contracts.vectors import same_bits
from laconic.averaging import dense
from laconic.errors import GroupError
from laconic.exchanges import GatherMean, ReduceMean, TwoLevel
from laconic.transports import Lockstep
from laconic.transports.lockstep import ring_sum
from laconic.types import Envelope
from lockstep.world import MODEL, World, gradients

BUCKETS = [("s", "v"), ("empty", "b"), ("w",)]
METHODS = {
    "dense": laconic.dense(),
    "topk": laconic.topk(0.3, whole_below=4),
    "topk update": laconic.topk(0.3, memory="update", whole_below=0),
    "topk none": laconic.topk(0.3, memory="none", whole_below=0),
    "topk_sgd": laconic.topk_sgd(0.3),
    "randomk": laconic.randomk(0.3),
    "sdagc": laconic.sdagc(1.5, whole_below=0, scope="layer", values="exact"),
    "sdagc clipped": laconic.sdagc(1.5, clip=0.5, whole_below=0, scope="layer", values="exact"),
    "sdagc clipped by layer": laconic.sdagc(
        1.5, clip=0.5, clip_scope="layer", law="progress", whole_below=0, scope="layer", values="exact"
    ),
    "sdagc whole": laconic.sdagc(1.5, over="model", scope="model", whole_below=0, values="exact"),
    "sdagc damped": laconic.sdagc(
        1.5, std_of="residual", revision="damp", whole_below=0, scope="layer", values="exact"
    ),
    "cat": laconic.cat("bits", gain="curvature", whole_below=0),
}
TOPK = METHODS["topk"]


def _on_nodes(method, node_size):
    return replace(method, exchange=TwoLevel(inner=method.exchange, node_size=node_size))


def _worlds(method, ranks=4, node_size=2, **options):
    """A world of nodes, and one with a rank in each node's place."""
    nodes = World(_on_nodes(method, node_size), ranks, node_size=node_size, **options)
    return nodes, World(method, ranks // node_size, **options)


def _node_means(grads, node_size):
    parts = [[g * (1 / node_size) for g in grads[i : i + node_size]] for i in range(0, len(grads), node_size)]
    return [ring_sum(part) for part in parts]


def _bucketed_means(grads, node_size, world, buckets):
    """As each bucket is averaged by itself: where an entry lies decides the order of a sum of three."""
    layouts = world._layouts(buckets)
    means = [_node_means([world._gather(g, layout) for g in grads], node_size) for layout in layouts]
    return [world._scatter(node, layouts) for node in zip(*means, strict=True)]


@pytest.mark.parametrize(
    ("name", "ranks", "node_size"), [*((name, 4, 2) for name in METHODS), ("dense", 6, 3), ("sdagc clipped", 6, 3)]
)
def test_nodes_are_ranks_fed_with_the_nodes_means_to_the_bit(name, ranks, node_size):
    nodes, flat = _worlds(METHODS[name], ranks, node_size)
    for step in range(3):
        grads = gradients(ranks, step)
        means = _bucketed_means(grads, node_size, nodes, BUCKETS)
        losses = [2.0 / (step + 1) + node for node in range(ranks // node_size)]
        told = [losses[rank // node_size] + (rank % node_size - (node_size - 1) / 2) for rank in range(ranks)]
        got = nodes.step(grads, buckets=BUCKETS, losses=told)
        wanted = flat.step(means, buckets=BUCKETS, losses=losses)
        assert all(same_bits(mean, wanted[0]) for mean in got)
        for rank, owed in enumerate(nodes.owed()):
            assert same_bits(owed, flat.owed()[rank // node_size])
        assert nodes.rooms() == flat.rooms()
    first, alone = nodes.reducers[0].stats(), flat.reducers[0].stats()
    assert (first.wire_bytes, first.collectives) == (alone.wire_bytes, alone.collectives)
    assert (first.density, first.owed_norm, first.layers) == (alone.density, alone.owed_norm, alone.layers)


@pytest.mark.parametrize("name", ["topk", "topk update", "topk_sgd", "randomk", "sdagc clipped", "cat"])
def test_what_a_node_owes_counts_once(name):
    """What entered the nodes is what they owe now and what was handed out, as often as there are nodes."""
    nodes, flat = _worlds(METHODS[name])
    before = [o.clone() for o in nodes.owed()[::2]]
    for step in range(2):
        grads = gradients(4, step)
        entering = flat.enters(_node_means(grads, 2))
        handed = nodes.step(grads)[0] * nodes.units(0.5)
        flat.step(_node_means(grads, 2))
        owed = nodes.owed()
        assert same_bits(owed[0], owed[1])
        assert same_bits(owed[2], owed[3])
        there = sum(before) + sum(entering)
        torch.testing.assert_close(sum(owed[::2]) + 2 * handed, there, rtol=1e-12, atol=1e-12)
        before = [o.clone() for o in owed[::2]]


@pytest.mark.parametrize("name", METHODS)
def test_a_poisoned_gradient_of_a_rank_that_does_not_lead_skips_everywhere(name):
    nodes, _ = _worlds(METHODS[name])
    nodes.step(gradients(4, 0))
    before, grads = [o.clone() for o in nodes.owed()], gradients(4, 1)
    grads[3][5] = math.inf if name == "topk" else math.nan
    got = nodes.step(grads, buckets=BUCKETS)
    assert all(mean.isnan().all() for mean in got)
    assert all(reducer.outcome.skipped for reducer in nodes.reducers)
    assert all(same_bits(a, b) for a, b in zip(nodes.owed(), before, strict=True))
    assert all(mean.isfinite().all() for mean in nodes.step(gradients(4, 2)))


@pytest.mark.parametrize("name", ["dense", "topk", "topk_sgd", "sdagc clipped"])
def test_notes_are_summed_over_all_ranks_and_losses_averaged_over_those_who_told(name):
    nodes, _ = _worlds(METHODS[name])
    notes = [torch.tensor([1, rank % 2, 0, rank], dtype=torch.uint8) for rank in range(4)]
    nodes.step(gradients(4, 0), notes=notes, losses=[1.0, math.nan, 3.0, 5.0])
    for reducer in nodes.reducers:
        assert reducer.outcome.notes.tolist() == [4, 2, 0, 6]
        seen = reducer.state_dict()["seen"]
        assert (seen["ranks"], seen["world_size"]) == (2, 2)
        if name in ("topk", "topk_sgd"):
            # Of the nodes' means, 1 and 4.
            assert seen["loss"] == 2.5


def test_bytes_between_nodes_are_the_leaders_and_those_within_are_counted_apart():
    nodes, flat = _worlds(TOPK)
    nodes.step(gradients(4, 0), buckets=BUCKETS)
    flat.step(gradients(2, 0), buckets=BUCKETS)
    stats, alone = [r.stats() for r in nodes.reducers], flat.reducers[0].stats()
    assert [s.wire_bytes for s in stats] == [alone.wire_bytes, 0, alone.wire_bytes, 0]
    assert [s.collectives for s in stats] == [3, 0, 3, 0]
    dense, told = 8 * nodes.model.numel, 24
    assert [s.node_bytes for s in stats] == [dense + told + 2 * alone.wire_bytes, dense + told] * 2
    assert [s.dense_bytes for s in stats] == [dense] * 4
    assert stats[1].ratio == math.inf


def test_one_node_alone_talks_to_nobody_outside_and_nodes_of_one_rank_within_none():
    alone = World(_on_nodes(TOPK, 3), 3, node_size=3)
    apart = World(_on_nodes(TOPK, 1), 3)
    plain = World(TOPK, 3)
    for step in range(3):
        grads = gradients(3, step)
        alone.step(grads)
        for mean, wanted in zip(apart.step(grads), plain.step(grads), strict=True):
            assert same_bits(mean, wanted)
    assert all(r.stats().wire_bytes == 0 < r.stats().node_bytes for r in alone.reducers)
    for ours, theirs in zip(apart.reducers, plain.reducers, strict=True):
        assert (ours.stats().node_bytes, ours.stats().wire_bytes) == (0, theirs.stats().wire_bytes)


@pytest.mark.parametrize("method", [TOPK, METHODS["topk_sgd"]], ids=lambda m: m.name)
def test_the_theory_measures_nodes_as_it_measures_ranks(method):
    nodes, flat = _worlds(method, measure_every=1)
    for step in range(3):
        grads = gradients(4, step)
        nodes.step(grads)
        flat.step(_node_means(grads, 2))
    for ours, theirs in zip(nodes.reducers[1].stats().history, flat.reducers[0].stats().history, strict=True):
        assert (ours.xi, ours.drift) == pytest.approx((theirs.xi, theirs.drift))
        assert ours.identity_error < 1e-12


@pytest.mark.parametrize("name", ["sdagc clipped", "cat"])
def test_a_resumed_run_gives_the_same_bits(name):
    going, resumed = _worlds(METHODS[name])[0], _worlds(METHODS[name])[0]
    for step in range(2):
        going.step(gradients(4, step))
    resumed.load(going.save())
    for step in range(2, 4):
        grads = gradients(4, step)
        assert same_bits(going.step(grads)[3], resumed.step(grads)[3])
    assert all(same_bits(a, b) for a, b in zip(going.owed(), resumed.owed(), strict=True))


def test_memory_of_single_ranks_is_not_taken_for_that_of_nodes():
    """Only the leader's would ever be sent."""
    nodes, _ = _worlds(TOPK)
    alone = World(TOPK, 4)
    alone.step(gradients(4, 0))
    with pytest.raises(ValueError, match=r"saved with nodes of 1 ranks, this method has nodes of 2"):
        nodes.load(alone.save())
    # From copies of a node's memory each rank can go on.
    nodes.step(gradients(4, 0))
    alone.load(nodes.save())


def test_half_precision_gradients_stay_finite_and_equal():
    nodes, _ = _worlds(TOPK, dtype=torch.float32)
    grads = [g.to(torch.float16) for g in gradients(4, 0)]
    for g in grads:
        g[2] = 60000.0
    got = nodes.step(grads, rates=1.0)
    assert all(torch.equal(mean, got[0]) for mean in got)
    assert got[0][2] == 60000.0


@pytest.mark.parametrize("inner", [e for e in exchanges() if not isinstance(e, TwoLevel)], ids=repr)
def test_between_nodes_an_exchange_is_what_it_is_between_ranks(inner):
    """Every request of every exchange is relayed, whatever its kind and however many rounds it has."""
    compressor = next(c for e, c in pairs(accepted=True) if e == inner)
    xs = [torch.randn(MODEL.numel, generator=torch.Generator().manual_seed(node)) for node in range(3)]

    def means(exchange, ranks, node_size):
        world, own = Lockstep(ranks, node_size=node_size), [xs[rank // node_size].clone() for rank in range(ranks)]
        futures = []
        for port, x in zip(world.ports, own, strict=True):
            told = Envelope(step=3, world_size=ranks, fingerprint=5, rank=port.rank, notes=torch.ones(2))
            futures.append(port.start(exchange.steps(x, MODEL, compressor, told), label="the exam"))
        for port in world.ports:
            port.drain()
        got = [future.value() for future in futures]
        assert all(port.wire_bytes == 0 for port in world.ports if port.rank % node_size)
        return [(dense(mean.values, x), x, mean) for mean, x in zip(got, own, strict=True)]

    flat = means(inner, 3, 1)
    for rank, (value, left, mean) in enumerate(means(TwoLevel(inner=inner, node_size=2), 6, 2)):
        wanted = flat[rank // 2]
        assert same_bits(value, wanted[0])
        assert same_bits(left, wanted[1])
        assert (mean.finite, mean.sent, mean.counts) == (wanted[2].finite, wanted[2].sent, wanted[2].counts)
        assert mean.notes.tolist() == wanted[2].notes.tolist() == [3, 3]


def _let_ranks_raise(world):
    """Let every rank of a world go on after what another raises; return what each raised."""
    raised = {}

    def advancing(port, advance):
        def advanced(running, reply):
            try:
                advance(running, reply)
            except GroupError as error:
                raised[port.rank] = str(error)

        return advanced

    for port in world.lockstep.ports:
        port.advance = advancing(port, port.advance)
    return raised


@pytest.mark.parametrize("inner", [GatherMean(), ReduceMean()], ids=lambda e: e.name)
@pytest.mark.parametrize(("differs", "stranger"), [("rates", 1), ("rates", 2), ("step", 3), ("grad_scale", 3)])
def test_every_rank_is_told_of_one_that_is_elsewhere(inner, differs, stranger):
    nodes = World(replace(laconic.randomk(0.3), exchange=TwoLevel(inner=inner, node_size=2)), 4, node_size=2)
    raised = _let_ranks_raise(nodes)
    for rank, reducer in enumerate(nodes.reducers):
        odd = rank == stranger
        reducer._state.step = 5 if odd and differs == "step" else 0
        scale = 2.0 if odd and differs == "grad_scale" else 1.0
        reducer.begin_step(rates={"w": 0.5 if odd and differs == "rates" else 0.25}, grad_scale=scale)
        reducer.begin(gradients(4, 0)[rank], nodes.model)
        reducer.end_step()
    first = stranger - stranger % 2
    for rank in range(4):
        within = rank // 2 == stranger // 2
        said = f"rank {first + 1} is at another step than rank {first} of its node" if within else "learning rates"
        assert said in raised[rank]
        assert nodes.reducers[rank].open


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match=r"node_size must be .* 4 ranks, got 3\. Start"):
        Lockstep(4, node_size=3)
    with pytest.raises(ValueError, match=r"nodes of 2 ranks, the transport nodes of 1\. Make"):
        World(_on_nodes(TOPK, 2), 4)
    with pytest.raises(ValueError, match=r"node_size is None.*Write TwoLevel"):
        World(_on_nodes(TOPK, None), 4)
    with pytest.raises(ValueError, match=r"celgc takes local steps.*Use GatherMean"):
        World(_on_nodes(laconic.celgc(2, send=TOPK), 2), 4, node_size=2)
    sent = Envelope(step=0, world_size=4, senders=(0,))
    with pytest.raises(ValueError, match=r"two_level has every node send, got senders=\(0,\)\. Use GatherMean"):
        next(TwoLevel(node_size=2).steps(torch.zeros(MODEL.numel), MODEL, TOPK.compressor, sent))
