"""Ranks that share a process: one runs at a time, in order, and what goes wrong on one is told."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

import laconic
from laconic import wire
from laconic.collectives import AllReduce
from laconic.errors import LaconicError
from laconic.sim import Cable, Network, Pace, World, group_of_one
from laconic.sim.reading import read_once


def _world(ranks):
    return World(Network(ranks=ranks), Pace(ranks=ranks, seconds=0.0))


def test_one_rank_runs_at_a_time_and_ranks_take_turns_in_order():
    world, seen, inside = _world(4), [], []

    def work(rank):
        for turn in range(3):
            inside.append(rank)
            time.sleep(0.002)
            assert inside == [rank]
            inside.remove(rank)
            seen.append((turn, rank))
            world.together(rank, "turn", rank, sum)
        return rank

    assert world.run(work) == [0, 1, 2, 3]
    assert [turn for turn, _ in seen] == sorted(turn for turn, _ in seen)
    # Who comes last acts, and goes on.
    assert [rank for turn, rank in seen if turn == 0] == [0, 1, 2, 3]
    assert [rank for turn, rank in seen if turn == 1] == [3, 0, 1, 2]


def test_what_ranks_give_is_made_into_one_thing_for_all():
    world, made = _world(3), []

    def make(given):
        made.append(threading.get_ident())
        return sorted(given)

    assert world.run(lambda rank: world.together(rank, "a list", 10 - rank, make)) == [[8, 9, 10]] * 3
    assert len(made) == 1


@pytest.mark.parametrize("bad", [0, 2])
def test_what_one_rank_raises_ends_all_and_is_raised(bad):
    world = _world(3)

    def work(rank):
        if rank == bad:
            raise KeyError("no batch")
        world.lockstep.ports[rank].drain()

    with pytest.raises(KeyError, match="no batch"):
        world.run(work)


def test_a_world_runs_once():
    world = _world(2)
    assert world.run(lambda rank: rank) == [0, 1]
    with pytest.raises(LaconicError, match="Make a new World"):
        world.run(lambda rank: rank)


@pytest.mark.parametrize("busy", [0, 1])
def test_ranks_have_ended_when_an_interrupt_is_raised(busy):
    world, ended, main = _world(3), [], threading.main_thread().ident

    def work(rank):
        try:
            world.lockstep.ports[rank].drain()
            if rank == busy:
                signal.pthread_kill(main, signal.SIGINT)
                # In a step of its own when the others are told to end.
                time.sleep(0.1)
            for _ in range(1000):
                world.lockstep.ports[rank].drain()
                time.sleep(0.001)
        finally:
            ended.append(rank)

    # A shell that starts something in the background has it ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            world.run(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(ended) == [0, 1, 2]


def test_what_was_made_is_not_kept_when_all_have_read_it():
    world = _world(3)

    class Large:
        pass

    def work(rank):
        seen = weakref.ref(world.together(rank, "large", Large(), lambda given: given[0]))
        world.together(rank, "all have read it", None, len)
        return seen()

    assert world.run(work) == [None] * 3


def test_a_rank_that_leaves_early_is_named():
    world = _world(3)

    def work(rank):
        for _ in range(2 if rank == 1 else 3):
            world.lockstep.ports[rank].drain()

    with pytest.raises(LaconicError, match="rank 1 has left"):
        world.run(work)


def test_many_ranks_are_no_trouble():
    world = _world(200)

    def total(value):
        return float((yield AllReduce(send=torch.tensor([value]))))

    def work(rank):
        future = world.lockstep.ports[rank].start(total(1.0), label="a sum")
        world.lockstep.ports[rank].drain()
        return future.value()

    assert world.run(work) == [200.0] * 200


def test_messages_that_all_ranks_read_are_read_once_and_paid_by_all(monkeypatch):
    read, paid = [], []
    monkeypatch.setattr(wire, "unpack", lambda rows, frame, own, senders=None: read.append(own) or [rows])
    plain, rows, others = wire.unpack, torch.zeros(3), torch.zeros(3)
    with read_once(paid.append):
        assert [wire.unpack(rows, None, rank)[0] is rows for rank in range(3)] == [True] * 3
        wire.unpack(others, None, 3)
        assert (read, len(paid)) == ([0, 3], 2)
    assert wire.unpack is plain


def test_a_process_that_is_in_a_group_is_refused():
    with group_of_one(), pytest.raises(ValueError, match="in a group already"), group_of_one():
        pass


def test_methods_that_know_of_nodes_have_those_of_the_network():
    network = Network(ranks=4, node_size=2, inside=Cable(bits_per_second=1e6, latency=0.5))
    method = replace(laconic.topk(0.5, whole_below=0), exchange=laconic.TwoLevel())

    def trained(method):
        world = World(network, Pace(ranks=4, seconds=0.0))

        def work(rank):
            torch.manual_seed(rank)
            model, x = nn.Linear(8, 2), torch.randn(4, 8)
            link = world.attach(rank, model, optimizer := torch.optim.SGD(model.parameters(), 0.1), method)
            world.clock(rank).start()
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            return model.weight.detach().clone(), link.stats, world.clock(rank).now()

        return world.run(work)

    ranks = trained(method)
    assert all(torch.equal(weight, ranks[0][0]) for weight, _, _ in ranks)
    assert all(stats.node_bytes > 0 for _, stats, _ in ranks)
    # Within a node a table and a sum are waited for, in two rounds or three; between nodes nothing takes time.
    assert all(seconds >= 3 * 3 * 0.5 for _, _, seconds in ranks)
    with pytest.raises(ValueError, match="nodes of 4 ranks, the transport nodes of 2"):
        trained(replace(method, exchange=laconic.TwoLevel(node_size=4)))


@pytest.mark.parametrize(("slow", "steps"), [(1.0, [0.05, 0.1, 0.15]), (4.0, [0.2, 0.4, 0.6])])
def test_attached_models_take_the_seconds_that_were_given(slow, steps):
    world = World(Network(ranks=2), Pace(ranks=2, seconds=0.05, slow_share=0.5, slow_factor=slow))
    halfway = []

    def work(rank):
        torch.manual_seed(rank)
        model, x, clock, times = nn.Linear(4, 1), torch.ones(2, 4), world.clock(rank), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        world.attach(rank, model, optimizer, laconic.topk(0.5)).detach()
        world.attach(rank, model, optimizer, laconic.topk(0.5))
        clock.start()
        for step in range(3):
            clock.step(step)
            optimizer.zero_grad()
            loss = model(x).sum()
            if rank == 0 and step == 0:
                model.bias.register_hook(lambda _: halfway.append(clock.now()))
            loss.backward()
            optimizer.step()
            times.append(clock.now())
        clock.stop()
        return times

    assert world.run(work) == [pytest.approx(steps)] * 2
    # Forward is a third of a step, and the bias a fifth of the gradient's entries.
    assert halfway[0] == pytest.approx(0.05 * (1 / 3 + 2 / 3 / 5))
