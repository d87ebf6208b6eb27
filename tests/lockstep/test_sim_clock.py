"""The clock of simulated ranks, by hand: what work, wire, stragglers, changes and standstills come to."""

from __future__ import annotations

import pytest
import torch

from laconic.collectives import AllGather, AllReduce
from laconic.sim import Cable, Change, Network, Outage, Pace, World

ENTRIES = 1000
# A megabyte a second, a millisecond a round.
SLOW = Cable(bits_per_second=8e6, latency=0.001, headers=0.0)
# Two ranks: 2 rounds, and 4000 bytes in two halves there and back.
DENSE = 2 * (0.001 + 0.002)


def _asks(*requests):
    # Replies are sent in, which a delegated tuple does not take.
    for request in requests:  # noqa: UP028
        yield request


def _sum(entries=ENTRIES, rounds=1, among="world"):
    return _asks(*(AllReduce(send=torch.ones(entries), among=among) for _ in range(rounds)))


def _times(network, pace, loop):
    """Every rank's time after ``loop(clock, port)``, which is timed."""
    world = World(network, pace)

    def work(rank):
        clock, port = world.clock(rank), world.lockstep.ports[rank]
        clock.entries = ENTRIES
        clock.start()
        loop(clock, port)
        clock.stop()
        return clock.now()

    return world.run(work)


