"""Bad input: what attach refuses, with what it got, what it wants and what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from models import Mlp, attach, build, loss, train, wrap


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(3, dtype=torch.complex64))


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _frozen():
    model = nn.Linear(3, 3)
    optimizer = _sgd(model)
    model.requires_grad_(False)
    return model, optimizer


def _of(model):
    return model, _sgd(model)


def _good():
    return _of(nn.Linear(3, 3))


def _with_momentum(**options):
    model = nn.Linear(3, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def _half_foreign():
    model = nn.Linear(3, 3)
    return model, torch.optim.SGD([*model.parameters(), *nn.Linear(2, 2).parameters()], lr=0.1)


# What is given, as a function of the group: model, optimizer, method, options. Then what the error says.
REFUSED = {
    "a list for a model": (lambda g: ([1], None, laconic.topk(), {}), TypeError, "torch.nn.Module first, got list"),
    "parameters for a model": (
        lambda g: (nn.Linear(3, 3).parameters(), None, laconic.topk(), {}),
        TypeError,
        "torch.nn.Module first, got generator",
    ),
    "a method for an optimizer": (
        lambda g: (nn.Linear(3, 3), laconic.topk(), laconic.topk(), {}),
        TypeError,
        "torch.optim.Optimizer second, got Method",
    ),
    "a schedule for an optimizer": (
        lambda g: (nn.Linear(3, 3), torch.optim.lr_scheduler.StepLR(_good()[1], 1), laconic.topk(), {}),
        TypeError,
        "torch.optim.Optimizer second, got StepLR",
    ),
    "a recipe for a method": (
        lambda g: (*_good(), laconic.topk, {}),
        TypeError,
        r"a method third, got the function topk.*laconic\.topk\(0\.01\)",
    ),
    "a name for a method": (
        lambda g: (*_good(), "topk", {}),
        TypeError,
        r"a method third, got 'topk'.*by_name\('topk'\)",
    ),
    "a compressor for a method": (
        lambda g: (*_good(), laconic.TopK(density=0.1), {}),
        TypeError,
        r"a method third, got TopK\(density=0\.1",
    ),
    "no method but False": (lambda g: (*_good(), False, {}), TypeError, "a method third, got False"),
    "a number for a scaler": (
        lambda g: (*_good(), laconic.topk(), {"scaler": 1024.0}),
        TypeError,
        r"torch\.amp\.GradScaler, got float",
    ),
    "foreign parameters": (
        lambda g: (*_half_foreign(), laconic.topk(), {}),
        ValueError,
        "2 parameters that are not in the model.*Attach the module that holds all",
    ),
    "another model's optimizer": (
        lambda g: (nn.Linear(3, 3), _good()[1], laconic.topk(), {}),
        ValueError,
        "2 parameters that are not in the model",
    ),
    "nothing to train": (
        lambda g: (*_frozen(), laconic.topk(), {}),
        ValueError,
        "no trainable parameter of this model: nothing to exchange",
    ),
    "complex parameters": (
        lambda g: (*_of(Complex()), laconic.topk(), {}),
        TypeError,
        r"phase is complex \(torch\.complex64\).*two real parameters",
    ),
    "sparse gradients": (
        lambda g: (*_of(nn.Sequential(nn.Embedding(5, 3, sparse=True))), laconic.topk(), {}),
        TypeError,
        "0 makes sparse gradients.*Use sparse=False",
    ),
    "a sparse bag as the model": (
        lambda g: (*_of(nn.EmbeddingBag(5, 3, sparse=True)), laconic.topk(), {}),
        TypeError,
        "EmbeddingBag makes sparse gradients.*Use sparse=False",
    ),
    "the meta device": (
        lambda g: (*_of(nn.Linear(3, 3, device="meta")), laconic.topk(), {}),
        ValueError,
        "weight lies on the meta device.*Materialise",
    ),
    "a ddp module inside": (
        lambda g: (*_of(nn.Sequential(nn.Tanh(), wrap(nn.Linear(3, 3), g))), laconic.topk(), {}),
        ValueError,
        r"holds a DDP module \('1'\).*Attach that",
    ),
    "a group for a ddp module": (
        lambda g: (*_of(wrap(nn.Linear(3, 3), g)), laconic.topk(), {"group": dist.group.WORLD}),
        ValueError,
        "DDP module has a process group of its own; leave group out",
    ),
    "measuring less than never": (
        lambda g: (*_good(), laconic.topk(), {"measure_every": -1}),
        ValueError,
        "measure_every must be .*-1",
    ),
    "measuring dense": (
        lambda g: (*_good(), laconic.dense(), {"measure_every": 5}),
        ValueError,
        "dense keeps no memory.*Leave it at 0",
    ),
    "measuring a method of varying counts": (
        lambda g: (*_good(), laconic.sdagc(scope="layer", values="exact"), {"measure_every": 5}),
        ValueError,
        "sdagc.*no fixed share.*Leave it at 0",
    ),
    "momentum with dampening, for the method to take over": (
        lambda g: (*_with_momentum(dampening=0.1), laconic.sdagc(scope="layer", values="exact"), {}),
        ValueError,
        r"dampening cannot be moved.*dampening=0.*sdagc\(momentum=False\)",
    ),
    "a fused step and a scaler, for the method to take momentum over": (
        lambda g: (*_with_momentum(fused=True), laconic.dgc(), {"scaler": torch.amp.GradScaler("cpu")}),
        ValueError,
        "fused SGD undoes the loss scale.*fused=False",
    ),
}


def _refused(group, name):
    make, kind, text = REFUSED[name]
    model, optimizer, method, options = make(group)
    with pytest.raises(kind, match=text):
        laconic.attach(model, optimizer, method, **{"group": group, **options} if "ddp" not in name else options)


@pytest.mark.parametrize("name", REFUSED)
def test_attach_refuses_it_before_any_rank_talks(pool, name):
    # One rank of the pool alone calls attach: had it talked to the others first, it would hang.
    pool.run(1, _refused, name)


def _twice(group, kind):
    model, optimizer, link = build(group, kind, laconic.topk(0.05))
    with pytest.raises(laconic.LaconicError, match=r"attached already.*link\.detach\(\)"):
        attach(model, optimizer, laconic.topk(0.05), group)
    link.detach()
    attach(model, optimizer, laconic.topk(0.05), group)
    return train(model, optimizer, group, range(2))


@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_an_optimizer_attached_already_is_refused_until_detached(pool, kind):
    results = pool.run(2, _twice, kind)
    assert results[0] == results[1]


def _closure(group, kind, keyword):
    model, optimizer, link = build(group, kind, laconic.topk(0.05))

    def evaluate():
        optimizer.zero_grad()
        made = loss(model, 0, 0)
        made.backward()
        return made

    with pytest.raises(laconic.LaconicError, match=r"given a closure.*backward\(\) before step\(\)"):
        optimizer.step(closure=evaluate) if keyword else optimizer.step(evaluate)
    return link.stats.steps


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_a_closure_is_refused(pool, kind, keyword):
    # Under DDP it was allowed: backward ran inside step(), after the hook that drops a poisoned step had looked,
    # and the NaNs that mark such a step went into the weights of every rank.
    assert pool.run(2, _closure, kind, keyword) == [0, 0]


def _sparse_by_hand(group):
    model, optimizer, _ = build(group, "plain", laconic.topk(0.05))
    for p in model.parameters():
        p.grad = torch.zeros_like(p).to_sparse()
    with pytest.raises(TypeError, match=r"gradient of net\.0\.weight is sparse.*sparse=False"):
        optimizer.step()


def test_a_sparse_gradient_is_refused_by_name(pool):
    pool.run(2, _sparse_by_hand)


def _outside(group):
    """The group has rank 0 only; every rank calls attach with what new_group gave it."""
    alone = dist.new_group([0])
    model = Mlp()
    try:
        laconic.attach(model, _sgd(model), laconic.topk(), group=alone)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def test_a_group_this_rank_is_not_in_is_refused(pool):
    # It came as far as the handshake: "rank -1 of -1 waited in vain ... A peer has died".
    inside, outside = pool.run(4, _outside)[:2]
    assert inside is None
    assert outside[0] in ("ValueError", "LaconicError")
    assert "group" in outside[1]
    assert "rank -1" not in outside[1]


ALONE = """
import torch, laconic
model = torch.nn.Linear(3, 3)
laconic.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), laconic.topk())
"""


def test_without_a_process_group_the_error_shows_how_to_start_one():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "LaconicError: attach needs a process group" in done.stderr
    assert "init_process_group('gloo')" in done.stderr
    assert "torchrun --nproc-per-node 2 train.py" in done.stderr
