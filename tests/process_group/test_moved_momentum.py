"""Momentum moved out of SGD into the method: the same training where all is sent, and given back at the end."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from models import Mlp, attach, inner, loss, train, weights, wrap

ALL_SENT = laconic.sdagc(0.0, masking=False, scope="layer", values="exact")
SPARSE = laconic.sdagc(3.0, clip=0.5, clip_scope="layer", scope="layer", values="exact")
KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])
STEPS = 6

SETTINGS = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov and decay": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    "maximize": {"momentum": 0.9, "weight_decay": 0.1, "maximize": True},
    "one by one": {"momentum": 0.9, "weight_decay": 0.1, "foreach": False},
    "fused": {"momentum": 0.9, "weight_decay": 0.1, "fused": True},
}


def _model(group, kind):
    torch.manual_seed(1)
    model = Mlp().double()
    return wrap(model, group) if kind == "ddp" else model


def _run(group, kind, method, settings, groups=None, schedule=None, steps=range(STEPS)):
    """Train in float64; without a method, under plain DDP."""
    model = _model(group, "ddp" if method is None else kind)
    parameters = model.parameters() if groups is None else groups(inner(model))
    optimizer = torch.optim.SGD(parameters, **{"lr": 0.05, **settings})
    link = None if method is None else attach(model, optimizer, method, group)
    after = schedule(optimizer).step if schedule is not None else None
    train(model, optimizer, group, steps, dtype=torch.float64, after=after)
    return weights(model), link.stats.owed_norm if link else 0.0


def _close(ours, theirs):
    for (mine, owed), (plain, _) in zip(ours, theirs, strict=True):
        assert owed == 0.0
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-12)


@KINDS
@pytest.mark.parametrize("name", SETTINGS)
def test_with_everything_sent_it_is_torchs_sgd(pool, kind, name):
    _close(pool.run(2, _run, kind, ALL_SENT, SETTINGS[name]), pool.control(2, _run, "ddp", None, SETTINGS[name]))


def _several(module):
    """Three groups: momentum with decay, Nesterov's, and none at all."""
    layers = [m for m in module.net if isinstance(m, nn.Linear)]
    return [
        {"params": layers[0].parameters(), "momentum": 0.9, "weight_decay": 0.1},
        {
            "params": [*layers[1].parameters(), *layers[2].parameters()],
            "momentum": 0.5,
            "nesterov": True,
            "lr": 0.02,
        },
        {"params": layers[3].parameters(), "weight_decay": 0.2},
    ]


def _one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=STEPS + 1, base_momentum=0.3, max_momentum=0.95
    )


def _falling(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


@KINDS
@pytest.mark.parametrize(
    "method", [ALL_SENT, laconic.sdagc(0.0, masking=False, revision="none", scope="layer", values="exact")], ids=str
)
def test_groups_may_have_unlike_momenta_decays_and_rates(pool, kind, method):
    ours = pool.run(2, _run, kind, method, {}, _several, _falling)
    _close(ours, pool.run(2, _run, "ddp", None, {}, _several, _falling))


@KINDS
def test_a_schedule_may_cycle_momentum(pool, kind):
    settings = {"momentum": 0.9, "weight_decay": 0.1}
    _close(
        pool.run(2, _run, kind, ALL_SENT, settings, None, _one_cycle),
        pool.run(2, _run, "ddp", None, settings, None, _one_cycle),
    )


def _set_by_hand(group, kind, method, when):
    """A loop that warms momentum up itself: the new value is set before backward, or just before the step."""
    model = _model(group, "ddp" if method is None else kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    if method is not None:
        attach(model, optimizer, method, group)
    for step in range(STEPS):
        momentum = 0.5 + 0.08 * step
        if when == "before backward":
            optimizer.param_groups[0]["momentum"] = momentum
        loss(model, dist.get_rank(group), step, dtype=torch.float64).backward()
        if when == "before step":
            optimizer.param_groups[0]["momentum"] = momentum
        optimizer.step()
        optimizer.zero_grad()
    return weights(model), len(optimizer.state_dict()["state"])


@KINDS
def test_momentum_set_by_hand_before_backward_is_followed(pool, kind):
    ours = pool.run(2, _set_by_hand, kind, ALL_SENT, "before backward")
    theirs = pool.run(2, _set_by_hand, "ddp", None, "before backward")
    for (mine, _), (plain, _) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-12)


@KINDS
def test_momentum_set_by_hand_before_the_step_is_never_applied_twice(pool, kind):
    # Under DDP the exchange is over by then, so the new value may count from the next step on; a plain module
    # exchanges in the step itself. Either way the optimizer must not build a velocity of its own.
    for _, buffers in pool.run(2, _set_by_hand, kind, ALL_SENT, "before step"):
        assert buffers == 0


def _set_to_zero(group, kind, method, key):
    """Half way the user sets momentum or decay to 0; with another value it began."""
    model = _model(group, "ddp" if method is None else kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.2)
    if method is not None:
        attach(model, optimizer, method, group)
    train(model, optimizer, group, range(3), dtype=torch.float64)
    optimizer.param_groups[0][key] = 0.0
    train(model, optimizer, group, range(3, STEPS), dtype=torch.float64)
    return weights(model), 0.0


@KINDS
@pytest.mark.parametrize("key", ["momentum", "weight_decay"])
def test_momentum_and_decay_may_be_set_to_zero(pool, kind, key):
    _close(pool.run(2, _set_to_zero, kind, ALL_SENT, key), pool.run(2, _set_to_zero, "ddp", None, key))


def _shown(group, kind):
    model = _model(group, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SETTINGS["nesterov and decay"])
    before = optimizer.state_dict()["param_groups"]
    with attach(model, optimizer, SPARSE, group):
        train(model, optimizer, group, range(2), dtype=torch.float64)
        during = optimizer.state_dict()
        other = torch.optim.SGD(_model(group, "plain").parameters(), lr=1.0)
        other.load_state_dict(during)
        settings = {key: other.param_groups[0][key] for key in ("lr", "momentum", "nesterov", "weight_decay")}
        live = [optimizer.param_groups[0][key] for key in ("momentum", "nesterov", "weight_decay")]
    after = optimizer.state_dict()["param_groups"]
    own = {key: optimizer.param_groups[0][key] for key in SETTINGS["nesterov and decay"]}
    return before == during["param_groups"] == after, settings, live, own


@KINDS
def test_saved_states_of_the_optimizer_show_the_users_own_settings_and_detach_gives_them_back(pool, kind):
    for same, settings, live, own in pool.run(2, _shown, kind):
        assert same
        assert settings == {"lr": 0.05, **SETTINGS["nesterov and decay"]}
        assert live == [0.0, False, 0.0]
        assert own == SETTINGS["nesterov and decay"]


def _loaded(group, kind, when):
    """An optimizer's saved settings, loaded before or after attach, hold."""
    model = _model(group, kind)
    saved = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.7, weight_decay=0.1).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if when == "before":
        optimizer.load_state_dict(saved)
    attach(model, optimizer, ALL_SENT, group)
    if when == "after":
        optimizer.load_state_dict(saved)
    train(model, optimizer, group, range(STEPS), dtype=torch.float64)
    shown = optimizer.state_dict()["param_groups"][0]
    return weights(model), 0.0, [shown[key] for key in ("lr", "momentum", "weight_decay")]


