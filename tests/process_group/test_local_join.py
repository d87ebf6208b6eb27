"""Ranks with unlike numbers of batches: nobody waits for ever, and all end with one model."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import laconic
from covering import in_turn
from models import attach, build, digest, train, weights

METHODS = {
    "celgc": laconic.celgc(4, clip=0.2),
    "celgc, some sent": laconic.celgc(4, send=laconic.topk(0.05, whole_below=0)),
    "max": laconic.celgc(4, clip=0.2, norm_by="max"),
    "averaged": laconic.celgc(4, optimizer_state="average"),
    "a sample": laconic.celgc(4, participants=2),
    "diloco": laconic.diloco(4),
    "streamed": laconic.diloco(6, fragments=2, delay=1),
    "sparseloco": laconic.sparseloco(4, k=4, chunk=64),
    "episode": laconic.episode(3, clip=0.2),
    "episode_pp": laconic.episode_pp(3, clip=0.2, participants=2),
    "post_local": laconic.post_local(4, start=5),
    "parallel_clip": laconic.parallel_clip(0.2),
}
COUNTS = (3, 7, 10)


def _unlike(group, kind, method, counts):
    model, optimizer, _ = build(group, kind, None)
    rank = dist.get_rank(group)
    with attach(model, optimizer, method, group) as link:
        train(model, optimizer, group, range(counts[rank]))
        link.finish()
        middle = digest(weights(model))
        # A second epoch, the other way round.
        train(model, optimizer, group, range(counts[-1 - rank]))
    return middle, digest(weights(model)), link.stats.skipped_steps


@pytest.mark.parametrize(("name", "kind"), in_turn(list(METHODS), ["ddp", "plain"]))
def test_ranks_with_unlike_numbers_of_batches_end_together(pool, name, kind):
    first, *others = pool.run(3, _unlike, kind, METHODS[name], COUNTS)
    assert all(other == first for other in others)
    assert first[0] != first[1]
    assert first[2] == 0


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("counts", [(1, 7), (0, 5), (0, 0)], ids=str)
def test_also_where_a_rank_has_one_batch_or_none(pool, kind, counts):
    a, b = pool.run(2, _unlike, kind, METHODS["celgc"], counts)
    assert a == b


def _options(group, options, by_hand):
    model, optimizer, _ = build(group, "ddp", None, **options)
    rank, counts = dist.get_rank(group), (3, 6)
    with attach(model, optimizer, laconic.celgc(3, optimizer_state="average"), group) as link:
        for step in range(counts[rank]):
            if by_hand:
                # As loops do that accumulate without no_sync().
                model.require_backward_grad_sync = True
            train(model, optimizer, group, [step])
    # Plain DDP again; with momentum that ranks have in common they stay together.
    train(model, optimizer, group, range(2))
    return digest(weights(model)), link.stats.syncs


@pytest.mark.parametrize(
    ("options", "by_hand"),
    [
        ({}, True),
        ({"find_unused_parameters": True}, False),
        ({"gradient_as_bucket_view": True}, False),
        ({"static_graph": True}, False),
    ],
    ids=["switched by the loop", "unused", "bucket view", "static graph"],
)
def test_whatever_ddp_is_told(pool, options, by_hand):
    a, b = pool.run(2, _options, options, by_hand)
    assert a == b
    assert a[1] == 2


def _mean_of_workers(group):
    """One rank has no batch in the second round; return the other's own model before that sync, and all after."""
    model, optimizer, _ = build(group, "plain", None)
    own = []
    # Before attach: what it sees is not yet synchronised.
    optimizer.register_step_post_hook(lambda *_: own.append(weights(model)))
    with attach(model, optimizer, laconic.local_sgd(2), group) as link:
        train(model, optimizer, group, range(2 if dist.get_rank(group) else 4))
    return own[-1], weights(model), link.stats.syncs


def test_a_rank_that_has_gone_does_not_pull_the_mean(pool):
    (own, end, syncs), (_, other, others_syncs) = pool.run(2, _mean_of_workers)
    assert digest(end) == digest(other)
    assert syncs == others_syncs
    for mine, mean in zip(own, end, strict=True):
        torch.testing.assert_close(mean, mine, rtol=1e-5, atol=1e-6)


def _settled(group, kind):
    model, optimizer, _ = build(group, kind, None)
    send = laconic.topk(0.05, memory="update", whole_below=0, scope="model", exchange="led", values="sign")
    with attach(model, optimizer, laconic.celgc(2, restart=None, send=send), group) as link:
        train(model, optimizer, group, range(5))
        link.finish()
        owing = link.stats
        link.finish(settle="sign")
        settled = link.stats
    return digest(weights(model)), owing.owed_norm, settled.owed_norm, settled.wire_bytes - owing.wire_bytes


@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_what_is_owed_at_the_end_is_sent_and_models_stay_equal(pool, kind):
    ranks = pool.run(3, _settled, kind)
    assert len({weights for weights, *_ in ranks}) == 1
    assert len({sent for *_, sent in ranks}) == 1
    for _, owing, settled, sent in ranks:
        assert 0 < settled < owing
        assert sent > 0
