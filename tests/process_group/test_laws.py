"""The laws over real processes."""

from __future__ import annotations

import pytest
import torch

import laconic
from models import build, same, train, weights


def _final(group, kind, method, steps):
    model, optimizer, link = build(group, kind, method)
    train(model, optimizer, group, range(steps))
    return weights(model), (link.stats if link else None)


METHODS = [laconic.dense(), laconic.topk(0.05), laconic.topk_sgd(0.05), laconic.randomk(0.05)]


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_models_are_bitwise_equal_on_all_ranks(pool, kind, ranks, method):
    results = pool.run(ranks, _final, kind, method, 6)
    first = results[0][0]
    assert all(torch.isfinite(w).all() for w in first)
    for other, _ in results:
        assert same(first, other)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_dense_through_the_hook_is_plain_ddp_to_the_bit(pool, ranks):
    ours = pool.run(ranks, _final, "ddp", laconic.dense(), 8)
    plain = pool.run(ranks, _final, "ddp", None, 8)
    for (a, _), (b, _) in zip(ours, plain, strict=True):
        assert same(a, b)
