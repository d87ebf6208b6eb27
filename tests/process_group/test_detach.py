"""Letting go: after detach everything is as it was found, and another method may follow."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import laconic
from models import Mlp, attach, build, digest, loss, train, weights, wrap

METHODS = [
    laconic.dense(),
    laconic.topk(0.05),
    laconic.topk_sgd(0.05),
    laconic.randomk(0.05),
    laconic.sdagc(3.0, scope="layer", values="exact"),
]


def _plain_ddp(group, steps):
    model, optimizer, _ = build(group, "ddp", None)
    return train(model, optimizer, group, range(steps))


def _attached_for_nothing(group, method):
    model, optimizer, link = build(group, "ddp", method)
    link.detach()
    return train(model, optimizer, group, range(6))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_detached_at_once_a_ddp_module_gives_plain_ddps_bits(pool, ranks, method):
    assert pool.run(ranks, _attached_for_nothing, method) == pool.control(ranks, _plain_ddp, 6)


def _detached_half_way(group):
    model, optimizer, link = build(group, "ddp", laconic.dense())
    seen = train(model, optimizer, group, range(3))
    link.detach()
    seen += train(model, optimizer, group, range(3, 6))
    return seen, link.stats.steps


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_detached_half_way_a_ddp_module_gives_plain_ddps_bits(pool, ranks):
    ours = pool.run(ranks, _detached_half_way)
    assert [seen for seen, _ in ours] == pool.control(ranks, _plain_ddp, 6)
    assert all(steps == 3 for _, steps in ours)


def _detached_after_sparse_steps(group, detach):
    """Take over weights and optimizer in a module that never saw laconic, or detach and go on."""
    model, optimizer, link = build(group, "ddp", laconic.topk(0.05))
    train(model, optimizer, group, range(3))
    if detach:
        link.detach()
        return train(model, optimizer, group, range(3, 6))
    other, control, _ = build(group, "ddp", None)
    other.load_state_dict(model.state_dict())
    control.load_state_dict(optimizer.state_dict())
    return train(other, control, group, range(3, 6))


def test_after_sparse_steps_the_bits_are_plain_ddps_again(pool):
    assert pool.run(2, _detached_after_sparse_steps, True) == pool.run(2, _detached_after_sparse_steps, False)


def _one_after_the_other(group, kind, methods):
    model, optimizer, _ = build(group, kind, None)
    seen, steps = [], []
    for i, method in enumerate(methods):
        with attach(model, optimizer, method, group) as link:
            seen += train(model, optimizer, group, range(3 * i, 3 * i + 3))
        steps.append((link.stats.steps, link.attached))
    return seen, steps


@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_methods_may_follow_one_another_on_one_module(pool, kind):
    results = pool.run(3, _one_after_the_other, kind, [*METHODS, laconic.topk(0.1)])
    assert len(set(results[0][0])) == 18
    for seen, steps in results:
        assert seen == results[0][0]
        assert steps == [(3, False)] * 6


def _plain_module_alone(group):
    model, optimizer, link = build(group, "plain", laconic.topk(0.05))
    link.detach()
    link.detach()
    train(model, optimizer, group, range(2))
    return digest(weights(model)), link.stats.steps, len(optimizer._optimizer_step_pre_hooks)


def test_a_detached_plain_module_trains_alone_again(pool):
    results = pool.run(2, _plain_module_alone)
    assert results[0][0] != results[1][0]
    assert [rest for _, *rest in results] == [[0, 0]] * 2


def _what_is_owed_outlives(group):
    model, optimizer, link = build(group, "ddp", laconic.topk(0.05))
    train(model, optimizer, group, range(3))
    before = link.state_dict()
    link.detach()
    train(model, optimizer, group, range(3, 5))
    again = attach(model, optimizer, laconic.topk(0.05), group)
    again.load_state_dict(link.state_dict())
    train(model, optimizer, group, range(5, 7))
    return link.state_dict()["step"], before["step"], again.stats.steps, digest(weights(model))


def test_what_is_owed_outlives_detach_and_can_be_taken_up_again(pool):
    results = pool.run(2, _what_is_owed_outlives)
    assert results[0] == results[1]
    assert results[0][:3] == (3, 3, 5)


def _scaler_is_itself_again(group):
    model, optimizer, _ = build(group, "plain", None)
    scaler = torch.amp.GradScaler("cpu")
    link = attach(model, optimizer, laconic.topk(0.05), group, scaler=scaler)
    replaced = {"step", "unscale_", "update"}
    guarded = replaced & set(vars(scaler))
    link.detach()
    return guarded, replaced & set(vars(scaler))


def test_the_scaler_is_itself_again(pool):
    assert pool.run(1, _scaler_is_itself_again) == [({"step", "unscale_", "update"}, set())]


def _foreign_hook(group):
    model = wrap(Mlp(), group)
    model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(laconic.LaconicError, match=r"communication hook already.*new DistributedDataParallel"):
        laconic.attach(model, optimizer, laconic.topk())
    return train(model, optimizer, group, range(2))


def test_a_foreign_hook_is_refused_and_left_at_work(pool):
    results = pool.run(2, _foreign_hook)
    assert results[0] == results[1]


def _alive_after_detach(group, kind):
    model, optimizer, link = build(group, kind, laconic.topk(0.05))
    train(model, optimizer, group, range(2))
    watched = {
        "weights": weakref.ref(next(iter(link.parameters.values()))),
        "optimizer": weakref.ref(optimizer),
        "memory": weakref.ref(link.reducer),
    }
    link.detach()
    del model, optimizer, link
    gc.collect()
    return [name for name, ref in watched.items() if ref() is not None]


@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_a_module_detached_and_forgotten_is_freed(pool, kind):
    # attach() kept every link in a WeakKeyDictionary by its optimizer; the link holds that optimizer, so no
    # entry ever went away: weights, optimizer state and memory of every run of a process stayed.
    assert pool.run(2, _alive_after_detach, kind) == [[]] * 2


def _second_optimizer(group):
    model = wrap(Mlp(), group)
    first = torch.optim.SGD(model.parameters(), lr=0.05)
    second = torch.optim.Adam(model.parameters(), lr=0.05)
    link = laconic.attach(model, first, laconic.topk(0.05))
    with pytest.raises(laconic.LaconicError, match=r"attached already.*detach"):
        laconic.attach(model, second, laconic.topk(0.05))
    loss(model, dist.get_rank(group), 0).backward()
    return link.stats.steps


def test_a_ddp_module_attached_already_is_refused_with_another_optimizer_too(pool):
    # The second attach took DDP's hook over without a word: the first link believed itself at work, exchanged
    # nothing, and its detach() ended the second one's exchanges.
    assert pool.run(2, _second_optimizer) == [1, 1]
