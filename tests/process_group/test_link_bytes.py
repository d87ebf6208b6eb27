"""Bytes on the link: what a rank sends to others for what it hands over, in both worlds, kind by kind."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.collectives import AllGather, AllReduce, AllToAll
from laconic.exchanges import ShardedMean, TwoLevel
from laconic.transports import Lockstep, ProcessGroupTransport, process_group
from lockstep.ranks import run_ranks
from models import attach, build, train

MESSAGE = torch.arange(12, dtype=torch.uint8)


def _deal(rank):
    # Rank r gives rank s as much as it hears from it.
    sizes = tuple(rank + other + 1 for other in range(4))
    return AllToAll(send=torch.zeros(sum(sizes), dtype=torch.uint8), given=sizes, heard=sizes)


def _of(senders, rank, **more):
    return AllGather(send=MESSAGE if rank in senders else MESSAGE[:0], senders=senders, size=12, **more)


# What each of four ranks sends, on nodes of two, where that is asked for.
ASKED = {
    "gather": (lambda rank: AllGather(send=MESSAGE), [36] * 4),
    "gather of every sender": (lambda rank: _of((0, 1, 2, 3), rank), [36] * 4),
    "gather of two": (lambda rank: _of((1, 2), rank), [0, 36, 36, 0]),
    # The sender tells two ranks, the first of which tells the last.
    "gather of the first": (lambda rank: _of((0,), rank), [24, 12, 0, 0]),
    "gather of another": (lambda rank: _of((2,), rank), [0, 0, 24, 12]),
    "sum": (lambda rank: AllReduce(send=torch.ones(6)), [36] * 4),
    "a sum that does not divide": (lambda rank: AllReduce(send=torch.ones(5)), [30] * 4),
    "deal": (_deal, [10 - 1, 14 - 3, 18 - 5, 22 - 7]),
    "gather of leaders": (lambda rank: AllGather(send=MESSAGE, among="leaders"), [12, 0, 12, 0]),
    "sum of leaders": (lambda rank: AllReduce(send=torch.ones(6), among="leaders"), [24, 0, 24, 0]),
    "gather within nodes": (lambda rank: AllGather(send=MESSAGE, among="node"), [0] * 4),
    "sum within nodes": (lambda rank: AllReduce(send=torch.ones(6), among="node"), [0] * 4),
}


def _asking(what, rank):
    yield ASKED[what][0](rank)


def _over_gloo(group):
    """Of each request: the bytes on the link, and those handed over."""
    counted = {}
    for what in ASKED:
        transport = ProcessGroupTransport(group, torch.device("cpu"), node_size=2)
        transport.start(_asking(what, transport.rank), label=what)
        transport.drain()
        counted[what] = (transport.link_bytes, transport.wire_bytes)
    return counted


def test_each_kind_of_request_sends_what_the_formula_says(pool):
    for rank, counted in enumerate(pool.run(4, _over_gloo)):
        assert {what: link for what, (link, _) in counted.items()} == {
            w: each[rank] for w, (_, each) in ASKED.items()
        }
        # What is dealt out is handed over with the rank's own share.
        assert counted["deal"][1] == counted["deal"][0] + 2 * rank + 1


@pytest.mark.parametrize("what", ASKED)
def test_lockstep_counts_the_same(what):
    world = Lockstep(4, node_size=2)
    for port in world.ports:
        port.start(_asking(what, port.rank), label=what)
    world.run()
    assert [port.link_bytes for port in world.ports] == ASKED[what][1]


def _broadcast(group):
    transport = ProcessGroupTransport(group, torch.device("cpu"))
    transport.broadcast_(MESSAGE.clone())
    return transport.link_bytes


@pytest.mark.parametrize(("ranks", "copies"), [(1, [0]), (2, [1, 0]), (3, [2, 0, 0]), (4, [2, 1, 0, 0])])
def test_a_broadcast_is_passed_on_by_ranks_that_have_it(pool, ranks, copies):
    def job(port):
        port.broadcast_(MESSAGE.clone())
        return port.link_bytes

    assert pool.run(ranks, _broadcast) == run_ranks(ranks, job) == [12 * n for n in copies]


class Listener:
    """Adds up what this rank sends to others, at the calls of torch.distributed themselves."""

    def __init__(self, group) -> None:
        self.rank, self.ranks, self.bytes = dist.get_rank(group), dist.get_world_size(group), 0

    def gather(self, out, send):
        return (self.ranks - 1) * send.nbytes

    def all_reduce(self, tensor):
        return 2 * (self.ranks - 1) * tensor.nbytes // self.ranks

    def all_to_all_single(self, out, send, heard, given):
        return send.nbytes - given[self.rank] * send.element_size()

    def broadcast(self, tensor, group_src):
        having, sends = [group_src], 0
        while len(having) < self.ranks:
            told = [(rank, (rank + len(having)) % self.ranks) for rank in having][: self.ranks - len(having)]
            sends += sum(teller == self.rank for teller, _ in told)
            having += [listener for _, listener in told]
        return sends * tensor.nbytes

    @contextmanager
    def listening(self):
        named = ("all_reduce", "all_to_all_single", "broadcast")
        calls = {"gather": process_group._all_gather} | {name: getattr(dist, name) for name in named}

        def heard(name):
            def listening(*args, group=None, async_op=False, **more):
                self.bytes += getattr(self, name)(*args, **more)
                return calls[name](*args, group=group, async_op=async_op, **more)

            return listening

        process_group._all_gather = heard("gather")
        for name in named:
            setattr(dist, name, heard(name))
        try:
            yield self
        finally:
            process_group._all_gather = calls.pop("gather")
            for name, call in calls.items():
                setattr(dist, name, call)


METHODS = {
    "dense": laconic.dense(),
    "topk": laconic.topk(0.05),
    "sdagc": laconic.sdagc(3.0, values="int4", scope="layer"),
    "sharded": replace(laconic.topk(0.05), exchange=ShardedMean()),
    "powersgd": laconic.powersgd(1),
    "celgc": laconic.celgc(every=2, send=laconic.topk(0.05)),
    "some ranks": laconic.episode_pp(every=2, participants=2),
    "one rank": laconic.episode_pp(every=2, participants=1),
}


def _trained(group, method):
    model, optimizer, _ = build(group, "plain", None)
    with Listener(group).listening() as listener:
        link = attach(model, optimizer, method, group)
        train(model, optimizer, group, range(1))
        before = (link.stats.link_bytes, listener.bytes)
        train(model, optimizer, group, range(1, 6))
    grown = (link.stats.link_bytes - before[0], listener.bytes - before[1])
    return grown, (link.transport.link_bytes, listener.bytes), link.stats


@pytest.mark.parametrize("name", METHODS)
def test_stats_say_what_the_calls_send(pool, name):
    for grown, total, stats in pool.run(3, _trained, METHODS[name]):
        assert grown[0] == grown[1]
        assert total[0] == total[1]
        assert stats.link_bytes > 0
        if name == "topk":
            assert stats.link_bytes == 2 * stats.wire_bytes


def _on_nodes(group):
    model, optimizer, _ = build(group, "plain", None)
    link = attach(model, optimizer, replace(laconic.topk(0.05), exchange=TwoLevel(node_size=2)), group)
    train(model, optimizer, group, range(2))
    return link.stats


def test_only_leaders_have_bytes_on_the_link(pool):
    stats = pool.run(4, _on_nodes)
    # Two nodes: a leader's message goes to the other one.
    assert [s.link_bytes for s in stats] == [stats[0].wire_bytes, 0, stats[2].wire_bytes, 0]
    assert stats[0].link_bytes > 0


def test_one_rank_alone_sends_nothing(pool):
    [(_, total, stats)] = pool.run(1, _trained, METHODS["topk"])
    assert (*total, stats.link_bytes) == (0, 0, 0)


def _resumed(group, method):
    model, optimizer, link = build(group, "plain", method)
    train(model, optimizer, group, range(3))
    saved, sent = link.state_dict(), link.stats.link_bytes
    with link.averaged():
        looked = link.stats.link_bytes
    link.detach()
    model, optimizer, link = build(group, "plain", method)
    link.load_state_dict(saved)
    return sent, looked, link.stats.link_bytes


@pytest.mark.parametrize("name", ["topk", "celgc"])
def test_they_are_saved_and_a_look_at_the_mean_model_is_not_in_them(pool, name):
    for sent, looked, loaded in pool.run(2, _resumed, METHODS[name]):
        assert sent == looked == loaded > 0