def _train(steps, buckets=1):
    def loop(clock, port):
        for step in range(steps):
            clock.step(step)
            for _ in range(buckets):
                clock.made(ENTRIES // buckets)
                port.start(_sum(ENTRIES // buckets), label="a bucket")
            port.drain()

    return loop


def _two(**settings):
    return Network(ranks=2, cables=(SLOW,), **settings)


def test_a_step_takes_what_is_computed_and_what_the_sum_takes():
    assert _times(_two(), Pace(ranks=2, seconds=0.1), _train(5)) == pytest.approx([5 * (0.1 + DENSE)] * 2)


def test_all_wait_for_the_slow_rank():
    pace = Pace(ranks=2, seconds=0.1, slow_share=0.5, slow_factor=3.0)
    assert _times(_two(), pace, _train(5)) == pytest.approx([5 * (0.3 + DENSE)] * 2)


def test_the_first_bucket_travels_while_the_rest_is_computed():
    # The first is asked for at 1/3 + 2/3 * 1/2 of the step: of its 4 ms all goes by before the second is there.
    half = 2 * (0.001 + 0.001)
    assert _times(_two(), Pace(ranks=2, seconds=0.3), _train(1, buckets=2)) == pytest.approx([0.3 + half] * 2)
    # Computed in no time, one travels after the other.
    assert _times(_two(), Pace(ranks=2, seconds=0.0), _train(1, buckets=2)) == pytest.approx([2 * half] * 2)


def test_a_rate_that_changes_on_the_way_stretches_the_rest():
    # From 0.1 on 2 ms of latency, then 4 ms of sending of which the last 3 take twice as long.
    network = _two(changes=(Change(second=0.103, factor=0.5),))
    assert _times(network, Pace(ranks=2, seconds=0.1), _train(1)) == pytest.approx([0.1 + DENSE + 0.003] * 2)


def test_others_wait_for_a_rank_that_stands_still():
    pace = Pace(ranks=2, seconds=0.1, outages=(Outage(rank=1, second=0.15, seconds=7.0),))
    assert _times(_two(), pace, _train(3)) == pytest.approx([3 * (0.1 + DENSE) + 7.0] * 2)


def test_a_standstill_while_a_rank_waits_anyway_delays_only_what_comes_after():
    # Rank 0 waits from 0.1 to 0.3; it stands still from 0.2 to 0.35, and goes on computing then.
    pace = Pace(
        ranks=2, seconds=0.1, slow_share=0.5, slow_factor=3.0, outages=(Outage(rank=0, second=0.2, seconds=0.15),)
    )
    assert _times(_two(), pace, _train(1)) == pytest.approx([0.35, 0.3 + DENSE])


def test_steps_without_an_exchange_let_ranks_drift_apart():
    pace = Pace(ranks=2, seconds=0.1, slow_share=0.5, slow_factor=2.0)

    def local(clock, port):
        for step in range(4):
            clock.step(step)
            # Some gradients never come: a step takes its time all the same.
            clock.made(ENTRIES // 2)
        clock.step(4)
        clock.made(ENTRIES)
        port.start(_sum(), label="a sync")
        port.drain()

    assert _times(_two(), pace, local) == pytest.approx([5 * 0.2 + DENSE] * 2)
    assert _times(_two(), pace, lambda clock, port: [clock.step(i) for i in range(4)]) == pytest.approx([0.4, 0.8])


def test_what_is_said_while_a_run_is_looked_at_takes_no_time():
    def looks(clock, port):
        _train(1)(clock, port)
        clock.stop()
        port.start(_sum(), label="a look")
        port.drain()
        port.broadcast_(torch.zeros(100))
        clock.start()
        _train(1)(clock, port)

    assert _times(_two(), Pace(ranks=2, seconds=0.1), looks) == pytest.approx([2 * (0.1 + DENSE)] * 2)


def test_what_was_asked_for_before_a_look_is_heard_in_its_time():
    def sent(clock, port):
        clock.step(0)
        clock.made(ENTRIES)
        port.start(_sum(rounds=3), label="a sync in three rounds")

    def looks(clock, port):
        clock.stop()
        port.drain()
        port.start(_sum(), label="a look")
        port.drain()
        clock.start()

    def at_once(clock, port):
        sent(clock, port)
        looks(clock, port)
        clock.step(1)

    def later(clock, port):
        sent(clock, port)
        clock.step(1)
        looks(clock, port)

    pace = Pace(ranks=2, seconds=0.1)
    assert _times(_two(), pace, at_once) == pytest.approx([0.1 + 3 * DENSE + 0.1] * 2)
    # The first round came while the second step was computed; the others are asked for when that is heard.
    assert _times(_two(), pace, later) == pytest.approx([0.2 + 2 * DENSE] * 2)


def test_a_rank_asks_on_when_it_has_heard_though_the_run_is_looked_at():
    inside = Cable(bits_per_second=8e6, latency=0.5, headers=0.0)
    network = Network(ranks=4, cables=(SLOW,), inside=inside, node_size=2)

    def loop(clock, port):
        clock.step(0)
        gather = AllGather(send=torch.zeros(0, dtype=torch.uint8), among="leaders")
        node = AllReduce(send=torch.ones(0), among="node")
        port.start(_asks(node, gather), label="in a node, then between nodes")
        clock.stop()
        port.drain()
        clock.start()

    # Two rounds in the node, and a millisecond between nodes, on another wire.
    assert _times(network, Pace(ranks=4, seconds=0.0), loop) == pytest.approx([1.001, 1.0, 1.001, 1.0])


@pytest.mark.parametrize("node_size", [1, 2])
def test_the_wire_between_nodes_is_in_use_where_there_are_several(node_size):
    network = Network(ranks=2, cables=(SLOW,), inside=SLOW, node_size=node_size)
    world = World(network, Pace(ranks=2, seconds=0.0))

    def work(rank):
        world.clock(rank).start()
        _train(1)(world.clock(rank), world.lockstep.ports[rank])
        world.lockstep.ports[rank].broadcast_(torch.zeros(1000))
        return world.clock(rank).now()

    assert world.run(work) == pytest.approx([DENSE + 0.005] * 2)
    assert world.timing.wire_seconds == pytest.approx(DENSE + 0.005 if node_size == 1 else 0.0)


def test_rounds_of_one_exchange_come_one_after_the_other_and_a_broadcast_is_waited_for():
    def loop(clock, port):
        clock.step(0)
        port.start(_sum(rounds=3), label="three rounds")
        port.drain()
        port.broadcast_(torch.zeros(1000))

    times = _times(_two(), Pace(ranks=2, seconds=0.0), loop)
    assert times == pytest.approx([3 * DENSE + 0.001 + 0.004] * 2)


def test_nodes_have_wires_of_their_own():
    inside = Cable(bits_per_second=8e7, latency=0.0, headers=0.0)
    network = Network(ranks=4, cables=(SLOW,), inside=inside, node_size=2)
    pace = Pace(ranks=4, seconds=0.1, slow_share=0.25, slow_factor=2.0)

    def loop(clock, port):
        clock.step(0)
        clock.made(ENTRIES)
        port.start(_sum(among="node"), label="in a node")
        port.drain()

    # 4000 bytes there and back in halves at 10 MB a second; the first node does not wait for the second.
    assert _times(network, pace, loop) == pytest.approx([0.1004] * 2 + [0.2004] * 2)

    def leaders(clock, port):
        clock.step(0)
        clock.made(ENTRIES)
        port.start(_asks(AllGather(send=torch.zeros(500, dtype=torch.uint8), among="leaders")), label="leaders")
        port.drain()

    # The last rank is no leader: nobody waits for it, and it for nobody.
    assert _times(network, pace, leaders) == pytest.approx([0.1015, 0.1, 0.1015, 0.2])


def test_jitter_is_drawn_by_seed_rank_and_step():
    pace = Pace(ranks=3, seconds=0.1, jitter=0.3, seed=4)
    drawn = {(rank, step): pace.factor(rank, step=step) for rank in range(3) for step in range(50)}
    assert len(set(drawn.values())) == 150
    assert pace.factor(2, step=7) == Pace(ranks=3, jitter=0.3, seed=4).factor(2, step=7) != 1.0
    logs = torch.tensor(list(drawn.values())).log()
    assert abs(float(logs.mean())) < 0.1
    assert 0.2 < float(logs.std()) < 0.4
    [time] = _times(Network(ranks=1), Pace(ranks=1, seconds=0.1, jitter=0.3, seed=4), _train(3))
    assert time == pytest.approx(0.1 * sum(drawn[0, step] for step in range(3)))


def test_measured_work_is_that_of_the_rank_at_work_times_its_factor():
    seen = {}

    def loop(clock, port):
        clock.step(0)
        before = clock.now()
        sum(range(20_000))
        port.drain()
        seen[port.rank] = clock.now() - before
        clock.charge(10.0)

    pace = Pace(ranks=3, slow_share=0.3, slow_factor=1e6)
    times = _times(Network(ranks=3), pace, loop)
    assert all(0 < seen[rank] < 1000 * seen[2] for rank in (0, 1))
    assert times[0] > 10.0
    assert times[2] > 1e7


def test_what_is_supposed_takes_its_time_until_it_is_measured_again():
    def loop(clock, port):
        clock.suppose(1e6)
        for step in range(4):
            clock.step(step)
            if step == 2:
                # This step has begun: it is measured all the same.
                clock.suppose(None)
            clock.made(ENTRIES)

    [time] = _times(Network(ranks=1), Pace(ranks=1), loop)
    assert 2e6 < time < 3e6


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ranks": 0}, "ranks must be"),
        ({"ranks": 2, "seconds": -1.0}, "seconds must be"),
        ({"ranks": 2, "slow_share": 1.5}, r"slow_share must be in \[0, 1\]"),
        ({"ranks": 2, "outages": (Outage(rank=2, second=0.0, seconds=1.0),)}, "rank 2 cannot stand still"),
    ],
)
def test_a_pace_that_cannot_be_is_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        Pace(**settings)


def test_a_network_and_a_pace_of_unlike_ranks_are_refused():
    with pytest.raises(ValueError, match="the network has 2 ranks, the pace is that of 3"):
        World(_two(), Pace(ranks=3))
