"""After an exchange has failed each rank says which others were heard, where they wait, and who was not heard."""

from __future__ import annotations

import datetime
import os
import time

import pytest
import torch.distributed as dist

import laconic
from models import build, train
from pool import run_alone

TIMEOUT_SECONDS = 2


def _die():
    os._exit(3)


def _stall():
    time.sleep(2 * TIMEOUT_SECONDS)


def _lose_rank_1(group, how):
    model, optimizer, _ = build(group, "ddp", laconic.topk(0.05))
    train(model, optimizer, group, range(3))
    if dist.get_rank(group) == 1:
        how()
    train(model, optimizer, group, range(3, 6))


@pytest.mark.parametrize("how", [_die, _stall])
def test_survivors_hear_each_other_and_miss_the_one_that_is_lost(how):
    first, lost, last = run_alone(3, _lose_rank_1, how, timeout_seconds=TIMEOUT_SECONDS)
    for survivor in (first, last):
        assert survivor.error == "ExchangeError"
        assert "in step 3" in survivor.message
        assert "Heard since: ranks 0 (" in survivor.message
        assert ") and 2 (" in survivor.message
        assert "in this exchange; not heard within" in survivor.message
        assert "waiting still: rank 1." in survivor.message
    if how is _stall:
        # Whoever comes too late finds the words of those that gave up.
        assert "0 (timed out), 1 (lost its connection) and 2 (timed out)" in lost.message
        assert "That is all of them." in lost.message


def _in_unlike_steps(group):
    """Ranks go on from unlike checkpoints, and the exchange that would have noticed never comes back."""
    model, optimizer, link = build(group, "plain", laconic.dense())
    train(model, optimizer, group, range(2))
    old = link.state_dict()
    train(model, optimizer, group, range(2, 4))
    if dist.get_rank(group) == 1:
        link.load_state_dict(old)
    if dist.get_rank(group) == 2:
        _die()
    train(model, optimizer, group, range(4, 8))


def test_a_rank_that_waits_in_another_step_is_named_with_it():
    first, second, dead = run_alone(3, _in_unlike_steps)
    assert dead.exitcode == 3
    assert "Heard since: rank 0 (lost its connection), in this exchange; rank 1 (" in first.message
    assert "in step 2; not heard within" in first.message.split("in this exchange")[1]
    assert "rank 0 (" in second.message
    assert "in step 4; not heard within" in second.message.split("in this exchange")[1]


def _in_a_group_of_some(group):
    """Rank 0 of all takes no part; its neighbours are ranks 0 and 1 of their own group."""
    some = dist.new_group([1, 2], timeout=datetime.timedelta(seconds=30))
    if dist.get_rank(group) == 0:
        return
    model, optimizer, _ = build(some, "plain", laconic.topk(0.05))
    train(model, optimizer, some, range(2))
    if dist.get_rank(some) == 1:
        _die()
    train(model, optimizer, some, range(2, 5))


def test_ranks_of_a_group_are_told_with_their_global_ranks():
    _, survivor, _ = run_alone(3, _in_a_group_of_some)
    assert "rank 0 of 2 waited in vain" in survivor.message
    assert "not heard within 1 s, lost, stalled or waiting still: rank 1 (global rank 2)." in survivor.message


def _with_a_store_on_rank_0(group):
    """The usual rendezvous: a server in the first rank's process, which the others' stores are clients of."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    told, store = [0], None
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        told = [store.port]
    dist.broadcast_object_list(told, src=0)
    store = store or dist.TCPStore("127.0.0.1", told[0], is_master=False)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    group = dist.group.WORLD
    model, optimizer, _ = build(group, "plain", laconic.topk(0.05))
    if rank == 0:
        _die()
    train(model, optimizer, group, range(3))


def test_a_store_that_was_lost_with_its_rank_is_said_plainly():
    _, *survivors = run_alone(3, _with_a_store_on_rank_0)
    for survivor in survivors:
        assert survivor.error == "ExchangeError"
        assert "the group's store, which lives with the first rank or with the launcher, cannot" in survivor.message


def _lost_before_it_attaches(group):
    model, optimizer, _ = build(group, "plain", None)
    if dist.get_rank(group) == 1:
        _die()
    laconic.attach(model, optimizer, laconic.topk(0.05), group=group)


def test_the_handshake_tells_it_too():
    first, _, last = run_alone(3, _lost_before_it_attaches)
    assert "in the handshake" in first.message
    assert "rank 1." in first.message
    assert "Heard since" in last.message
