"""Models that FSDP2 has sharded: dense among the ranks of a replica, by the method between replicas."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import laconic
from process_group.shards import (
    SHARDS,
    mesh_of,
    net,
    of_this_rank,
    of_this_replica,
    optimizer_of,
    sharded,
    train,
    whole,
)

METHODS = {
    "dense": laconic.dense(),
    "topk": laconic.topk(0.05, whole_below=0),
    "sdagc": laconic.sdagc(6.0, clip=0.5),
    "powersgd": laconic.powersgd(1, least_ratio=1.0),
    "celgc": laconic.celgc(4, clip=0.2),
    "spartan": laconic.spartan(4, density=0.1),
    "diloco, moments averaged": laconic.diloco(4, optimizer_state="average"),
    "parallel_clip": laconic.parallel_clip(0.2),
}
# In the middle of a round of four.
STEPS, BEFORE = 10, 6


def _trained(group, method, check_every=0):
    model, optimizer, link = sharded(method, check_every=check_every)
    train(model, optimizer, range(STEPS), of_this_rank)
    link.finish()
    link.detach()
    return whole(model), link.stats


def _trained_whole(group, method):
    """The same on as many ranks as there were replicas, none of them sharded."""
    model = net()
    optimizer = optimizer_of(model, method)
    link = laconic.attach(model, optimizer, method, group=group)
    train(model, optimizer, range(STEPS), of_this_replica)
    link.finish()
    link.detach()
    return [p.detach().clone() for p in model.parameters()], link.stats


@pytest.mark.parametrize("name", METHODS)
def test_all_replicas_hold_one_model(pool, name):
    first, *others = (model for model, _ in pool.run(4, _trained, METHODS[name]))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_replicas_compare_digests_of_their_shards(pool):
    compared, quiet = (pool.run(4, _trained, METHODS["topk"], every)[0][1] for every in (2, 0))
    assert compared.look_bytes > quiet.look_bytes
    assert compared.wire_bytes == quiet.wire_bytes


@pytest.mark.parametrize(
    "method",
    [laconic.dense(), laconic.celgc(4, clip=0.2), laconic.parallel_clip(0.2), laconic.episode(4, clip=0.2),
     laconic.celgc(4, clip=0.2, convention="mean", optimizer_state="average")],
    ids=["dense", "celgc", "parallel_clip", "episode", "averaged"],
)  # fmt: skip
def test_a_replica_is_one_worker(pool, method):
    """Where everything is sent, sharding changes nothing but the order of sums: clipping is by whole norms."""
    ours, stats = pool.run(4, _trained, method)[0]
    theirs, known = pool.run(2, _trained_whole, method)[0]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert stats.clipped_share == known.clipped_share
    assert stats.syncs == known.syncs


def test_clipping_before_memory_is_by_the_norm_of_the_whole_model(pool):
    method = replace(laconic.dense(), clip=laconic.LocalClip(norm=0.1), memory="gradient",
                     compressor=laconic.TopK(density=1.0), exchange=laconic.GatherMean())  # fmt: skip
    ours, theirs = pool.run(4, _trained, method)[0][0], pool.run(2, _trained_whole, method)[0][0]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_bytes_are_those_between_replicas(pool):
    dense, few = (pool.run(4, _trained, METHODS[name]) for name in ("dense", "topk"))
    parameters = sum(p.numel() for p in net().parameters())
    # Ranks that hold the same shard hand over equally much, and shards together the model.
    for _, stats in dense:
        assert stats.wire_bytes == pytest.approx(STEPS * 4 * parameters / SHARDS, rel=0.1)
    assert sum(stats.dense_bytes for _, stats in dense[:SHARDS]) == STEPS * 4 * parameters
    for _, stats in few:
        assert stats.ratio > 5


def _saved(group, name, folder):
    model, optimizer, link = sharded(METHODS[name])
    train(model, optimizer, range(BEFORE), of_this_rank)
    # Within a round replicas hold unlike models: each saves its own.
    own = {f"replica-{mesh_of().get_local_rank('replicate')}": get_model_state_dict(model)}
    dcp.save({"models": own, "link": laconic.LinkState(link)}, checkpoint_id=folder)
    train(model, optimizer, range(BEFORE, STEPS), of_this_rank)
    link.finish()
    link.detach()
    return whole(model)


def _gone_on(group, name, folder):
    model, optimizer, link = sharded(METHODS[name])
    laconic.LinkState(link).load_from(folder)
    if link.rounds is None:
        key = f"replica-{mesh_of().get_local_rank('replicate')}"
        mine = {"models": {key: get_model_state_dict(model)}}
        dcp.load(mine, checkpoint_id=folder)
        set_model_state_dict(model, mine["models"][key])
    train(model, optimizer, range(BEFORE, STEPS), of_this_rank)
    link.finish()
    link.detach()
    return whole(model)


@pytest.mark.parametrize("name", ["topk", "sdagc", "powersgd", "spartan"])
def test_a_resumed_run_gives_the_same_bits(pool, name, tmp_path):
    straight = pool.run(4, _saved, name, tmp_path)
    resumed = pool.run(4, _gone_on, name, tmp_path)
    for ours, theirs in zip(resumed, straight, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _poisoned(group, name):
    """In one step an entry of one rank's shard is infinite."""
    model, optimizer, link = sharded(METHODS[name])
    train(model, optimizer, range(2), of_this_rank)
    owed, before = link.state_dict()["memory"], whole(model)
    x, y = of_this_rank(2)
    nn.functional.mse_loss(model(x), y).backward()
    if dist.get_rank() == 0:
        next(model.parameters()).grad.to_local().view(-1)[0] = inf
    optimizer.step()
    optimizer.zero_grad()
    still = link.state_dict()["memory"]
    kept = all(torch.equal(owed[kind][n], still[kind][n]) for kind in owed for n in owed[kind])
    moved = not all(torch.equal(a, b) for a, b in zip(before, whole(model), strict=True))
    skipped = link.stats.skipped_steps
    train(model, optimizer, range(3, STEPS), of_this_rank)
    link.finish()
    link.detach()
    return skipped, kept, moved, whole(model)


