"""Sharded models in real loops: evaluated, accumulated, clipped, in half precision, with unlike ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import laconic
from process_group.shards import (
    equal,
    mesh_of,
    net,
    of_this_rank,
    of_this_replica,
    optimizer_of,
    sharded,
    sharded_net,
    train,
    whole,
)

CELGC = laconic.celgc(4, clip=0.2)
# All is sent, and momentum is the method's.
MOVED = replace(laconic.sdagc(), compressor=laconic.TopK(density=1.0), exchange=laconic.GatherMean(),
                tuner=laconic.Constant(), masking=False)  # fmt: skip


def _close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def _evaluated(model):
    return model(torch.ones(2, 16)).sum().item()


def _looked_at(group, looks):
    model, optimizer, link = sharded(CELGC)
    train(model, optimizer, range(2), of_this_rank)
    if looks:
        with link.averaged():
            _evaluated(model)
    train(model, optimizer, range(2, 7), of_this_rank)
    link.finish()
    link.detach()
    return whole(model)


def test_a_look_at_the_mean_changes_nothing(pool):
    """After an evaluation FSDP keeps some parameters gathered, and trained on with the mean's."""
    with_looks, without = pool.run(4, _looked_at, True), pool.run(4, _looked_at, False)
    assert all(equal(ours, theirs) for ours, theirs in zip(with_looks, without, strict=True))


def _finished(group):
    model, optimizer, link = sharded(CELGC)
    train(model, optimizer, range(2), of_this_rank)
    _evaluated(model)
    link.finish()
    said = _evaluated(model)
    link.detach()
    return said


def test_what_is_evaluated_at_the_end_is_one_model(pool):
    assert len(set(pool.run(4, _finished))) == 1


def _attached_late(group):
    model = sharded_net(mesh_of())
    optimizer = optimizer_of(model, CELGC)
    _evaluated(model)
    link = laconic.attach(model, optimizer, CELGC, group=mesh_of()["replicate"].get_group())
    train(model, optimizer, range(4), of_this_rank)
    link.detach()
    return whole(model)


def test_a_model_may_be_evaluated_before_it_is_attached(pool):
    first, *others = pool.run(4, _attached_late)
    assert all(equal(first, other) for other in others)


def _lost_within_a_round(group):
    """A weight of one shard is NaN when ranks end in the middle of a round."""
    model, optimizer, link = sharded(CELGC)
    train(model, optimizer, range(4), of_this_rank)
    agreed = whole(model)
    train(model, optimizer, range(4, 6), of_this_rank)
    if dist.get_rank() == 0:
        next(model.parameters()).detach().to_local().view(-1)[0] = float("nan")
    link.finish()
    link.detach()
    return equal(agreed, whole(model))


def test_a_round_that_ends_early_and_that_one_shard_must_drop_is_dropped_by_all(pool):
    assert pool.run(4, _lost_within_a_round) == [True] * 4


def _unlike(group):
    mesh = mesh_of()
    model = sharded_net(mesh)
    # Each rank with the other replica's other shard.
    pairs = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]
    mine = pairs[0 if dist.get_rank() in (0, 3) else 1]
    before = whole(model)
    with pytest.raises(laconic.GroupError) as said:
        laconic.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), laconic.topk(0.05), group=mine)
    return str(said.value), equal(before, whole(model))


def test_ranks_with_unlike_shards_are_told_so_before_anything_is_sent(pool):
    for said, untouched in pool.run(4, _unlike):
        assert "shard 0 of 2" in said
        assert "shard 1 of 2" in said
        assert untouched


def _statistics(group):
    model, optimizer, link = sharded(laconic.celgc(4, clip=0.2, buffers="average"), norms=True)
    train(model, optimizer, range(4), of_this_rank)
    link.detach()
    return model.norm.running_mean.clone()


def _statistics_whole(group):
    model = net(norms=True)
    optimizer = optimizer_of(model, CELGC)
    link = laconic.attach(model, optimizer, laconic.celgc(1, clip=0.2, buffers="average"), group=group)
    train(model, optimizer, range(4), of_this_rank)
    link.detach()
    return model.norm.running_mean.clone()


