"""A plain module whose parameters get no gradient on some ranks, or on none: ranks must still step alike."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import laconic
from covering import crossed
from models import Branches, attach, digest, loss, weights

METHODS = [
    laconic.dense(),
    laconic.topk(0.05, whole_below=0),
    laconic.topk_sgd(0.05),
    laconic.randomk(0.05),
    laconic.sdagc(3.0, momentum=False, whole_below=0, scope="layer", values="exact"),
]
ALL = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
STEPS = 5


def _branches(group, method, rule, to_none):
    torch.manual_seed(1)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    attach(model, optimizer, method, group)
    rank, seen = dist.get_rank(group), []
    for step in range(STEPS):
        loss(model, rank, step, branches=rule[(rank + step) % len(rule)]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        seen.append(digest(weights(model)))
    return seen


RULES = [("left", "right"), ("left right", "left"), ("left", "left right", "right")]


@pytest.mark.parametrize(
    ("method", "rule", "to_none"),
    crossed(METHODS, RULES, [True, False], ids=lambda value: getattr(value, "name", str(value))),
)
def test_a_plain_modules_parameters_may_lack_a_gradient_on_some_ranks(pool, method, rule, to_none):
    # Weight decay moves every parameter that has a gradient: a rank that saw none must step all the same.
    first, *others = pool.run(3, _branches, method, rule, to_none)
    assert all(other == first for other in others)
    assert len(set(first)) == STEPS


def _nothing_but_zeros(group, method):
    """The last rank alone uses the right branch, and its gradient is zero throughout."""
    torch.manual_seed(1)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
    attach(model, optimizer, method, group)
    rank, seen = dist.get_rank(group), []
    for step in range(3):
        made = loss(model, rank, step, branches="left")
        if rank == dist.get_world_size(group) - 1:
            made = made + 0.0 * model.right(torch.ones(1, 40)).sum()
        made.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(model.right.parameters()))
    return seen


@ALL
def test_a_gradient_of_zeros_on_one_rank_only_is_a_gradient_on_all(pool, method):
    first, *others = pool.run(3, _nothing_but_zeros, method)
    assert all(other == first for other in others)
    assert len(set(first)) == 3


def _idle(group, method):
    torch.manual_seed(1)
    model = Branches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
    attach(model, optimizer, method, group)
    before, grads = digest(model.right.parameters()), []
    for step in range(3):
        loss(model, dist.get_rank(group), step, branches="left").backward()
        optimizer.step()
        grads += [p.grad for p in model.right.parameters()]
        optimizer.zero_grad()
    return digest(model.right.parameters()) == before and all(g is None for g in grads), digest(weights(model))


@ALL
def test_a_parameter_no_rank_uses_keeps_no_gradient_and_feels_no_weight_decay(pool, method):
    results = pool.run(2, _idle, method)
    assert results[0] == results[1]
    assert results[0][0]
