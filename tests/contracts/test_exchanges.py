"""The exam of every exchange with every compressor: the mean of what was sent, the same on all ranks."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.registry import everything, exchanges, pairs
from contracts.vectors import DTYPES, Flat, dyadic, normal, same_bits, segments_of, taken_by
from laconic.averaging import dense
from laconic.collectives import AllGather, AllReduce
from laconic.compressors import AdaComp, Dense, StdThreshold, TopK
from laconic.errors import GroupError
from laconic.exchanges import GatherMean, ReduceMean
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Fresh, Mean

SEGMENTS = segments_of([5, 0, 1, 30, 12])
RANKS = [1, 2, 5]

every_pair = pytest.mark.parametrize(("exchange", "compressor"), pairs(accepted=True), ids=repr)
every_world = pytest.mark.parametrize("ranks", RANKS)


def _meet(
    exchange: Exchange,
    compressor: Compressor,
    xs: Sequence[Tensor],
    *,
    bad_rank: int | None = None,
    each: Sequence[dict[str, Any]] | None = None,
    **shared: Any,
) -> list[Mean]:
    """Run one exchange on as many ranks as there are vectors; return what each rank got."""
    world, futures = Lockstep(len(xs)), []
    for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
        own = shared | (each[rank] if each else {})
        envelope = Envelope(
            step=3, world_size=len(xs), fingerprint=5, rates=9, finite=torch.tensor(rank != bad_rank), **own
        )
        futures.append(port.start(exchange.steps(x, SEGMENTS, compressor, envelope), label="the exam"))
    for port in world.ports:
        port.drain()
    means = [future.value() for future in futures]
    return [replace(mean, values=dense(mean.values, x)) for mean, x in zip(means, xs, strict=True)]


def _decoded(compressor: Compressor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a rank's message stands for, dense, and what it leaves."""
    sent = taken_by(compressor, Flat(x, SEGMENTS), 3)
    return sent.decoded(), sent.left


@every_pair
@every_world
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_mean_is_the_mean_of_what_the_messages_say(exchange, compressor, ranks, dtype):
    xs = [normal(SEGMENTS.numel, rank, dtype) for rank in range(ranks)]
    sent = [_decoded(compressor, x)[0] for x in xs]
    means = _meet(exchange, compressor, xs)
    torch.testing.assert_close(means[0].values, torch.stack(sent).sum(0) / ranks)


@every_pair
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_mean_of_exact_numbers_is_exact(exchange, compressor, ranks):
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    sent = [_decoded(compressor, x)[0] for x in xs]
    means = _meet(exchange, compressor, xs)
    # Means of bin maxima are no exact numbers.
    tolerance = 1e-15 if isinstance(compressor, AdaComp) else 0.0
    torch.testing.assert_close(means[0].values, torch.stack(sent).sum(0) / ranks, rtol=tolerance, atol=tolerance)


@every_pair
@every_world
def test_every_rank_gets_the_same_bits(exchange, compressor, ranks):
    first, *others = _meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(ranks)])
    for mean in others:
        assert same_bits(mean.values, first.values)
        assert (mean.finite, mean.sent, mean.wanted) == (first.finite, first.sent, first.wanted)
        assert (mean.counts, mean.rooms) == (first.counts, first.rooms)


@every_pair
@every_world
def test_what_a_rank_did_not_send_is_left(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    left = [_decoded(compressor, x)[1] for x in xs]
    _meet(exchange, compressor, xs)
    if isinstance(compressor, Dense):
        # Where everything is sent nothing is left, and the exchange may put the mean itself there.
        assert all(not x.any() for x in left)
        return
    for x, expected in zip(xs, left, strict=True):
        assert same_bits(x, expected)


@pytest.mark.parametrize(
    ("exchange", "compressor"), [(e, c) for e, c in pairs(accepted=True) if everything(c)], ids=repr
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_with_everything_sent_it_is_the_dense_mean(exchange, compressor, ranks):
    sends_all = everything(compressor)
    assert sends_all is not None
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    expected = torch.stack(xs).sum(0) / ranks
    for mean in _meet(exchange, sends_all, xs):
        assert torch.equal(mean.values, expected)
        assert mean.sent == mean.wanted == ranks * SEGMENTS.numel


@every_pair
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_rank_that_is_not_finite_is_heard_by_every_rank(exchange, compressor, ranks):
    for bad_rank, bad in itertools.product(range(ranks), [math.nan, math.inf]):
        xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
        xs[bad_rank][7] = bad
        assert [m.finite for m in _meet(exchange, compressor, xs, bad_rank=bad_rank)] == [False] * ranks
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    assert all(m.finite for m in _meet(exchange, compressor, xs))


@every_pair
def test_a_rank_says_that_it_is_not_finite_though_what_it_sends_is(exchange, compressor):
    if (exchange, compressor) == (ReduceMean(), Dense()):
        # Where everything is sent the sum itself shows it, and nothing else travels.
        return
    means = _meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(3)], bad_rank=1)
    assert [m.finite for m in means] == [False] * 3


