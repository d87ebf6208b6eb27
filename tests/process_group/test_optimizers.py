"""Optimizers, parameter groups and learning-rate schedules; parameters that come, go or rest after attach."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from covering import crossed, in_turn
from models import Mlp, Watch, attach, build, digest, imbalance, inner, loss, owed, train, weights, wrap

METHODS = [laconic.dense(), laconic.topk(0.05, whole_below=0), laconic.topk_sgd(0.05), laconic.randomk(0.05)]
SDAGC = laconic.sdagc(3.0, clip=0.5, whole_below=0, scope="layer", values="exact")
ALL = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])
STEPS = 5

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "tensor_rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
}


def _with_optimizer(group, kind, method, name):
    torch.manual_seed(1)
    model = Mlp() if kind == "plain" else wrap(Mlp(), group)
    optimizer = OPTIMIZERS[name](model.parameters())
    if method is not None:
        attach(model, optimizer, method, group)
    return train(model, optimizer, group, range(STEPS))


@pytest.mark.parametrize(
    ("name", "method", "kind"),
    crossed(
        list(OPTIMIZERS), [*METHODS[:2], SDAGC], ["ddp", "plain"], ids=lambda value: getattr(value, "name", value)
    ),
)
def test_ranks_agree_with_every_optimizer(pool, name, method, kind):
    results = pool.run(2, _with_optimizer, kind, method, name)
    assert results[0] == results[1]
    assert len(set(results[0])) == STEPS
    if method.name == "dense":
        assert results == pool.control(2, _with_optimizer, "ddp", None, name)


def _groups(model):
    """Three groups of unlike rates; the second one rests in the first steps."""
    layers = [m for m in inner(model).net if isinstance(m, nn.Linear)]
    return [
        {"params": layers[0].parameters(), "lr": 0.1},
        {"params": [*layers[1].parameters(), *layers[2].parameters()], "lr": 0.02},
        {"params": layers[3].parameters()},
    ]


SCHEDULES = {
    "warm-up from 0": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: step / STEPS),
    "0 in the middle": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: float(step != 2)),
    "one group rests": lambda o: torch.optim.lr_scheduler.LambdaLR(
        o, [lambda _: 1.0, lambda step: float(step > 2), lambda _: 1.0]
    ),
    "falling": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.5),
}


def _scheduled(group, kind, method, name):
    torch.manual_seed(1)
    model = Mlp().double()
    model = model if kind == "plain" else wrap(model, group)
    optimizer = torch.optim.SGD(_groups(model), lr=0.05, momentum=0.9)
    schedule = SCHEDULES[name](optimizer)
    link = attach(model, optimizer, method, group)
    watch = Watch(model, optimizer, unit=method.memory)
    seen = train(model, optimizer, group, range(STEPS), dtype=torch.float64, after=schedule.step)
    return seen, watch.account(link)


SCHEDULED = [
    ("plain", laconic.dense()),
    ("plain", laconic.topk_sgd(0.05)),
    ("plain", laconic.topk(0.05, memory="update")),
    ("ddp", laconic.topk(0.05, whole_below=0)),
    ("ddp", laconic.topk_sgd(0.05)),
    ("ddp", laconic.randomk(0.05, memory="update")),
    ("ddp", laconic.sdagc(3.0, momentum=False, whole_below=0, scope="layer", values="exact")),
]


# Each of seven with two of four schedules.
@pytest.mark.parametrize(
    ("case", "name"),
    in_turn(
        [*SCHEDULED, *SCHEDULED], list(SCHEDULES), ids=lambda case: f"{case[0]}-{case[1].name}-{case[1].memory}"
    ),
)
def test_groups_of_unlike_rates_and_schedules_agree_and_lose_nothing(pool, case, name):
    kind, method = case
    results = pool.run(3, _scheduled, kind, method, name)
    assert all(seen == results[0][0] for seen, _ in results)
    assert len(set(results[0][0])) >= STEPS - 1
    if method.memory != "none":
        assert imbalance([account for _, account in results]) < 1e-12


def _applied(group, kind):
    """Plain SGD without momentum: the weights must have moved by exactly what was delivered in update units."""
    torch.manual_seed(1)
    model = Mlp().double()
    start = [p.detach().clone() for p in model.parameters()]
    model = model if kind == "plain" else wrap(model, group)
    optimizer = torch.optim.SGD(_groups(model), lr=0.05)
    schedule = SCHEDULES["falling"](optimizer)
    link = attach(model, optimizer, laconic.topk_sgd(0.05), group)
    watch = Watch(model, optimizer, unit="update")
    train(model, optimizer, group, range(STEPS), dtype=torch.float64, after=schedule.step)
    moved = [a - b for a, b in zip(start, weights(model), strict=True)]
    return {
        name: (made, m, left) for (name, (made, _, left)), m in zip(watch.account(link).items(), moved, strict=True)
    }


@KINDS
def test_in_update_units_a_falling_rate_does_not_rescale_what_is_owed(pool, kind):
    # Algorithm 1 of Alistarh et al. 2018: what every rank made, times the rate of that moment, is applied or owed.
    assert imbalance(pool.run(2, _applied, kind)) < 1e-12


def _at_rest(group, kind):
    model, optimizer, link = build(group, kind, laconic.topk_sgd(0.05))
    optimizer.param_groups[0]["lr"] = 0.0
    before = digest(weights(model))
    train(model, optimizer, group, range(2))
    return digest(weights(model)) == before, float(torch.stack([v.abs().sum() for v in owed(link).values()]).sum())


@KINDS
def test_a_rate_of_0_moves_nothing_and_owes_nothing_in_update_units(pool, kind):
    assert pool.run(2, _at_rest, kind) == [(True, 0.0)] * 2


def _late_group(group, kind):
    torch.manual_seed(1)
    model = Mlp() if kind == "plain" else wrap(Mlp(), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(model, optimizer, laconic.topk(0.05), group)
    extra = nn.Parameter(torch.zeros(3))
    optimizer.add_param_group({"params": [extra]})
    (loss(model, dist.get_rank(group), 0) + extra.sum() * dist.get_rank(group)).backward()
    with pytest.raises(laconic.LaconicError, match=r"shape \(3,\).*detach.*attach again"):
        optimizer.step()


@pytest.mark.parametrize("kind", ["plain", "ddp"])
def test_a_parameter_that_comes_to_the_optimizer_after_attach_is_refused(pool, kind):
    # Attach refuses an optimizer with parameters of another module. One that came later was refused for a plain
    # module only; under DDP it was stepped by each rank's own gradient, and ranks differed without a word.
    pool.run(2, _late_group, kind)


def _thawed(group):
    model = Mlp()
    model.net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    link = attach(model, optimizer, laconic.topk(0.05), group)
    train(model, optimizer, group, range(2))
    model.net[0].requires_grad_(True)
    with pytest.raises(laconic.LaconicError, match=r"was frozen.*attach again"):
        train(model, optimizer, group, [2])
    link.detach()
    attach(model, optimizer, laconic.topk(0.05), group)
    optimizer.zero_grad()
    return train(model, optimizer, group, range(3, 5))


def test_a_parameter_thawed_after_attach_is_refused_until_attached_again(pool):
    results = pool.run(2, _thawed)
    assert results[0] == results[1]


def _part_of_a_ddp_module(group):
    torch.manual_seed(1)
    model = wrap(Mlp(), group)
    optimizer = torch.optim.SGD(model.module.net[:4].parameters(), lr=0.05)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        laconic.attach(model, optimizer, laconic.topk_sgd(0.05))
    return [str(w.message) for w in caught], train(model, optimizer, group, range(3))


def test_a_ddp_module_only_part_of_which_is_stepped_warns_and_agrees(pool):
    results = pool.run(2, _part_of_a_ddp_module)
    assert results[0] == results[1]
    assert len(results[0][0]) == 1
    assert "4 trainable parameters (first: net.4.weight) are not in this optimizer" in results[0][0][0]


def _part_of_a_plain_module(group):
    torch.manual_seed(1 + dist.get_rank(group))
    model = Mlp()
    halves = [torch.optim.SGD(part.parameters(), lr=0.05) for part in (model.net[:4], model.net[4:])]
    links = [attach(model, optimizer, laconic.topk(0.05), group) for optimizer in halves]
    for step in range(3):
        loss(model, dist.get_rank(group), step).backward()
        for optimizer in halves:
            optimizer.step()
            optimizer.zero_grad()
    return digest(weights(model)), [sorted(link.parameters) for link in links]


def test_two_optimizers_may_share_a_plain_module(pool):
    results = pool.run(2, _part_of_a_plain_module)
    assert results[0] == results[1]
    assert [len(names) for names in results[0][1]] == [4, 4]


def _frozen_later(group, method):
    torch.manual_seed(1)
    model = Mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    link = attach(model, optimizer, method, group)
    watch = Watch(model, optimizer, unit=method.memory)
    train(model, optimizer, group, range(2), dtype=torch.float64)
    model.net[2].requires_grad_(False)
    before = digest(model.net[2].parameters())
    seen = train(model, optimizer, group, range(2, 5), dtype=torch.float64)
    rested = digest(model.net[2].parameters()) == before
    model.net[2].requires_grad_(True)
    seen += train(model, optimizer, group, range(5, 7), dtype=torch.float64)
    return seen, rested, watch.account(link)


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda m: m.name)
def test_a_parameter_frozen_after_attach_does_not_move_and_loses_nothing(pool, method):
    results = pool.run(2, _frozen_later, method)
    assert results[0][0] == results[1][0]
    assert all(rested for _, rested, _ in results)
    assert imbalance([account for _, _, account in results]) < 1e-12
