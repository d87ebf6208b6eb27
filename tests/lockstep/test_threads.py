"""A world in which each rank has a thread: the same bits as ranks in turn, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import torch

import laconic
from contracts.vectors import normal
from laconic.collectives import AllReduce
from laconic.errors import GroupError, LaconicError
from laconic.reducer import Reducer
from laconic.transports import Lockstep
from lockstep.ranks import run_ranks
from lockstep.world import MODEL, World


def _sum(value: float, rounds: int = 1):
    for _ in range(rounds):
        value = float((yield AllReduce(send=torch.tensor([value]))))
    return value


def _loop(method, steps, port):
    """An ordinary training loop: what it got in each step, and what it owes."""
    reducer, got = Reducer(method, MODEL, port, dtype=torch.float64), []
    for step in range(steps):
        grad = normal(MODEL.numel, 10 * step + port.rank, torch.float64)
        reducer.begin_step(rates=dict.fromkeys(MODEL.names, 0.5))
        reducer.begin(grad, MODEL)
        reducer.end_step()
        got.append(grad)
    return got, reducer.state_dict()["memory"], (port.wire_bytes, port.collectives)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("method", [laconic.topk(0.3, whole_below=4), laconic.randomk(0.3)], ids=lambda m: m.name)
def test_threads_give_the_bits_of_ranks_in_turn(method, ranks):
    world = World(method, ranks)
    expected = [
        world.step([normal(MODEL.numel, 10 * step + r, torch.float64) for r in range(ranks)]) for step in range(4)
    ]
    for rank, (got, memory, counted) in enumerate(run_ranks(ranks, partial(_loop, method, 4))):
        assert all(torch.equal(mine, means[rank]) for mine, means in zip(got, expected, strict=True))
        assert torch.equal(torch.cat([memory["owed"][name] for name in MODEL.names]), world.owed()[rank])
        port = world.lockstep.ports[rank]
        assert counted == (port.wire_bytes, port.collectives)


def test_a_rank_goes_on_only_when_all_have_drained():
    seen: list[int] = []

    def loop(port):
        for turn in range(20):
            if port.rank == turn % 3:
                time.sleep(0.001)
            seen.append(turn)
            future = port.start(_sum(1.0, rounds=2), label="the sum")
            port.drain()
            assert future.value() == 9.0
        return port.collectives

    assert run_ranks(3, loop) == [40] * 3
    assert seen == sorted(seen)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_broadcast_gives_the_first_ranks_values(ranks):
    def loop(port):
        tensor = torch.full((4,), float(port.rank + 7))
        port.broadcast_(tensor)
        return tensor.tolist(), (port.wire_bytes, port.collectives)

    got = run_ranks(ranks, loop)
    assert [values for values, _ in got] == [[7.0] * 4] * ranks
    assert [counted for _, counted in got] == ([(0, 0)] if ranks == 1 else [(16, 1), (0, 1), (0, 1)])


def test_a_broadcast_needs_threads():
    with pytest.raises(LaconicError, match=r"Lockstep\(\.\.\., threaded=True\)"):
        Lockstep(2).ports[1].broadcast_(torch.zeros(1))
    Lockstep(1).ports[0].broadcast_(torch.zeros(1))


def _ends(world, *others):
    """What ranks that drain raise, after what happens to the first."""
    raised: dict[int, BaseException] = {}

    def wait(port):
        try:
            port.drain()
        except BaseException as error:
            raised[port.rank] = error

    threads = [threading.Thread(target=wait, args=(world.ports[rank],), daemon=True) for rank in others]
    for thread in threads:
        thread.start()
    return threads, raised


def _join(threads):
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("early", [True, False])
def test_a_rank_that_leaves_is_not_waited_for(early):
    world = Lockstep(3, threaded=True)
    if early:
        world.ports[0].leave()
    threads, raised = _ends(world, 1, 2)
    if not early:
        while sum(bool(port.waits_in) for port in world.ports) < 2:
            time.sleep(0.001)
        world.ports[0].leave()
    _join(threads)
    for rank in (1, 2):
        assert isinstance(raised[rank], LaconicError)
        assert f"rank {rank} of 3 waited in vain in drain: rank 0 has left" in str(raised[rank])


@pytest.mark.parametrize("early", [True, False])
def test_an_abort_wakes_all_with_its_cause(early):
    world, cause = Lockstep(3, threaded=True), OSError("the disk is full")
    if early:
        world.abort(cause)
    threads, raised = _ends(world, 0, 1)
    if not early:
        world.abort(cause)
    _join(threads)
    assert all(raised[rank].__cause__ is cause for rank in (0, 1))
    world.abort(ValueError("what came later"))
    with pytest.raises(LaconicError, match="the disk is full"):
        world.ports[2].drain()


def test_ranks_may_leave_one_after_the_other_when_all_is_done():
    def loop(port):
        port.drain()
        time.sleep(0.002 * port.rank)
        return port.rank

    assert run_ranks(4, loop) == [0, 1, 2, 3]


def test_what_an_exchange_raises_on_one_rank_is_raised_and_ends_all():
    def bad():
        yield AllReduce(send=torch.zeros(1))
        raise GroupError("ranks disagree")

    def loop(port):
        port.start(bad() if port.rank == 1 else _sum(1.0), label="a trap")
        try:
            port.drain()
        except LaconicError as error:
            caught.append(error)
            raise

    caught: list[LaconicError] = []
    with pytest.raises(GroupError, match=r"^ranks disagree$"):
        run_ranks(3, loop)
    assert len(caught) == 3
    assert sum(type(error) is GroupError for error in caught) == 1


def test_what_the_last_rank_raises_while_it_acts_wakes_those_that_wait():
    def bad():
        yield AllReduce(send=torch.zeros(1))
        raise GroupError("ranks disagree")

    world = Lockstep(2, threaded=True)
    world.ports[1].start(_sum(1.0), label="a trap")
    threads, raised = _ends(world, 1)
    while not world.ports[1].waits_in:
        time.sleep(0.001)
    world.ports[0].start(bad(), label="a trap")
    with pytest.raises(GroupError, match="ranks disagree"):
        world.ports[0].drain()
    _join(threads)
    assert isinstance(raised[1].__cause__, GroupError)


@pytest.mark.parametrize("rank", [0, 2])
def test_what_a_rank_raises_between_exchanges_is_raised(rank):
    def loop(port):
        if port.rank == rank:
            raise KeyError("no batch")
        port.drain()

    with pytest.raises(KeyError, match="no batch"):
        run_ranks(3, loop)


def test_a_rank_that_ends_its_loop_too_early_is_named():
    def loop(port):
        for _ in range(2 if port.rank == 1 else 3):
            port.drain()

    with pytest.raises(LaconicError, match="rank 1 has left"):
        run_ranks(3, loop)


def test_ranks_in_unlike_places_are_told():
    def loop(port):
        return port.drain() if port.rank else port.broadcast_(torch.zeros(1))

    with pytest.raises(LaconicError, match="ranks wait in unlike places: broadcast_ and drain"):
        run_ranks(2, loop)


def test_ranks_that_ask_for_unlike_things_are_told():
    def loop(port):
        if port.rank == 0:
            port.start(_sum(1.0), label="lonely")
        port.drain()

    with pytest.raises(LaconicError, match="only 1 of 2 ranks agree to talk: lonely"):
        run_ranks(2, loop)


def test_a_rank_that_never_comes_is_waited_for_only_so_long():
    done = threading.Event()

    def loop(port):
        return done.wait(10) if port.rank else port.drain()

    with pytest.raises(TimeoutError, match=r"rank 0, 1 of 2 was not done in 0\.05 s"):
        run_ranks(2, loop, timeout_seconds=0.05)
    done.set()
