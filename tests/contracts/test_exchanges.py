"""The exam of every exchange with every compressor: the mean of what was sent, the same on all ranks."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch
from torch import Tensor

from contracts.meeting import (
    AGAIN,
    ONCE,
    SEGMENTS,
    TAKEN,
    every_pair,
    every_pair_again,
    every_pair_once,
    every_world,
    meet,
)
from contracts.registry import everything, exchanges, selects
from contracts.vectors import DTYPES, Flat, dyadic, normal, same_bits, segments_of, taken_by
from laconic.averaging import dense
from laconic.compressors import AdaComp, Dense, TopK
from laconic.exchanges import GatherMean, LedMean, ShardedMean, SmallestMean
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange


def _exact(exchange: Exchange) -> bool:
    """Whether values travel as they are; those that select once more say so of themselves."""
    return exchange.lossless or not isinstance(exchange, LedMean | ShardedMean | SmallestMean)


def _decoded(compressor: Compressor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a rank's message stands for, dense, and what it leaves."""
    sent = taken_by(compressor, Flat(x, SEGMENTS), 3)
    return sent.decoded(), sent.left


@every_pair_once
@every_world
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_mean_is_the_mean_of_what_the_messages_say(exchange, compressor, ranks, dtype):
    xs = [normal(SEGMENTS.numel, rank, dtype) for rank in range(ranks)]
    sent = [_decoded(compressor, x)[0] for x in xs]
    means = meet(exchange, compressor, xs)
    torch.testing.assert_close(means[0].values, torch.stack(sent).sum(0) / ranks)


@every_pair_once
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_mean_of_exact_numbers_is_exact(exchange, compressor, ranks):
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    sent = [_decoded(compressor, x)[0] for x in xs]
    means = meet(exchange, compressor, xs)
    # Means of bin maxima are no exact numbers.
    tolerance = 1e-15 if isinstance(compressor, AdaComp) else 0.0
    torch.testing.assert_close(means[0].values, torch.stack(sent).sum(0) / ranks, rtol=tolerance, atol=tolerance)


@every_pair
@every_world
def test_every_rank_gets_the_same_bits(exchange, compressor, ranks):
    first, *others = meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(ranks)])
    for mean in others:
        assert same_bits(mean.values, first.values)
        assert (mean.finite, mean.sent, mean.wanted) == (first.finite, first.sent, first.wanted)
        assert (mean.counts, mean.rooms) == (first.counts, first.rooms)


@every_pair_once
@every_world
def test_what_a_rank_did_not_send_is_left(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    left = [_decoded(compressor, x)[1] for x in xs]
    meet(exchange, compressor, xs)
    if isinstance(compressor, Dense):
        # Where everything is sent nothing is left, and the exchange may put the mean itself there.
        assert all(not x.any() for x in left)
        return
    for x, expected in zip(xs, left, strict=True):
        assert same_bits(x, expected)


@every_pair_again
@every_world
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_left_and_the_mean_are_what_was_there(exchange, compressor, ranks, dtype):
    xs = [normal(SEGMENTS.numel, rank, dtype) for rank in range(ranks)]
    there = torch.stack(xs).sum(0)
    means = meet(exchange, compressor, xs)
    torch.testing.assert_close(torch.stack(xs).sum(0) + ranks * means[0].values, there, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("exchange", "compressor"), [(e, c) for e, c in AGAIN if e.lossless], ids=repr)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_left_and_the_mean_of_exact_numbers_are_exact(exchange, compressor, ranks):
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    there = torch.stack(xs).sum(0)
    means = meet(exchange, compressor, xs)
    tolerance = 0.0 if selects(compressor) else 1e-14
    left = torch.stack(xs).sum(0)
    torch.testing.assert_close(left + ranks * means[0].values, there, rtol=tolerance, atol=tolerance)


@every_pair_again
@every_world
def test_what_is_counted_as_sent_is_in_the_mean(exchange, compressor, ranks):
    means = meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(ranks)])
    own = sum(mean.own.positions.numel() + mean.own.known.numel() for mean in means)
    for mean in means:
        assert mean.sent == own <= mean.wanted
        # Nobody sent what is not there.
        assert set(mean.own.positions.tolist()) <= set(range(SEGMENTS.numel))


@pytest.mark.parametrize(("exchange", "compressor"), [(ShardedMean(), c) for c in TAKEN], ids=repr)
def test_for_one_rank_it_is_what_gathering_is(exchange, compressor):
    xs = [[normal(SEGMENTS.numel, 1)], [normal(SEGMENTS.numel, 1)]]
    (ours,), (theirs,) = meet(exchange, compressor, xs[0]), meet(GatherMean(), compressor, xs[1])
    assert same_bits(ours.values, theirs.values)
    assert same_bits(xs[0][0], xs[1][0])
    assert (ours.sent, ours.wanted, ours.counts, ours.rooms) == (
        theirs.sent,
        theirs.wanted,
        theirs.counts,
        theirs.rooms,
    )


@pytest.mark.parametrize(
    ("exchange", "compressor"), [(e, c) for e, c in [*ONCE, *AGAIN] if everything(c) and _exact(e)], ids=repr
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_with_everything_sent_it_is_the_dense_mean(exchange, compressor, ranks):
    sends_all = everything(compressor)
    assert sends_all is not None
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    expected = torch.stack(xs).sum(0) / ranks
    for mean in meet(exchange, sends_all, xs):
        assert torch.equal(mean.values, expected)
        assert mean.sent == mean.wanted == ranks * SEGMENTS.numel


@every_pair_once
@every_world
def test_what_is_counted_as_sent_was_sent(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    # No entry of a normal draw is zero, so what was sent is what is not zero.
    sent = sum(int(_decoded(compressor, x)[0].count_nonzero()) for x in xs)
    for mean in meet(exchange, compressor, xs):
        assert mean.sent == sent
        assert mean.wanted >= sent


@pytest.mark.parametrize("order", [(1e16, 1.0, -1e16), (1e16, -1e16, 1.0)], ids=str)
@pytest.mark.parametrize("compressor", [Dense(), TopK(density=1.0, whole_below=0)], ids=repr)
@pytest.mark.parametrize("exchange", [GatherMean(), ShardedMean()], ids=repr)
def test_messages_are_added_in_rank_order(exchange, compressor, order):
    xs = [torch.full((SEGMENTS.numel,), value, dtype=torch.float64) for value in order]
    expected = (order[0] * (1 / 3) + order[1] * (1 / 3)) + order[2] * (1 / 3)
    assert set(meet(exchange, compressor, xs)[0].values.tolist()) == {expected}


@pytest.mark.parametrize("exchange", exchanges(), ids=repr)
def test_an_exchange_is_frozen_data(exchange):
    twin = pickle.loads(pickle.dumps(exchange))
    assert twin == exchange
    assert hash(twin) == hash(exchange)
    assert dataclasses.is_dataclass(exchange)
    with pytest.raises(dataclasses.FrozenInstanceError):
        exchange.anything = 1


@every_pair
def test_vectors_without_entries_can_be_exchanged(exchange, compressor):
    empty = segments_of([0, 0])
    world = Lockstep(2)
    steps = [
        exchange.steps(torch.empty(0), empty, compressor, Envelope(step=0, world_size=2, rank=rank))
        for rank in range(2)
    ]
    futures = [port.start(s, label="nothing") for port, s in zip(world.ports, steps, strict=True)]
    for port in world.ports:
        port.drain()
    assert all(f.value().finite and dense(f.value().values, torch.empty(0)).numel() == 0 for f in futures)
