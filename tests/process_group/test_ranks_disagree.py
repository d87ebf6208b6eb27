"""Ranks that disagree: every rank is told, with both sides by name, no rank waits, and the group still works."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from models import Mlp, attach, build, digest, train, weights, wrap
from pool import run_alone


def _several(widths):
    return nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(widths)])


def _many(last):
    """A model whose names alone fill more than a message of the handshake."""
    return nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(3000)] + [nn.Parameter(torch.zeros(last))])


def _frozen_bias():
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    return model


# Model and method of the ranks that agree, of the one that does not, and what every rank must be told.
METHODS = {
    "methods": (laconic.topk(), laconic.dense(), ["Method(name='topk'", "Method(name='dense'"]),
    "densities": (laconic.topk(0.01), laconic.topk(0.02), ["TopK(density=0.01", "TopK(density=0.02"]),
    "warm-ups": (laconic.topk(), laconic.topk(warmup_steps=9), ["Constant()", "Warmup(steps=9"]),
    "units": (laconic.topk(), laconic.topk(memory="update"), ["memory='gradient'", "memory='update'"]),
    "coefficients": (
        laconic.sdagc(3.0, scope="layer", values="exact"),
        laconic.sdagc(4.0, scope="layer", values="exact"),
        ["StdThreshold(c=3.0", "StdThreshold(c=4.0"],
    ),
    "clips": (laconic.dgc(), laconic.dgc(clip=1.0), ["clip=None", "clip=LocalClip(norm=1.0"]),
    "seeds": (laconic.randomk(seed=1), laconic.randomk(seed=2), ["seed=1", "seed=2"]),
}
MODELS = {
    "shapes": (lambda: _several([4, 5, 4]), lambda: _several([4, 6, 4]), ["0.weight (5, 4)", "0.weight (6, 4)"]),
    "dtypes": (lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4).double(), ["torch.float32", "torch.float64"]),
    "lengths": (
        lambda: _several([4, 4]),
        lambda: _several([4, 4, 4]),
        ["has 2 tensors", "'s 4;", "has nothing where", "1.weight (4, 4)"],
    ),
    "frozen parameters": (
        lambda: nn.Linear(4, 4),
        _frozen_bias,
        ["bias (4,) torch.float32 where", "not exchanged"],
    ),
    "buffers": (lambda: nn.Linear(4, 4), lambda: nn.BatchNorm1d(4), ["weight (4, 4)", "weight (4,)"]),
}


def _disagree(group, theirs, kind):
    """The last rank is the odd one. Return what attach said, then attach all alike and train."""
    odd = dist.get_rank(group) == dist.get_world_size(group) - 1
    name, table = theirs
    first, second, _ = table[name]
    told = None
    model = Mlp() if table is METHODS else (second() if odd else first())
    method = (second if odd else first) if table is METHODS else laconic.topk()
    model = wrap(model, group) if kind == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    try:
        attach(model, optimizer, method, group)
    except laconic.GroupError as error:
        told = str(error)
    if table is METHODS:
        attach(model, optimizer, first, group)
    else:
        model, optimizer, _ = build(group, kind, laconic.topk())
    return told, train(model, optimizer, group, range(2))


def _check(results, wanted, ranks):
    for told, seen in results:
        assert told is not None
        for text in ("ranks disagree", "rank 0", f"rank {ranks - 1}", *wanted):
            assert text in told
        assert seen == results[0][1]


def _methods_job(group, name, kind):
    return _disagree(group, (name, METHODS), kind)


def _models_job(group, name):
    return _disagree(group, (name, MODELS), "plain")


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 2), ("plain", 4)])
@pytest.mark.parametrize("name", METHODS)
def test_unlike_methods_are_named_on_every_rank_and_equal_ones_then_attach(pool, name, ranks, kind):
    _check(pool.run(ranks, _methods_job, name, kind), METHODS[name][2], ranks)


@pytest.mark.parametrize("ranks", [3])
@pytest.mark.parametrize("name", MODELS)
def test_unlike_models_are_named_on_every_rank_and_equal_ones_then_attach(pool, name, ranks):
    _check(pool.run(ranks, _models_job, name), MODELS[name][2], ranks)


def _measured_on_one(group):
    model, optimizer, _ = build(group, "plain", None)
    with pytest.raises(laconic.GroupError) as caught:
        attach(model, optimizer, laconic.topk(), group, measure_every=5 * dist.get_rank(group))
    return str(caught.value)


def test_measuring_on_one_rank_only_is_named(pool):
    for told in pool.run(2, _measured_on_one):
        assert "rank 1 runs" in told
        assert "measured every 0" in told
        assert "measured every 5" in told


def _long_and_unlike(group):
    model = _many(1 + dist.get_rank(group))
    with pytest.raises(laconic.GroupError) as caught:
        attach(model, torch.optim.SGD(model.parameters(), lr=0.05), laconic.topk(), group)
    return str(caught.value)


def test_a_difference_behind_thousands_of_equal_parameters_is_still_one_of_models(pool):
    # The text of a large model was cut to one message; where it differed behind the cut, ranks were told that
    # "rank 0 is at step 0, rank 1 at step 0" and to load checkpoints.
    for told in pool.run(2, _long_and_unlike):
        assert "checkpoints" not in told
        assert "same model" in told


def _unlike_rates(group, kind, method):
    model, optimizer, link = build(group, kind, method)
    before = digest(weights(model))
    optimizer.param_groups[0]["lr"] = 0.05 * (1 + dist.get_rank(group))
    with pytest.raises(laconic.GroupError) as caught:
        train(model, optimizer, group, [0])
    link.detach()
    again, other, _ = build(group, kind, method)
    return str(caught.value), digest(weights(model)) == before, train(again, other, group, range(2))


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize(
    "method",
    [
        laconic.topk(0.05),
        laconic.topk_sgd(0.05),
        laconic.randomk(0.05),
        laconic.sdagc(3.0, scope="layer", values="exact"),
    ],
    ids=lambda m: m.name,
)
def test_unlike_learning_rates_are_told_on_every_rank(pool, kind, method):
    results = pool.run(2, _unlike_rates, kind, method)
    for told, unmoved, seen in results:
        assert "rates" in told
        assert "schedule" in told
        assert unmoved
        assert seen == results[0][2]


def _one_leaves_early(group, kind):
    """Rank 1 has a shorter epoch and goes on to what comes next: another attach."""
    model, optimizer, _ = build(group, kind, laconic.topk(0.05))
    train(model, optimizer, group, range(2 + (dist.get_rank(group) == 0)))
    build(group, kind, laconic.topk(0.05))


def test_ranks_of_unlike_epochs_are_told_or_time_out(pool):
    # Nobody can match collectives that were never meant for each other; no rank may go on as if nothing were wrong.
    outcomes = run_alone(2, _one_leaves_early, "plain", timeout_seconds=3)
    assert all(outcome.value is None and (outcome.error or outcome.exitcode) for outcome in outcomes)