@every_pair
@every_world
def test_what_is_counted_as_sent_was_sent(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    # No entry of a normal draw is zero, so what was sent is what is not zero.
    sent = sum(int(_decoded(compressor, x)[0].count_nonzero()) for x in xs)
    for mean in _meet(exchange, compressor, xs):
        assert mean.sent == sent
        assert mean.wanted >= sent


@every_pair
@every_world
def test_every_rank_gets_the_sum_of_the_notes(exchange, compressor, ranks):
    notes = [torch.tensor([1, rank % 2, 0, rank], dtype=torch.uint8) for rank in range(ranks)]
    each = [{"notes": n} for n in notes]
    means = _meet(exchange, compressor, [normal(SEGMENTS.numel, r) for r in range(ranks)], each=each)
    expected = torch.stack(notes).sum(0)
    for mean in means:
        assert mean.notes.tolist() == expected.tolist()
    without = _meet(exchange, compressor, [normal(SEGMENTS.numel, r) for r in range(ranks)])
    assert all(mean.notes is None for mean in without)


GATHERED = [c for e, c in pairs(accepted=True) if e == GatherMean()]


@pytest.mark.parametrize("compressor", GATHERED, ids=repr)
@every_world
def test_gathered_counts_are_what_each_rank_counted_and_none_where_all_know(compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    sents = [taken_by(compressor, Flat(x, SEGMENTS), 3) for x in xs]
    plan = sents[0].plan
    for mean in _meet(GatherMean(), compressor, xs):
        assert mean.rooms == dict(zip(plan.choosing.names, plan.rooms, strict=True))
        if not compressor.counts_vary:
            assert mean.counts == {}
        else:
            wanted = torch.stack([s.payload.wanted for s in sents])
            said = {name: tuple(wanted[:, i].tolist()) for i, name in enumerate(plan.choosing.names)}
            assert mean.counts == said
            assert mean.wanted == int(wanted.sum()) + ranks * plan.known_count
        assert mean.own is not None


@pytest.mark.parametrize("compressor", GATHERED, ids=repr)
def test_every_rank_gets_the_mean_loss_and_hears_one_ranks_alarm(compressor):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(3)]
    each = [{"loss": loss, "alarmed": alarmed} for loss, alarmed in ((1.0, False), (2.5, True), (-0.5, False))]
    for mean in _meet(GatherMean(), compressor, [x.clone() for x in xs], each=each):
        assert (mean.loss, mean.alarmed) == (1.0, True)
    for mean in _meet(GatherMean(), compressor, [x.clone() for x in xs], loss=2.0):
        assert (mean.loss, mean.alarmed) == (2.0, False)


@pytest.mark.parametrize("compressor", GATHERED, ids=repr)
def test_the_loss_is_the_mean_over_the_ranks_that_told_one(compressor):
    """A rank that has no batch left tells none; an infinite loss is told all the same."""
    some = itertools.product((math.nan, 1.0, -3.0), repeat=3)
    for losses in (*some, (math.nan, math.inf, 1.0)):
        xs = [normal(SEGMENTS.numel, rank) for rank in range(3)]
        told = [loss for loss in losses if not math.isnan(loss)]
        expected = sum(told) / len(told) if told else math.nan
        for mean in _meet(GatherMean(), compressor, xs, each=[{"loss": loss} for loss in losses]):
            assert mean.loss == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("compressor", GATHERED, ids=repr)
@every_world
def test_what_qualified_is_counted_apart_from_what_every_rank_sends(compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    sents = [taken_by(compressor, Flat(x, SEGMENTS), 3) for x in xs]
    plan = sents[0].plan
    for mean in _meet(GatherMean(), compressor, xs):
        assert mean.choosable == ranks * sum(s.size for s in plan.choosing)
        assert mean.qualified == sum(int(s.payload.wanted.sum()) for s in sents) <= mean.choosable
        assert mean.wanted == mean.qualified + ranks * plan.known_count


def test_an_exchange_goes_by_the_agreed_rooms_and_what_it_is_told_of_the_gradient():
    """The vector alone has a deviation of about 1; the fresh gradient's is told to be 0."""
    xs = [normal(SEGMENTS.numel, rank) for rank in range(2)]
    rule, nothing = StdThreshold(c=2.0, whole_below=0), torch.zeros(len(SEGMENTS))
    fresh = Fresh(deviation=nothing, running=nothing, overall=torch.zeros(()), largest=nothing + 9.0)
    rooms = {"p0": 1, "p3": 2}
    for mean in _meet(GatherMean(), rule, xs, rooms=rooms, fresh=fresh):
        assert mean.rooms == {"p0": 1, "p1": 0, "p2": 1, "p3": 2, "p4": 3}
        assert mean.counts == {"p0": (5, 5), "p1": (0, 0), "p2": (1, 1), "p3": (30, 30), "p4": (12, 12)}
        assert (mean.sent, mean.wanted) == (2 * 7, 2 * 48)
    assert [int(x.count_nonzero()) for x in xs] == [41, 41]


@every_pair
def test_an_exchange_only_asks_and_asks_for_equally_much_on_every_rank(exchange, compressor):
    sizes = set()
    for rank in range(3):
        x = torch.zeros(SEGMENTS.numel) if rank == 2 else normal(SEGMENTS.numel, rank)
        request = next(exchange.steps(x, SEGMENTS, compressor, Envelope(step=0, world_size=3)))
        assert isinstance(request, AllGather | AllReduce)
        sizes.add((type(request), request.send.numel(), request.send.dtype))
    assert len(sizes) == 1


@pytest.mark.parametrize("order", [(1e16, 1.0, -1e16), (1e16, -1e16, 1.0)], ids=str)
@pytest.mark.parametrize("compressor", [Dense(), TopK(density=1.0, whole_below=0)], ids=repr)
def test_gathered_messages_are_added_in_rank_order(compressor, order):
    xs = [torch.full((SEGMENTS.numel,), value, dtype=torch.float64) for value in order]
    expected = (order[0] * (1 / 3) + order[1] * (1 / 3)) + order[2] * (1 / 3)
    assert set(_meet(GatherMean(), compressor, xs)[0].values.tolist()) == {expected}


# A dense all-reduce is as bare as DDP's own: the handshake must do.
CHECKED = [(e, c) for e, c in pairs(accepted=True) if not (e == ReduceMean() and c == Dense())]


@pytest.mark.parametrize(("exchange", "compressor"), CHECKED, ids=repr)
@pytest.mark.parametrize("differs", ["step", "fingerprint", "rates"])
def test_every_rank_refuses_to_go_on_with_a_rank_that_does_not_agree(exchange, compressor, differs):
    own, draws = (
        Envelope(step=3, world_size=3, fingerprint=5, rates=9),
        [normal(SEGMENTS.numel, r) for r in range(3)],
    )
    for stranger in range(3):
        said = [replace(own, **{differs: 4}) if rank == stranger else own for rank in range(3)]
        ranks = [exchange.steps(x.clone(), SEGMENTS, compressor, e) for x, e in zip(draws, said, strict=True)]
        sends = torch.stack([next(steps).send for steps in ranks])
        reply = sends if exchange == GatherMean() else sends.sum(0)
        for steps in ranks:
            with pytest.raises(GroupError, match=r"rank is at .*\. \(?\w+"):
                steps.send(reply.clone())


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
    steps = [exchange.steps(torch.empty(0), empty, compressor, Envelope(step=0, world_size=2)) for _ in range(2)]
    futures = [port.start(s, label="nothing") for port, s in zip(world.ports, steps, strict=True)]
    for port in world.ports:
        port.drain()
    assert all(f.value().finite and dense(f.value().values, torch.empty(0)).numel() == 0 for f in futures)
