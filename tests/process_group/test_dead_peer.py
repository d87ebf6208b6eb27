"""A peer that dies or stalls: the others are told which exchange waited, in which step, within the timeout."""

from __future__ import annotations

import os
import time

import pytest
import torch.distributed as dist

import laconic
from models import build, train
from pool import run_alone

# A peer that dies closes its sockets, which is seen at once; only one that stalls must wait for this.
TIMEOUT_SECONDS = 3
LAST_GOOD = 3
CASES = [
    ("ddp", laconic.dense()),
    ("plain", laconic.topk_sgd(0.05)),
    ("plain", laconic.randomk(0.05)),
]


def _die() -> None:
    os._exit(3)


def _stall() -> None:
    time.sleep(1.5 * TIMEOUT_SECONDS)


def _lose_rank_1(group, kind, method, how):
    model, optimizer, _ = build(group, kind, method)
    train(model, optimizer, group, range(LAST_GOOD))
    if dist.get_rank(group) == 1:
        how()
    train(model, optimizer, group, range(LAST_GOOD, LAST_GOOD + 3))


def _check(outcome, method):
    assert outcome.error == "ExchangeError"
    assert f"{method.exchange.name} of " in outcome.message
    assert f"in step {LAST_GOOD}" in outcome.message
    assert "rank 0 of 2 waited in vain" in outcome.message
    assert "died, stalled" in outcome.message


@pytest.mark.parametrize(("kind", "method"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_peer_that_dies_is_reported_with_the_exchange_and_the_step(kind, method):
    survivor, dead = run_alone(2, _lose_rank_1, kind, method, _die)
    assert dead.exitcode == 3
    _check(survivor, method)


def test_a_peer_that_stalls_past_the_timeout_is_reported_alike():
    method = laconic.topk(0.05)
    survivor, stalled = run_alone(2, _lose_rank_1, "ddp", method, _stall, timeout_seconds=TIMEOUT_SECONDS)
    _check(survivor, method)
    assert stalled.error == "ExchangeError"


def _die_before_attach(group):
    model, optimizer, _ = build(group, "plain", None)
    if dist.get_rank(group) == 1:
        _die()
    laconic.attach(model, optimizer, laconic.topk(0.05))


def test_a_peer_that_dies_before_attach_is_reported_with_the_handshake():
    survivor, _ = run_alone(2, _die_before_attach)
    assert survivor.error == "ExchangeError"
    assert "in the handshake" in survivor.message


def _die_in_the_first_broadcast(group):
    model, optimizer, _ = build(group, "plain", None)
    if dist.get_rank(group) == 0:
        dist.broadcast = lambda *args, **kwargs: _die()
    laconic.attach(model, optimizer, laconic.topk(0.05))


def test_a_peer_that_dies_in_the_first_broadcast_is_reported_too():
    # It was gloo's own RuntimeError: the only collective that was not watched.
    _, survivor = run_alone(2, _die_in_the_first_broadcast)
    assert survivor.error == "ExchangeError"
    assert "broadcast" in survivor.message


def _three_ranks_one_dies(group):
    model, optimizer, _ = build(group, "ddp", laconic.topk(0.05))
    train(model, optimizer, group, range(2))
    if dist.get_rank(group) == 2:
        _die()
    train(model, optimizer, group, range(2, 9))


def test_every_survivor_is_told():
    first, second, dead = run_alone(3, _three_ranks_one_dies)
    assert dead.exitcode == 3
    assert [first.error, second.error] == ["ExchangeError"] * 2


def _caught_and_attached_again(group):
    """On a group of one's own after the loss, training goes on from what is owed."""
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank(group)]
    model, optimizer, link = build(group, "plain", laconic.topk(0.05))
    train(model, optimizer, group, range(2))
    state = link.state_dict()
    if dist.get_rank(group) == 1:
        _die()
    with pytest.raises(laconic.ExchangeError):
        train(model, optimizer, group, [2])
    link.detach()
    optimizer.zero_grad()
    link = laconic.attach(model, optimizer, laconic.topk(0.05), group=alone)
    link.load_state_dict(state)
    train(model, optimizer, alone, range(2, 5))
    return link.stats.steps


def test_a_survivor_may_go_on_alone():
    survivor, _ = run_alone(2, _caught_and_attached_again)
    assert survivor.value == 5
