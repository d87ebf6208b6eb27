"""The lockstep transport: rounds in submission order, and sums in the order of gloo's ring."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import dyadic, normal, same_bits
from laconic.collectives import AllGather, AllReduce
from laconic.errors import LaconicError
from laconic.transports import Lockstep
from laconic.transports.lockstep import ring_sum


def _rounds(value: float, rounds: int, log: list[str], name: str):
    """Sum a number over ranks, as often as asked."""
    for number in range(rounds):
        value = float((yield AllReduce(send=torch.tensor([value]))))
        log.append(f"{name}{number}")
    return value


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_exchanges_of_several_rounds_take_turns_in_submission_order(ranks):
    world = Lockstep(ranks)
    logs: list[list[str]] = [[] for _ in range(ranks)]
    futures = []
    for port, log in zip(world.ports, logs, strict=True):
        futures.append(port.start(_rounds(1.0, 3, log, "a"), label="a"))
        futures.append(port.start(_rounds(2.0, 2, log, "b"), label="b"))
    assert all(log == [] for log in logs)
    for port in world.ports:
        assert not any(f.done() for f in futures)
        port.drain()
    assert [f.value() for f in futures] == [float(ranks**3), 2.0 * ranks**2] * ranks
    assert all(log == ["a0", "b0", "a1", "b1", "a2"] for log in logs)


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_may_start_and_drain_before_the_next_again_and_again(ranks):
    """After the first round every port still counted as drained: the first rank of the second ran alone."""
    world = Lockstep(ranks)
    for _ in range(3):
        futures = []
        for port in world.ports:
            futures.append(port.start(_rounds(1.0, 1, [], ""), label="again"))
            port.drain()
        assert [f.value() for f in futures] == [float(ranks)] * ranks


def test_a_gather_has_a_row_for_each_rank_in_rank_order():
    world = Lockstep(3)

    def asking(rank: int):
        return (yield AllGather(send=torch.tensor([rank, 10 * rank])))

    futures = [port.start(asking(port.rank), label="rows") for port in world.ports]
    for port in world.ports:
        port.drain()
    assert all(f.value().tolist() == [[0, 0], [1, 10], [2, 20]] for f in futures)


def test_bytes_are_those_handed_over_and_one_rank_hands_over_none():
    for ranks in (1, 2):
        world = Lockstep(ranks)
        for port in world.ports:
            port.start(_rounds(1.0, 3, [], ""), label="bytes")
        for port in world.ports:
            port.drain()
        assert [(p.wire_bytes, p.collectives) for p in world.ports] == ([(0, 0)] if ranks == 1 else [(12, 3)] * 2)


def test_ranks_that_ask_for_unlike_things_are_named():
    def gathering():
        yield AllGather(send=torch.zeros(1))

    world = Lockstep(2)
    world.ports[0].start(gathering(), label="the gather")
    world.ports[1].start(_rounds(1.0, 1, [], ""), label="the sum")
    world.ports[0].drain()
    with pytest.raises(LaconicError, match=r"the gather \(AllGather\); the sum \(AllReduce\)"):
        world.ports[1].drain()


def test_a_rank_that_stays_away_is_missed():
    world = Lockstep(2)
    world.ports[0].start(_rounds(1.0, 1, [], ""), label="lonely")
    world.ports[0].drain()
    with pytest.raises(LaconicError, match="only 1 of 2 ranks agree to talk: lonely"):
        world.ports[1].drain()


@pytest.mark.parametrize("ranks", [0, -1])
def test_a_world_has_at_least_one_rank(ranks):
    with pytest.raises(ValueError, match=f"world_size must be 1 or more, got {ranks}"):
        Lockstep(ranks)


@given(st.integers(0, 60), st.integers(1, 6), st.integers(0, 99))
def test_a_ring_sum_of_exact_numbers_is_the_sum(numel, ranks, seed):
    tensors = [dyadic(numel, seed + rank) for rank in range(ranks)]
    assert torch.equal(ring_sum(tensors), torch.stack(tensors).sum(0))


@given(st.integers(0, 60), st.integers(1, 6), st.integers(0, 99), st.sampled_from([torch.float32, torch.float64]))
def test_every_entry_is_added_around_the_ring_from_some_rank_downwards(numel, ranks, seed, dtype):
    tensors = [normal(numel, seed + rank, dtype) for rank in range(ranks)]
    before = [t.clone() for t in tensors]
    out = ring_sum(tensors)
    for i in range(numel):
        turns = []
        for share in range(ranks):
            total = tensors[(share - 1) % ranks][i].clone()
            for back in range(2, ranks + 1):
                total += tensors[(share - back) % ranks][i]
            turns.append(float(total))
        assert float(out[i]) in turns
    assert all(same_bits(a, b) for a, b in zip(tensors, before, strict=True))


def test_shares_follow_each_other_and_each_begins_its_own_rank_ago():
    ranks, numel = 3, 24
    # Added as 1e16 + 1 - 1e16 the one is lost, in other orders it is not: the bits tell who began.
    values = [1e16, 1.0, -1e16]
    out = ring_sum([torch.full((numel,), v, dtype=torch.float64) for v in values]).tolist()
    expected = []
    for share in range(ranks):
        total = values[(share - 1) % ranks]
        for back in range(2, ranks + 1):
            total += values[(share - back) % ranks]
        expected += [total] * (numel // ranks)
    assert out == expected
    assert len(set(out)) == 2


def test_a_ring_of_one_gives_the_tensor_and_a_ring_of_two_is_a_plain_sum():
    one, two = normal(100, 1), normal(100, 2)
    assert same_bits(ring_sum([one]), one)
    assert same_bits(ring_sum([one, two]), one + two)


def test_a_long_vector_is_summed_whole():
    tensors = [normal(700_001, rank) for rank in range(3)]
    torch.testing.assert_close(ring_sum(tensors), torch.stack(tensors).sum(0))
