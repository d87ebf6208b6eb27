"""What local methods refuse: clearly, when it is written or at attach, before any rank waits for another."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from laconic.errors import GroupError, LaconicError
from laconic.exchanges import ReduceMean
from models import Mlp, attach, build, loss, train

REFUSED = {
    "a recipe for send": (
        lambda: laconic.celgc(send=laconic.topk),
        TypeError,
        r"send must be a method such as topk",
    ),
    "a name for send": (lambda: laconic.diloco(send="topk"), TypeError, r"how drifts travel, got 'topk'"),
    "local steps within local steps": (
        lambda: laconic.celgc(send=laconic.local_sgd()),
        ValueError,
        r"send=local_sgd\(\) has local steps of its own.*exchanges in every step",
    ),
    "a sample that adds up": (
        lambda: laconic.celgc(participants=2, send=laconic.randomk(0.1)),
        ValueError,
        r"only some ranks send.*GatherMean\(\) with participants",
    ),
    "a dense sample that adds up": (
        lambda: replace(laconic.celgc(participants=2), exchange=ReduceMean()),
        ValueError,
        r"GatherMean\(\) with participants",
    ),
    "a restart without memory": (
        lambda: laconic.celgc(restart=0.5),
        ValueError,
        r"restart=0\.5 is a share of what is owed, and memory='none' owes nothing",
    ),
    "a restart of more than all": (
        lambda: laconic.celgc(send=laconic.topk(), restart=1.5),
        ValueError,
        r"restart must be a share in \[0, 1\], got 1\.5",
    ),
    "momentum of gradients": (
        lambda: replace(laconic.celgc(send=laconic.topk()), momentum="method"),
        ValueError,
        r"drifts have an outer step of their own",
    ),
    "fragments that do not divide": (
        lambda: laconic.diloco(5, fragments=2),
        ValueError,
        r"2 fragments with delay 0 need Every\(steps=n\), n a multiple of 2",
    ),
    "a delay past the next sync": (
        lambda: laconic.diloco(4, fragments=2, delay=2),
        ValueError,
        r"2 fragments with delay 2 need .*over 4; got Every\(steps=4\)",
    ),
    "fragments of one vector": (
        lambda: laconic.diloco(4, fragments=2, send=laconic.topk_sgd(0.1)),
        ValueError,
        r"fragments are exchanged by themselves: give the method scope='layer'",
    ),
    "no step at all": (lambda: laconic.celgc(0), ValueError, r"steps must be .*got 0"),
    "nobody": (
        lambda: laconic.celgc(participants=0),
        ValueError,
        r"participants must be .*For all ranks write None",
    ),
    "a law of no name": (lambda: laconic.celgc(period="often"), ValueError, r"period must be one of .*'often'"),
    "a norm without a threshold": (
        lambda: laconic.celgc(norm_by="max"),
        ValueError,
        r"how to clip, and clip is None: give clip",
    ),
    "the mean's norm of an update": (
        lambda: laconic.celgc(clip=1.0, norm_of="update", norm_by="max"),
        ValueError,
        r"each rank's own: leave norm_by='local'",
    ),
    "an outer rate of nothing": (lambda: laconic.diloco(rate=0.0), ValueError, r"a rate over 0.*got rate 0\.0"),
    "outer momentum for ever": (lambda: laconic.diloco(momentum=1.0), ValueError, r"momentum in \[0, 1\)"),
    "no clipping threshold": (lambda: laconic.celgc(clip=0.0), ValueError, r"norm must be .*got 0\.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_when_it_is_written(name):
    make, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        make()


def _at_attach(group, method, options, text):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=text):
        attach(model, optimizer, method, group, **options)
    # Nothing of it is left.
    attach(model, optimizer, laconic.celgc(), group)


@pytest.mark.parametrize(
    ("method", "options", "text"),
    [
        (laconic.celgc(), {"measure_every": 5}, r"measure_every looks at gradients.*Leave it 0"),
        (laconic.diloco(50, fragments=10), {}, r"8 parameters cannot be dealt out to 10 fragments. Use fewer"),
    ],
    ids=["measured", "more fragments than parameters"],
)
def test_attach_refuses_it_before_any_rank_talks(pool, method, options, text):
    # One rank of the pool alone calls attach: had it talked to the others first, it would hang.
    pool.run(1, _at_attach, method, options, text)


def _waiting_norm(group):
    model = nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"'1' is a SyncBatchNorm, whose forward waits.*celgc.*Use BatchNorm"):
        attach(model, optimizer, laconic.celgc(), group)
    # In every step all ranks are there.
    attach(model, optimizer, laconic.topk(), group).detach()


def test_a_norm_that_waits_for_other_ranks_is_refused(pool):
    pool.run(1, _waiting_norm)


def _failed_attach(group):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.register_buffer("wide", torch.zeros(1).expand(5))
    optimizer, method = torch.optim.SGD(model.parameters(), lr=0.1), laconic.celgc(buffers="recompute")
    with pytest.raises(ValueError, match="the buffer wide is sparse or expanded"):
        attach(model, optimizer, method, group)
    assert not model._forward_pre_hooks
    model.wide = torch.zeros(5)
    link = attach(model, optimizer, method, group)
    assert len(model._forward_pre_hooks) == 1
    link.detach()
    assert not model._forward_pre_hooks


def test_an_attach_that_fails_leaves_no_hook(pool):
    pool.run(1, _failed_attach)


def _unlike_methods(group, kind, first, second):
    model, optimizer, _ = build(group, kind, None)
    with pytest.raises(GroupError, match=r"ranks disagree.*runs Method\(.*Give every rank the same"):
        attach(model, optimizer, second if dist.get_rank(group) else first, group)
    return True


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (laconic.celgc(4), laconic.celgc(8)),
        (laconic.celgc(4), laconic.dense()),
        (laconic.celgc(4, clip=1.0), laconic.celgc(4, clip=2.0)),
        (laconic.celgc(4), laconic.local_sgd(4)),
    ],
    ids=["rounds", "no rounds", "clips", "names"],
)
def test_ranks_with_unlike_methods_are_told(pool, kind, first, second):
    assert pool.run(2, _unlike_methods, kind, first, second) == [True, True]


def _untold_loss(group, tell):
    model, optimizer, link = build(group, "plain", laconic.celgc(2, period="adacomm"))
    rank = dist.get_rank(group)
    for step in range(2):
        value = loss(model, rank, step)
        if tell:
            link.observe(value)
        value.backward()
        if step == 1 and not tell:
            with pytest.raises(LaconicError, match=r"follows the loss, and none was told.*link\.observe\(loss\)"):
                optimizer.step()
            return None
        optimizer.step()
        optimizer.zero_grad()
    return link.stats.syncs


@pytest.mark.parametrize(("tell", "syncs"), [(True, 1), (False, None)])
def test_a_law_that_follows_the_loss_wants_to_be_told(pool, tell, syncs):
    assert pool.run(2, _untold_loss, tell) == [syncs] * 2


def _closure(group):
    model, optimizer, _ = build(group, "plain", laconic.celgc(2))
    with pytest.raises(LaconicError, match=r"closure.*backward\(\) before step\(\)"):
        optimizer.step(lambda: loss(model, 0, 0))
    train(model, optimizer, group, range(2))


def test_a_closure_is_refused(pool):
    pool.run(1, _closure)


def _unknown_state(group):
    model, _, _ = build(group, "plain", None)
    optimizer, rank = torch.optim.Rprop(model.parameters()), dist.get_rank(group)
    attach(model, optimizer, laconic.celgc(2, optimizer_state="average"), group)
    text = r"Rprop keeps %s \(rank 0\), of which .*Use optimizer_state='keep' or 'reset'"
    for step in range(2):
        # Rank 1 skips every step, and so has no state that it could not average.
        (loss(model, rank, step) * (float("nan") if rank else 1.0)).backward()
        with nullcontext() if step == 0 else pytest.raises(LaconicError, match=text % ["step_size", "state"][rank]):
            optimizer.step()
        optimizer.zero_grad()


def test_all_ranks_are_told_of_a_state_that_one_of_them_cannot_average(pool):
    pool.run(2, _unknown_state)


def _failing_forward(group):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer, laconic.celgc(1, buffers="recompute"), group)

    def fail(module, args):
        if not torch.is_grad_enabled():
            raise RuntimeError("no graph, no forward")

    model[2].register_forward_pre_hook(fail)
    model(torch.arange(12.0).view(4, 3)).sum().backward()
    with pytest.raises(RuntimeError, match="no graph"):
        optimizer.step()
    assert model[1].momentum == 0.1


def test_a_forward_that_fails_in_a_sync_leaves_norms_to_follow_as_they_did(pool):
    pool.run(1, _failing_forward)