@pytest.mark.parametrize("name", ["dense", "topk", "sdagc"])
def test_what_is_poisoned_in_one_shard_all_ranks_skip(pool, name):
    results = pool.run(4, _poisoned, name)
    assert [(skipped, kept, moved) for skipped, kept, moved, _ in results] == [(1, True, False)] * 4
    assert all(torch.equal(a, b) for *_, other in results for a, b in zip(results[0][3], other, strict=True))


def test_what_is_poisoned_in_one_shard_its_replica_skips_alone_within_a_round(pool):
    results = pool.run(4, _poisoned, "celgc")
    assert [(skipped, moved) for skipped, _, moved, _ in results] == [(1, False)] * 2 + [(0, True)] * 2
    assert all(torch.equal(a, b) for *_, other in results for a, b in zip(results[0][3], other, strict=True))


def _lost_model(group):
    """A weight of one shard becomes NaN in the last step of a round."""
    model, optimizer, link = sharded(METHODS["celgc"])
    train(model, optimizer, range(4), of_this_rank)
    agreed = whole(model)
    train(model, optimizer, range(4, 7), of_this_rank)
    x, y = of_this_rank(7)
    nn.functional.mse_loss(model(x), y).backward()
    if dist.get_rank() == 0:
        next(model.parameters()).detach().to_local().view(-1)[0] = float("nan")
    optimizer.step()
    optimizer.zero_grad()
    same = all(torch.equal(a, b) for a, b in zip(agreed, whole(model), strict=True))
    link.detach()
    return same


def test_a_round_that_one_shard_must_drop_is_dropped_by_all(pool):
    assert pool.run(4, _lost_model) == [True] * 4


def _refused(group, how):
    model, mesh, method, settings = net(), mesh_of(), laconic.topk(0.05), {}
    exchanging = mesh["replicate"].get_group()
    if how == "replicas too":
        fully_shard(model, mesh=mesh)
    elif how == "a part":
        fully_shard(model.mlp, mesh=mesh["shard"])
    else:
        fully_shard(model, mesh=mesh["shard"])
    if how == "no replicas":
        exchanging = None
    if how == "its own shards":
        exchanging = mesh["shard"].get_group()
    if how == "a scaler":
        settings = {"scaler": torch.amp.GradScaler("cpu")}
    if how == "a period of its own":
        method = laconic.celgc(4, period="drift")
    if how == "fragments":
        method = laconic.diloco(4, fragments=2)
    with pytest.raises((ValueError, TypeError)) as said:
        laconic.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method, group=exchanging, **settings)
    return str(said.value)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no replicas", ["has no replicas", 'mesh=mesh["shard"]', 'group=mesh["replicate"].get_group()']),
        ("replicas too", ["averages gradients over them itself", 'mesh=mesh["shard"]']),
        ("its own shards", ["unlike shards", 'mesh["replicate"]']),
        ("a part", ["gain is whole", "fully_shard the root"]),
        ("a scaler", ["no GradScaler", "bfloat16"]),
        ("a period of its own", ["'drift_budget'", "fixed or a growing"]),
        ("fragments", ["fragments=1"]),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(pool, how, words):
    for said in pool.run(4, _refused, how):
        assert all(word in said for word in words), said


def _flat(group):
    model = FullyShardedDataParallel(net(), process_group=group, device_id=torch.device("cpu"))
    with pytest.raises(TypeError, match=r"FullyShardedDataParallel.*Use fully_shard"):
        laconic.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), laconic.topk(0.05), group=group)


def test_the_first_kind_of_fsdp_is_refused(pool):
    """Its parameters look whole: ranks would have exchanged unlike parts of the model for one another's."""
    pool.run(2, _flat)
