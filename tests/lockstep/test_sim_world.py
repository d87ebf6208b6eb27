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
from laconic.sim.batched import batched, handed_out, tried
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

    with pytest.raises(KeyboardInterrupt):
        world.run(work)
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
    monkeypatch.setattr(wire, "unpack", lambda rows, frame, own: read.append(own) or [rows])
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


class Remembering:
    """A task that remembers its last loss, and adds it to the next."""

    def __init__(self, seed: int, width: int = 3) -> None:
        torch.manual_seed(seed)
        self.model, self._state = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)), None

    def loss(self, model, batch):
        value = model(batch["x"]).square().mean()
        value = value if self._state is None else value * (1 + self._state)
        self._state = value.detach()
        return value

    def state_dict(self):
        return {"state": self._state}

    def load_state_dict(self, state):
        self._state = state["state"]


@pytest.mark.parametrize("alike", [True, False])
def test_batched_gradients_are_those_of_each_rank(alike):
    works = [Remembering(0 if alike else seed) for seed in range(3)]
    twins = [Remembering(0 if alike else seed) for seed in range(3)]
    for step in range(3):
        batches = [
            {"x": torch.randn(2, 4, generator=torch.Generator().manual_seed(10 * step + r))} for r in range(3)
        ]
        verdict = tried(works, batches, alike=alike)
        assert verdict.reason == ""
        assert verdict.seconds > 0
        made = batched(works, batches, alike=verdict.alike)
        for work, twin, batch, mine in zip(works, twins, batches, made, strict=True):
            work.load_state_dict(mine.state)
            loss = twin.loss(twin.model, batch)
            twin.model.zero_grad()
            loss.backward()
            torch.testing.assert_close(mine.loss, loss.detach())
            parameters, arrived = dict(work.model.named_parameters()), []
            order = sorted(parameters, reverse=True)
            hooks = [
                p.register_post_accumulate_grad_hook(lambda _, name=name, seen=arrived: seen.append(name))
                for name, p in parameters.items()
            ]
            work.model.zero_grad()
            (2 * handed_out(mine, parameters, order)).backward()
            assert arrived == order
            for name, p in twin.model.named_parameters():
                torch.testing.assert_close(parameters[name].grad, 2 * p.grad)
            for hook in hooks:
                hook.remove()


def test_what_cannot_be_batched_says_why_and_leaves_nothing_behind():
    works, sizes, heard = [Remembering(0), Remembering(0)], (2, 3), []
    for parameter in works[-1].model.parameters():
        parameter.register_hook(heard.append)
    assert tried(works, [{"x": torch.ones(2, 4)}] * 2, alike=True).reason == ""
    assert not heard
    unlike = tried(works, [{"x": torch.ones(size, 4)} for size in sizes], alike=True)
    assert "batches of unlike sizes" in unlike.reason
    for work in works:
        work.model.append(nn.Dropout(0.5))
    alike = [{"x": torch.ones(2, 4)}] * 2
    assert "cannot be batched" in tried(works, alike, alike=True).reason
    for work in works:
        work.model[-1] = nn.BatchNorm1d(1)
    assert tried(works, alike, alike=True).reason == "the model has buffers"
    assert [work.state_dict() for work in works] == [{"state": None}] * 2


class Sly(Remembering):
    """A task whose loss is another one where it is batched."""

    def __init__(self, change) -> None:
        super().__init__(0)
        self._change = change
        with torch.no_grad():
            # The first layer has small gradients beside the last one's, and these are small beside the loss.
            self.model[2].weight.mul_(1e-3)

    def loss(self, model, batch):
        value = super().loss(model, batch) + 7.0
        return self._change(model, value) if torch._C._functorch.peek_interpreter_stack() else value


def _first_layer_twice(model, value):
    weight = model[0].weight
    return value + 1e-3 * (weight - weight.detach()).sum()


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda model, value: value * 2, "the loss"),
        (_first_layer_twice, "0.weight"),
        (lambda model, value: value * float("nan"), "the loss"),
        (lambda model, value: value + (model[0].bias * 0).sqrt().sum(), "0.bias"),
    ],
    ids=["loss", "one small gradient", "no number", "a gradient that is no number"],
)
def test_a_loss_that_cannot_be_trusted_in_a_batch_is_noticed(change, differs):
    batches = [{"x": torch.ones(2, 4)}] * 2
    assert (
        tried([Sly(lambda model, value: value), Sly(lambda model, value: value)], batches, alike=True).reason == ""
    )
    reason = tried([Sly(change), Sly(change)], batches, alike=True).reason
    assert "not those that a rank gets alone" in reason
    assert f"{differs} differs" in reason