@KINDS
@pytest.mark.parametrize("when", ["before", "after"])
def test_settings_that_are_loaded_hold_whether_before_attach_or_after(pool, kind, when):
    ours = pool.run(2, _loaded, kind, when)
    settings = {"lr": 0.02, "momentum": 0.7, "weight_decay": 0.1}
    _close([result[:2] for result in ours], pool.control(2, _run, "ddp", None, settings))
    assert all(shown == [0.02, 0.7, 0.1] for _, _, shown in ours)


def _half_way(group, kind, method, settings):
    """Plain DDP for three steps, then the method takes the velocity over."""
    model = _model(group, "ddp")
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.05, **settings})
    train(model, optimizer, group, range(3), dtype=torch.float64)
    if kind == "plain":
        model = model.module
    attach(model, optimizer, method, group)
    train(model, optimizer, group, range(3, STEPS), dtype=torch.float64)
    kept = [key for entry in optimizer.state_dict()["state"].values() for key in entry]
    return weights(model), 0.0, kept


@KINDS
@pytest.mark.parametrize("name", ["momentum", "nesterov and decay"])
def test_an_optimizer_that_has_velocity_already_hands_it_over(pool, kind, name):
    ours = pool.run(2, _half_way, kind, ALL_SENT, SETTINGS[name])
    _close([result[:2] for result in ours], pool.control(2, _run, "ddp", None, SETTINGS[name]))
    # Nothing is applied twice, and nothing stale is left behind.
    assert all(kept == [] for _, _, kept in ours)


def _detached(group, kind):
    """After detach the velocity starts anew; a twin that never saw laconic takes the weights over."""
    model = _model(group, "ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    attached = model if kind == "ddp" else model.module
    link = attach(attached, optimizer, SPARSE, group)
    train(attached, optimizer, group, range(3), dtype=torch.float64)
    link.detach()
    if kind == "plain":
        model = wrap(attached, group)
    twin = _model(group, "ddp")
    twin.load_state_dict(model.state_dict())
    fresh = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    steps = range(3, STEPS)
    return [train(m, o, group, steps, dtype=torch.float64) for m, o in ((model, optimizer), (twin, fresh))]


@KINDS
def test_detached_it_goes_on_as_a_fresh_sgd(pool, kind):
    for ours, twin in pool.run(2, _detached, kind):
        assert ours == twin


def _stale(group):
    """A checkpoint of a run without laconic, with velocity in it, is loaded after attach; then laconic leaves."""
    model = _model(group, "ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, optimizer, group, range(2), dtype=torch.float64)
    saved = copy.deepcopy(optimizer.state_dict())
    link = attach(model, optimizer, SPARSE, group)
    optimizer.load_state_dict(saved)
    train(model, optimizer, group, range(2, 4), dtype=torch.float64)
    link.detach()
    return [key for entry in optimizer.state_dict()["state"].values() for key in entry]


def test_velocity_that_is_loaded_after_attach_is_not_left_to_be_applied_after_detach(pool):
    assert pool.run(2, _stale) == [[], []]


def _late_group(group, kind):
    """What the refusal of a newcomer says to do: detach, and attach again."""
    model = _model(group, "plain")
    model.late = nn.Linear(4, 4).double()
    model.late.requires_grad_(False)
    model = wrap(model, group) if kind == "ddp" else model
    optimizer = torch.optim.SGD(inner(model).net.parameters(), lr=0.05, momentum=0.9)
    link = attach(model, optimizer, SPARSE, group)
    train(model, optimizer, group, range(2), dtype=torch.float64)
    optimizer.add_param_group({"params": list(inner(model).late.parameters()), "momentum": 0.7})
    shown = [saved["momentum"] for saved in optimizer.state_dict()["param_groups"]]
    link.detach()
    return shown, [live["momentum"] for live in optimizer.param_groups]


@KINDS
def test_a_group_that_came_after_attach_keeps_its_momentum(pool, kind):
    assert pool.run(2, _late_group, kind) == [([0.9, 0.7], [0.9, 0.7])] * 2
