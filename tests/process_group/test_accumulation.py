"""Several backward passes a step, under no_sync, without it, and on a plain module; ranks with fewer batches."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from covering import crossed
from models import Branches, Mlp, Watch, attach, batch, digest, imbalance, loss, weights, wrap

METHODS = [
    laconic.topk(0.05, whole_below=0),
    laconic.topk_sgd(0.05),
    laconic.randomk(0.05),
    laconic.sdagc(3.0, momentum=False, whole_below=0, scope="layer", values="exact"),
]
ALL = pytest.mark.parametrize("method", [laconic.dense(), *METHODS], ids=lambda m: m.name)
VIEWS = pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket_view"])
PASSES, STEPS = 3, 4


def _build(group, kind, method, *, dtype, **options):
    torch.manual_seed(1)
    model = Mlp().to(dtype)
    if kind == "ddp":
        model = wrap(model, group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, None if method is None else attach(model, optimizer, method, group)


def _accumulate(model, optimizer, group, *, dtype, sync):
    """Each step has PASSES backward passes; all but the last run inside what ``sync`` makes of the model."""
    seen, rank = [], dist.get_rank(group)
    for step in range(STEPS):
        for part in range(PASSES):
            with nullcontext() if part == PASSES - 1 else sync(model):
                (loss(model, rank, PASSES * step + part, dtype=dtype) / PASSES).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    return seen


def _no_sync(model):
    return model.no_sync()


def _always(model):
    return nullcontext()


def _label(value):
    return getattr(value, "name", None) or getattr(value, "__name__", str(value))


def _bits(group, kind, method, sync, options):
    model, optimizer, link = _build(group, kind, method, dtype=torch.float32, **options)
    seen = _accumulate(model, optimizer, group, dtype=torch.float32, sync=sync)
    return seen, link.stats.steps if link else None


@VIEWS
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sync", [_no_sync, _always])
def test_dense_accumulates_as_plain_ddp_does_to_the_bit(pool, ranks, sync, as_view):
    options = {"gradient_as_bucket_view": as_view}
    ours = pool.run(ranks, _bits, "ddp", laconic.dense(), sync, options)
    plain = pool.control(ranks, _bits, "ddp", None, sync, options)
    assert [seen for seen, _ in ours] == [seen for seen, _ in plain]


@pytest.mark.parametrize(
    ("method", "sync", "as_view"),
    crossed([laconic.dense(), *METHODS], [_no_sync, _always], [False, True], ids=_label),
)
def test_models_agree_after_every_accumulated_step(pool, method, sync, as_view):
    results = pool.run(3, _bits, "ddp", method, sync, {"gradient_as_bucket_view": as_view})
    first = results[0][0]
    assert len(set(first)) == STEPS
    assert all(seen == first for seen, _ in results)
    # Under no_sync a step is exchanged once; without, once a backward pass.
    assert {count for _, count in results} == {STEPS if sync is _no_sync else STEPS * PASSES}


@pytest.mark.parametrize("method", METHODS[:2], ids=lambda m: m.name)
def test_a_plain_module_accumulates_as_ddp_under_no_sync_to_the_bit(pool, method):
    plain = pool.run(3, _bits, "plain", method, _always, {})
    assert plain == pool.run(3, _bits, "ddp", method, _no_sync, {})


def _account(group, kind, method, sync):
    model, optimizer, link = _build(group, kind, method, dtype=torch.float64)
    watch = Watch(model, optimizer, unit=method.memory)
    _accumulate(model, optimizer, group, dtype=torch.float64, sync=sync)
    return watch.account(link)


@pytest.mark.parametrize(("kind", "sync"), [("ddp", _no_sync), ("ddp", _always), ("plain", _always)])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_each_backward_pass_enters_memory_once(pool, method, kind, sync):
    assert imbalance(pool.run(3, _account, kind, method, sync)) < 1e-12


def _weights_after(group, kind, method, parts):
    """Train on the same data in one backward pass a step, or in PASSES of them."""
    model, optimizer, _ = _build(group, kind, method, dtype=torch.float64)
    rank = dist.get_rank(group)
    for step in range(STEPS):
        batches = [batch(rank, PASSES * step + part, dtype=torch.float64) for part in range(PASSES)]
        if parts == 1:
            batches = [(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))]
        for i, (x, y) in enumerate(batches):
            last = i == len(batches) - 1
            with nullcontext() if last or kind == "plain" else model.no_sync():
                (nn.functional.mse_loss(model(x), y) / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@ALL
@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_accumulating_is_one_large_batch(pool, method, kind):
    split = pool.run(2, _weights_after, kind, method, PASSES)[0]
    whole = pool.run(2, _weights_after, kind, method, 1)[0]
    for a, b in zip(split, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def _used_only_before_the_last_pass(group, method, as_view):
    """The right branch takes part under no_sync only; the pass that is synchronised does not see it."""
    torch.manual_seed(1)
    model = wrap(Branches().double(), group, find_unused_parameters=True, gradient_as_bucket_view=as_view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    link = attach(model, optimizer, method, group)
    watch = Watch(model, optimizer, unit=method.memory)
    rank, seen = dist.get_rank(group), []
    for step in range(STEPS):
        with model.no_sync():
            loss(model, rank, 2 * step, dtype=torch.float64, branches="left right").backward()
        loss(model, rank, 2 * step + 1, dtype=torch.float64, branches="left").backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    return seen, watch.account(link)


@VIEWS
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_parameter_used_only_before_the_last_pass_is_exchanged(pool, method, as_view):
    results = pool.run(3, _used_only_before_the_last_pass, method, as_view)
    assert all(seen == results[0][0] for seen, _ in results)
    assert imbalance([account for _, account in results]) < 1e-12


def _poisoned_in_the_first_pass(group, kind, method, sync):
    model, optimizer, link = _build(group, kind, method, dtype=torch.float32)
    rank = dist.get_rank(group)
    before = digest(weights(model))
    for part in range(PASSES):
        with nullcontext() if part == PASSES - 1 else sync(model):
            bad = rank == 1 and part == 0
            (loss(model, rank, part) * (float("nan") if bad else 1.0)).backward()
    optimizer.step()
    optimizer.zero_grad()
    untouched = digest(weights(model)) == before and not optimizer.state_dict()["state"]
    owing = link.stats.owed_norm if sync is _no_sync or kind == "plain" else 0.0
    return untouched, owing, _accumulate(model, optimizer, group, dtype=torch.float32, sync=sync)


@ALL
@pytest.mark.parametrize(("kind", "sync"), [("ddp", _no_sync), ("ddp", _always), ("plain", _always)])
def test_a_poisoned_pass_drops_the_whole_step_on_all_ranks(pool, method, kind, sync):
    results = pool.run(2, _poisoned_in_the_first_pass, kind, method, sync)
    for untouched, owing, seen in results:
        assert untouched
        assert owing == 0.0
        assert seen == results[0][2]
        assert len(set(seen)) == STEPS


def _uneven(group, method):
    """Each rank has one batch more than the one before it; DDP's join answers for those that have finished."""
    model, optimizer, link = _build(group, "ddp", method, dtype=torch.float32)
    rank = dist.get_rank(group)
    with model.join():
        for step in range(STEPS + rank):
            loss(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    return digest(weights(model)), link.stats.steps if link else None


@ALL
def test_ranks_with_fewer_batches_may_join(pool, method):
    results = pool.run(3, _uneven, method)
    assert results == [(results[0][0], STEPS + 2)] * 3
    if method.name == "dense":
        assert results[0][0] == pool.run(3, _uneven, None)[0][0]
