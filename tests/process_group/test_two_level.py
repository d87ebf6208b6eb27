"""Nodes over gloo: the bits of lockstep, with DDP and plain modules; only leaders talk between nodes."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import laconic
from laconic.exchanges import TwoLevel
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports import Lockstep, ProcessGroupTransport
from models import Watch, attach, build, digest, imbalance, memory_bits, train, weights

MODEL = Segments.of(["a", "b", "c", "scalar"], [3000, 1500, 257, 1])
# As backward would fill them: not in the model's order.
BUCKETS = [("scalar", "c"), ("b",), ("a",)]
STEPS, POISONED = 4, 2
METHODS = {
    "dense": laconic.dense(),
    "topk": laconic.topk(0.05),
    "topk_sgd": laconic.topk_sgd(0.05),
    "randomk": laconic.randomk(0.05),
    "sdagc": laconic.sdagc(3.0, clip=0.5, momentum=False, whole_below=0, scope="layer", values="exact"),
}
KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])


def _on_nodes(name, node_size):
    return replace(METHODS[name], exchange=TwoLevel(inner=METHODS[name].exchange, node_size=node_size))


def _begin(reducer, rank, step):
    source, grads = torch.Generator().manual_seed(100 * rank + step), []
    reducer.loss = 3.0 / (step + 1) + rank
    reducer.begin_step(rates=dict.fromkeys(MODEL.names, 0.1))
    for names in BUCKETS:
        sizes = [MODEL[name].size for name in names]
        grads.append(torch.randn(sum(sizes), generator=source))
        if (rank, step) == (3, POISONED):
            grads[-1][0] = float("inf")
        notes = torch.tensor([1, rank], dtype=torch.uint8) if len(grads) == 1 else None
        reducer.begin(grads[-1], Segments.of(names, sizes), notes=notes)
    return grads


def _summary(reducer, seen):
    state, stats = reducer.state_dict(), reducer.stats()
    memory = {kind: digest(vectors.values()) for kind, vectors in state["memory"].items()}
    numbers = (stats.steps, stats.skipped_steps, stats.wire_bytes, stats.node_bytes, stats.collectives)
    return seen, memory, numbers, repr(state["seen"]["loss"]), reducer.outcome.notes.tolist()


def _in_lockstep(name, ranks, node_size):
    world = Lockstep(ranks, node_size=node_size)
    reducers = [Reducer(_on_nodes(name, node_size), MODEL, port) for port in world.ports]
    seen = [[] for _ in range(ranks)]
    for step in range(STEPS):
        grads = [_begin(reducer, rank, step) for rank, reducer in enumerate(reducers)]
        for reducer in reducers:
            reducer.end_step()
        for rank in range(ranks):
            seen[rank].append(digest(grads[rank]))
    return [_summary(r, s) for r, s in zip(reducers, seen, strict=True)]


def _over_gloo(group, names, node_size):
    out, rank = {}, dist.get_rank(group)
    for name in names:
        transport = ProcessGroupTransport(group, torch.device("cpu"), node_size=node_size)
        reducer, seen = Reducer(_on_nodes(name, node_size), MODEL, transport), []
        for step in range(STEPS):
            grads = _begin(reducer, rank, step)
            reducer.end_step()
            seen.append(digest(grads))
        out[name] = _summary(reducer, seen)
    return out


@pytest.mark.parametrize("node_size", [2, 4])
def test_lockstep_and_gloo_give_the_same_bits(pool, node_size):
    theirs = pool.run(4, _over_gloo, list(METHODS), node_size)
    for name in METHODS:
        ours = _in_lockstep(name, 4, node_size)
        assert [told[name] for told in theirs] == ours
        assert len({repr(o[0]) for o in ours}) == 1
        assert ours[0][2][:2] == (STEPS, 1)
        assert ours[0][4] == [4, 6]


def _trained(group, kind, name, node_size):
    method = METHODS[name] if node_size == 1 else _on_nodes(name, node_size)
    model, optimizer, _ = build(group, kind, None)
    link = attach(model, optimizer, method, group)
    watch = Watch(model, optimizer, unit=method.memory)
    seen = train(model, optimizer, group, range(5))
    return seen, memory_bits(link), link.stats, watch.account(link), weights(model)


@KINDS
@pytest.mark.parametrize("name", ["topk", "sdagc"])
def test_models_are_equal_and_what_a_node_owes_counts_once(pool, kind, name):
    seen, memory, stats, accounts, _ = zip(*pool.run(4, _trained, kind, name, 2), strict=True)
    assert len({tuple(digests) for digests in seen}) == 1
    assert memory[0] == memory[1] != memory[2] == memory[3]
    assert [s.wire_bytes > 0 for s in stats] == [True, False, True, False]
    assert all(s.node_bytes > 0 and s.setup_bytes > 0 for s in stats[::2])
    if name == "topk":
        nodes = [
            {key: ((made + other[key][0]) / 2, given, owed) for key, (made, given, owed) in first.items()}
            for first, other in (accounts[:2], accounts[2:])
        ]
        assert imbalance(nodes) < 1e-5


@KINDS
def test_dense_on_two_levels_is_the_dense_mean(pool, kind):
    two = pool.run(4, _trained, kind, "dense", 2)
    one = pool.run(4, _trained, kind, "dense", 1)
    assert len({tuple(out[0]) for out in two}) == 1
    # The order in which four numbers are added is another one.
    torch.testing.assert_close(two[0][4], one[0][4], rtol=1e-4, atol=1e-6)


def _launched(group, told):
    """Attach with the node size left to the launcher, twice in the same process."""
    before = os.environ.pop("LOCAL_WORLD_SIZE", None)
    if told is not None:
        os.environ["LOCAL_WORLD_SIZE"] = told
    try:
        method, sizes = _on_nodes("topk", None), []
        for _ in range(2):
            model, optimizer, _ = build(group, "plain", None)
            with attach(model, optimizer, method, group) as link:
                train(model, optimizer, group, range(1))
            sizes.append(link.method.exchange.node_size)
        return sizes
    except (ValueError, laconic.GroupError) as error:
        return str(error)
    finally:
        os.environ.pop("LOCAL_WORLD_SIZE", None)
        if before is not None:
            os.environ["LOCAL_WORLD_SIZE"] = before


def test_attach_asks_the_launcher_for_the_node_size(pool):
    assert pool.run(4, _launched, "2") == [[2, 2]] * 4
    for said in pool.run(4, _launched, None):
        assert "LOCAL_WORLD_SIZE is not set. Start with torchrun" in said
    for said in pool.run(4, _launched, "3"):
        assert "node_size must be a whole number that divides the 4 ranks, got 3." in said


def _meshed(group):
    method = replace(METHODS["topk"], exchange=TwoLevel.of_mesh(init_device_mesh("cpu", (2, 2))))
    model, optimizer, _ = build(group, "plain", None)
    link = attach(model, optimizer, method, group)
    return link.method.exchange.node_size, train(model, optimizer, group, range(2))


def test_a_real_mesh_says_the_node_size(pool):
    sizes, seen = zip(*pool.run(4, _meshed), strict=True)
    assert sizes == (2, 2, 2, 2)
    assert len({tuple(digests) for digests in seen}) == 1


def _disagreeing(group):
    model, optimizer, _ = build(group, "plain", None)
    try:
        attach(model, optimizer, _on_nodes("topk", 4 if dist.get_rank(group) == 3 else 2), group)
    except laconic.GroupError as error:
        return str(error)


def test_ranks_that_count_nodes_unlike_are_told_before_any_group_is_made(pool):
    for said in pool.run(4, _disagreeing):
        assert "node_size=2" in said
        assert "node_size=4" in said


def _in_a_part_of_the_world(group):
    model, optimizer, _ = build(group, "plain", None)
    try:
        attach(model, optimizer, _on_nodes("topk", 2), group)
    except ValueError as error:
        return str(error)


def test_a_group_that_is_not_the_whole_world_is_refused(pool):
    for said in pool.run(2, _in_a_part_of_the_world):
        assert "this group has 2. Attach on the default group." in said