def test_statistics_of_batches_are_the_mean_of_all_ranks(pool):
    first, *others = pool.run(4, _statistics)
    assert all(torch.equal(first, other) for other in others)
    # What comes before the statistics has no parameter, so that any ranks' mean of the same batches is the same.
    torch.testing.assert_close(first, pool.run(4, _statistics_whole)[0])


def _accumulated(group, syncs_always):
    model, optimizer, link = sharded(laconic.topk(0.05, whole_below=0))
    for step in range(3):
        for part in range(2):
            model.set_requires_gradient_sync(syncs_always or part == 1)
            x, y = of_this_rank(2 * step + part)
            nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    link.detach()
    return whole(model), link.stats.steps


def test_accumulated_gradients_are_exchanged_once(pool):
    (ours, steps), (theirs, _) = pool.run(4, _accumulated, False)[0], pool.run(4, _accumulated, True)[0]
    _close(ours, theirs)
    assert steps == 3


def _clipped(group, by_hand):
    model, optimizer, link = sharded(laconic.celgc(4) if by_hand else laconic.celgc(4, clip=0.1))
    for step in range(6):
        x, y = of_this_rank(step)
        nn.functional.mse_loss(model(x), y).backward()
        if by_hand:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    link.finish()
    link.detach()
    return whole(model)


def test_clip_grad_norm_clips_what_the_method_would(pool):
    _close(pool.run(4, _clipped, True)[0], pool.run(4, _clipped, False)[0])


def _in_half(group):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, optimizer, link = sharded(laconic.topk(0.05, whole_below=0), policy=policy)
    losses = []
    for step in range(30):
        x, y = of_this_rank(step % 2)
        loss = nn.functional.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    link.detach()
    return whole(model), losses


def test_bfloat16_with_sums_in_float32(pool):
    first, *others = pool.run(4, _in_half)
    assert all(equal(first[0], other) for other, _ in others)
    assert first[1][-2] < first[1][0]


def _decayed(group, folder):
    model, optimizer, link = sharded(MOVED, decay=0.05)
    train(model, optimizer, range(4), of_this_rank)
    dcp.save({"link": laconic.LinkState(link)}, checkpoint_id=folder)
    kept = [p.detach().to_local().clone() for p in model.parameters()]
    train(model, optimizer, range(4, 8), of_this_rank)
    straight = whole(model)
    link.detach()
    model, optimizer, link = sharded(MOVED, decay=0.05)
    for p, value in zip(model.parameters(), kept, strict=True):
        p.detach().to_local().copy_(value)
    laconic.LinkState(link).load_from(folder)
    train(model, optimizer, range(4, 8), of_this_rank)
    link.detach()
    return straight, equal(straight, whole(model))


def _decayed_whole(group):
    model = net()
    optimizer = optimizer_of(model, MOVED, 0.05)
    link = laconic.attach(model, optimizer, MOVED, group=group)
    train(model, optimizer, range(8), of_this_replica)
    link.detach()
    return [p.detach().clone() for p in model.parameters()]


def test_moved_momentum_and_decay_are_those_of_a_whole_model_and_resume(pool, tmp_path):
    results = pool.run(4, _decayed, tmp_path)
    assert all(same for _, same in results)
    _close(results[0][0], pool.run(2, _decayed_whole)[0])


def _other_shards(group, folder):
    _, _, link = sharded(laconic.topk(0.05))
    dcp.save({"link": laconic.LinkState(link)}, checkpoint_id=folder)
    link.detach()
    _, _, link = sharded(laconic.topk(0.05), mesh=mesh_of(4, 1))
    with pytest.raises(ValueError, match="loaded on as many shards") as said:
        laconic.LinkState(link).load_from(folder)
    link.detach()
    return str(said.value)


def test_memory_of_another_number_of_shards_is_refused_by_that(pool, tmp_path):
    for said in pool.run(4, _other_shards, tmp_path):
        assert "rank-00000-shard-00000-of-00002" in said
        assert "shard-00000-of-00001" in said
