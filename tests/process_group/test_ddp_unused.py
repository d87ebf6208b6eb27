"""Parameters unused in some steps: DDP leaves their gradients untouched, and what is owed to them must arrive."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import laconic
from covering import crossed
from models import Branches, Watch, attach, digest, imbalance, inner, loss, weights, wrap

METHODS = [
    laconic.topk(0.05, whole_below=0),
    laconic.topk_sgd(0.05),
    laconic.randomk(0.05),
    laconic.sdagc(3.0, momentum=False, whole_below=0, scope="layer", values="exact"),
]
# Where gradients live between steps: whether DDP keeps them in its buckets, and what zero_grad leaves.
PLACES = {"copied, to none": (False, True), "bucket view, to zero": (True, False)}
VIEWS = pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket_view"])

# Which branches each rank uses: a rule for every condition under which DDP may find parameters unused.
RULES = {
    "one rank alone uses each": lambda rank, step: ["left", "right"][rank % 2],
    "only the first rank uses one": lambda rank, step: "left right" if rank == 0 else "left",
    "nobody in odd steps": lambda rank, step: "left right" if step % 2 == 0 else "left",
    "nobody but once": lambda rank, step: "left right" if step == 0 else "left",
    "turns": lambda rank, step: ["left", "right", "left right"][(rank + step) % 3],
}


def _name(value):
    return getattr(value, "name", value)


def _build(group, method, dtype, **options):
    torch.manual_seed(1)
    model = wrap(Branches().to(dtype), group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, None if method is None else attach(model, optimizer, method, group)


def _train(model, optimizer, group, rule, *, dtype, to_none):
    rank, seen = dist.get_rank(group), []
    for step in range(6):
        loss(model, rank, step, dtype=dtype, branches=RULES[rule](rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        seen.append(digest(weights(model)))
    return seen


def _unused(group, method, rule, as_view, to_none):
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
    model, optimizer, link = _build(group, method, torch.float64, **options)
    watch = Watch(model, optimizer, unit=method.memory)
    seen = _train(model, optimizer, group, rule, dtype=torch.float64, to_none=to_none)
    return seen, watch.account(link)


@pytest.mark.parametrize(("method", "rule", "place"), crossed(METHODS, list(RULES), list(PLACES), ids=_name))
def test_models_agree_and_nothing_is_lost_with_unused_parameters(pool, method, rule, place):
    results = pool.run(3, _unused, method, rule, *PLACES[place])
    first = results[0][0]
    assert len(set(first)) == 6
    assert all(seen == first for seen, _ in results)
    assert imbalance([account for _, account in results]) < 1e-12


@pytest.mark.parametrize(("as_view", "to_none"), [(False, False), (True, True)])
def test_so_it_is_wherever_gradients_live_between_steps(pool, as_view, to_none):
    results = pool.run(2, _unused, METHODS[0], "nobody in odd steps", as_view, to_none)
    assert results[0][0] == results[1][0]
    assert imbalance([account for _, account in results]) < 1e-12


def _dense(group, method, rule, as_view, to_none):
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
    model, optimizer, _ = _build(group, method, torch.float32, **options)
    return _train(model, optimizer, group, rule, dtype=torch.float32, to_none=to_none)


@pytest.mark.parametrize(("as_view", "to_none"), PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize("rule", RULES)
def test_dense_is_plain_ddp_to_the_bit_with_unused_parameters(pool, rule, as_view, to_none):
    # DDP itself multiplies by 1/3 where a gradient is copied into its bucket, and divides by 3 where it lies there
    # already; a hook cannot tell the two apart. Four ranks have no such difference.
    ranks = 4 if as_view and not to_none else 3
    ours = pool.run(ranks, _dense, laconic.dense(), rule, as_view, to_none)
    assert ours == pool.run(ranks, _dense, None, rule, as_view, to_none)


def _owed_to_the_idle(group, method, as_view):
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
    model, optimizer, _ = _build(group, method, torch.float64, **options)
    rank, norms = dist.get_rank(group), []
    for step in range(3):
        used = "left right" if step == 0 else "left"
        loss(model, rank, step, dtype=torch.float64, branches=used).backward()
        grads = [p.grad for p in inner(model).right.parameters()]
        norms.append(sum(float(g.abs().sum()) for g in grads if g is not None))
        optimizer.step()
        optimizer.zero_grad()
    return norms


@VIEWS
@pytest.mark.parametrize("method", METHODS[:2], ids=lambda m: m.name)
def test_what_is_owed_to_a_parameter_arrives_in_steps_that_nobody_uses_it(pool, method, as_view):
    results = pool.run(2, _owed_to_the_idle, method, as_view)
    assert all(norm > 0 for norm in results[0])
    assert results[0] == results[1]


def _never_used(group, method, options):
    torch.manual_seed(1)
    model = wrap(Branches(), group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.5)
    attach(model, optimizer, method, group)
    before = digest(inner(model).right.parameters())
    seen, grads = [], []
    for step in range(4):
        loss(model, dist.get_rank(group), step, branches="left").backward()
        grads += [p.grad for p in inner(model).right.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    return seen, all(g is None for g in grads), digest(inner(model).right.parameters()) == before


@pytest.mark.parametrize(
    "options", [{"find_unused_parameters": True}, {"static_graph": True}], ids=lambda o: "".join(o)
)
@pytest.mark.parametrize("method", [laconic.dense(), *METHODS], ids=lambda m: m.name)
def test_a_parameter_nobody_ever_uses_gets_no_gradient_and_no_weight_decay(pool, method, options):
    results = pool.run(3, _never_used, method, options)
    assert all(seen == results[0][0] for seen, _, _ in results)
    assert all(no_gradient and untouched for _, no_gradient, untouched in results)


def _static(group, method, as_view):
    options = {"static_graph": True, "gradient_as_bucket_view": as_view}
    model, optimizer, link = _build(group, method, torch.float64, **options)
    watch = Watch(model, optimizer, unit=method.memory)
    rank, seen = dist.get_rank(group), []
    for step in range(6):
        loss(model, rank, step, dtype=torch.float64, branches="left").backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    return seen, watch.account(link)


@VIEWS
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_static_graph_agrees_and_loses_nothing(pool, method, as_view):
    results = pool.run(3, _static, method, as_view)
    assert len(set(results[0][0])) == 6
    assert all(seen == results[0][0] for seen, _ in results)
    assert imbalance([account for _, account in results]) < 1e-12
