"""Nothing poisoned: a gradient that is not finite on one rank is dropped by all, and training goes on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import laconic
from covering import crossed
from models import Mlp, attach, digest, loss, memory_bits, owed, weights, wrap

METHODS = [
    laconic.dense(),
    laconic.topk(0.05, whole_below=0),
    laconic.topk_sgd(0.05),
    laconic.randomk(0.05),
    laconic.topk(0.05, memory="none"),
    laconic.randomk(0.05, memory="none"),
    laconic.sdagc(3.0, clip=0.5, revision="damp", scope="layer", values="exact"),
]
ALL = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name}-{m.memory}")
KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}
STEPS, BAD = 5, 2


def _build(group, kind, method, optimizer="sgd", dtype=torch.float32, **options):
    torch.manual_seed(1)
    model = Mlp().to(dtype)
    if kind == "ddp":
        model = wrap(model, group, **options)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    return model, optimizer, attach(model, optimizer, method, group)


def _everything(model, optimizer, link):
    """Bits of the weights, of the optimizer's state (step counts too) and of what is owed."""
    moments = [
        t for entry in optimizer.state_dict()["state"].values() for t in entry.values() if torch.is_tensor(t)
    ]
    return digest(weights(model)), digest(moments), memory_bits(link)


def _poisoned(group, kind, method, optimizer, value, where, dtype):
    model, optimizer, link = _build(group, kind, method, optimizer, dtype)
    rank, seen = dist.get_rank(group), []
    for step in range(STEPS):
        before = _everything(model, optimizer, link)
        made = loss(model, rank, step, dtype=dtype)
        if step == BAD and rank == 1:
            p = dict(model.named_parameters())[("module." if kind == "ddp" else "") + where]
            handle = p.register_hook(lambda grad: torch.full_like(grad, value))
        made.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == BAD and rank == 1:
            handle.remove()
        after = _everything(model, optimizer, link)
        seen.append((after[0], after == before))
    return seen, link.stats.skipped_steps, all(bool(torch.isfinite(w).all()) for w in weights(model))


def _check(results):
    first = [bits for bits, _ in results[0][0]]
    for seen, skipped, finite in results:
        assert [bits for bits, _ in seen] == first
        assert [unchanged for _, unchanged in seen] == [step == BAD for step in range(STEPS)]
        assert skipped == 1
        assert finite


@pytest.mark.parametrize(
    ("method", "optimizer", "kind"),
    crossed(METHODS, list(OPTIMIZERS), ["ddp", "plain"], ids=lambda value: getattr(value, "name", value)),
)
def test_a_nan_on_one_rank_changes_nothing_on_any(pool, method, optimizer, kind):
    _check(pool.run(2, _poisoned, kind, method, optimizer, float("nan"), "net.0.bias", torch.float32))


@ALL
@KINDS
def test_an_infinity_in_the_last_layer_changes_nothing_on_any(pool, kind, method):
    _check(pool.run(2, _poisoned, kind, method, "sgd", float("-inf"), "net.6.weight", torch.float32))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("plain", torch.float64), ("plain", torch.bfloat16), ("ddp", torch.bfloat16), ("ddp", torch.float16)],
    ids=str,
)
@pytest.mark.parametrize("method", METHODS[:4], ids=lambda m: m.name)
def test_so_it_is_in_every_dtype(pool, kind, method, dtype):
    _check(pool.run(2, _poisoned, kind, method, "sgd", float("nan"), "net.2.weight", dtype))


def _without_the_bad_step(group, kind, method):
    """Train on the same batches, but never meet the poisoned one."""
    model, optimizer, link = _build(group, kind, method)
    for step in range(STEPS):
        if step != BAD:
            loss(model, dist.get_rank(group), step).backward()
            optimizer.step()
            optimizer.zero_grad()
    return _everything(model, optimizer, link)


def _with_the_bad_step(group, kind, method):
    model, optimizer, link = _build(group, kind, method)
    for step in range(STEPS):
        bad = step == BAD and dist.get_rank(group) == 0
        (loss(model, dist.get_rank(group), step) * (float("nan") if bad else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return _everything(model, optimizer, link)


@KINDS
@pytest.mark.parametrize("method", METHODS[:3], ids=lambda m: m.name)
def test_the_run_is_the_one_that_never_met_the_poisoned_batch(pool, kind, method):
    # randomk draws by step, so it alone goes on with other entries.
    assert pool.run(2, _with_the_bad_step, kind, method) == pool.run(2, _without_the_bad_step, kind, method)


def _two_in_a_row(group, kind):
    model, optimizer, link = _build(group, kind, METHODS[1])
    rank, seen = dist.get_rank(group), []
    for step in range(STEPS):
        bad = rank == step % 2 and step in (0, 1, 3)
        (loss(model, rank, step) * (float("nan") if bad else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    return seen, link.stats.skipped_steps


@KINDS
def test_the_first_step_and_several_in_a_row_may_be_poisoned(pool, kind):
    results = pool.run(2, _two_in_a_row, kind)
    assert results[0] == results[1]
    seen, skipped = results[0]
    assert skipped == 3
    assert seen[0] == seen[1] != seen[2] == seen[3] != seen[4]


def _overflow(group, method):
    """Each rank's gradient is finite in float16, and so is the mean; only a careless sum is not."""
    torch.manual_seed(1)
    model = torch.nn.Linear(40, 40, bias=False).half()
    model = wrap(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-14)
    link = attach(model, optimizer, method, group)
    (model(torch.ones(1, 40, dtype=torch.float16)) * 40000.0).sum().backward()
    optimizer.step()
    return link.stats.skipped_steps, bool(torch.isfinite(weights(model)[0]).all())


@pytest.mark.parametrize("method", METHODS[:4], ids=lambda m: m.name)
def test_large_finite_half_gradients_are_not_poison(pool, method):
    assert pool.run(2, _overflow, method) == [(0, True)] * 2


def _owed_beyond_half(group, kind):
    """Gradients of 40000 fit in float16; what an entry owes after two steps does not."""
    torch.manual_seed(1)
    model = torch.nn.Linear(40, 40, bias=False).half()
    model = model if kind == "plain" else wrap(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-14)
    link = attach(model, optimizer, laconic.topk(1 / 1600, whole_below=0), group)
    for _ in range(4):
        (model(torch.ones(1, 40, dtype=torch.float16)) * 40000.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    delivered = 4 * 1600 * 40000.0 - float(sum(v.double().sum() for v in owed(link).values()))
    return bool(torch.isfinite(weights(model)[0]).all()), link.stats.skipped_steps, delivered


@KINDS
def test_what_is_owed_beyond_half_precision_is_delivered_in_parts(pool, kind):
    for finite, skipped, delivered in pool.run(2, _owed_beyond_half, kind):
        assert finite
        assert skipped == 0
        assert 40000.0 < delivered <= 4 * 65504.0


def _measured(group, kind):
    torch.manual_seed(1)
    model = Mlp() if kind == "plain" else wrap(Mlp(), group)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    link = attach(model, optimizer, laconic.topk(0.05), group, measure_every=1)
    for step in range(STEPS):
        bad = step == BAD and dist.get_rank(group) == 0
        (loss(model, dist.get_rank(group), step) * (float("nan") if bad else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [m.step for m in link.stats.history], max(m.identity_error for m in link.stats.history)


@KINDS
def test_a_poisoned_step_is_not_measured_and_the_drift_stays_the_mean_of_the_memories(pool, kind):
    for steps, error in pool.run(2, _measured, kind):
        assert steps == [step for step in range(STEPS) if step != BAD]
        assert error < 1e-5
