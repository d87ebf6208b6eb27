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

from contracts.registry import compressors, everything, exchanges, pairs, selects
from contracts.vectors import DTYPES, Flat, dyadic, normal, same_bits, segments_of, taken_by
from laconic.averaging import dense
from laconic.collectives import AllGather, AllReduce, AllToAll, Request
from laconic.compressors import AdaComp, Dense, StdThreshold, TopK
from laconic.errors import GroupError
from laconic.exchanges import GatherMean, ReduceMean, ShardedMean, SmallestMean, TwoLevel
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Fresh, Mean

SEGMENTS = segments_of([5, 0, 1, 30, 12])
RANKS = [1, 2, 5]

# Those that select once more, of what all ranks sent; what is not selected, its senders keep. Each compressor meets
# one of them, so that a kind meets as many as it has instances; Dense has one.
SELECT = [e for e in exchanges() if isinstance(e, ShardedMean | SmallestMean)]
AGAIN = [(SELECT[i % len(SELECT)], c) for i, c in enumerate([*compressors(), Dense(), Dense()])]
ONCE = [(e, c) for e, c in pairs(accepted=True) if e not in SELECT]

every_pair = pytest.mark.parametrize(("exchange", "compressor"), [*ONCE, *AGAIN], ids=repr)
every_pair_once = pytest.mark.parametrize(("exchange", "compressor"), ONCE, ids=repr)
every_pair_again = pytest.mark.parametrize(("exchange", "compressor"), AGAIN, ids=repr)
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
        own = {"rank": rank} | shared | (each[rank] if each else {})
        envelope = Envelope(
            step=3, world_size=len(xs), fingerprint=5, rates=9, finite=torch.tensor(rank != bad_rank), **own
        )
        futures.append(port.start(exchange.steps(x, SEGMENTS, compressor, envelope), label="the exam"))
    for port in world.ports:
        port.drain()
    means = [future.value() for future in futures]
    return [replace(mean, values=dense(mean.values, x)) for mean, x in zip(means, xs, strict=True)]


def _exact(exchange: Exchange) -> bool:
    """Whether values travel as they are; those that select once more say so of themselves."""
    return exchange.lossless or not isinstance(exchange, ShardedMean | SmallestMean)


def _bare(exchange: Exchange, compressor: Compressor) -> bool:
    """Whether nothing travels but the values, as in DDP."""
    within = exchange.inner if isinstance(exchange, TwoLevel) else exchange
    return within == ReduceMean() and compressor == Dense()


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
    means = _meet(exchange, compressor, xs)
    torch.testing.assert_close(means[0].values, torch.stack(sent).sum(0) / ranks)


@every_pair_once
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


@every_pair_once
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


@every_pair_again
@every_world
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_left_and_the_mean_are_what_was_there(exchange, compressor, ranks, dtype):
    xs = [normal(SEGMENTS.numel, rank, dtype) for rank in range(ranks)]
    there = torch.stack(xs).sum(0)
    means = _meet(exchange, compressor, xs)
    torch.testing.assert_close(torch.stack(xs).sum(0) + ranks * means[0].values, there, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("exchange", "compressor"), [(e, c) for e, c in AGAIN if e.lossless], ids=repr)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_left_and_the_mean_of_exact_numbers_are_exact(exchange, compressor, ranks):
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    there = torch.stack(xs).sum(0)
    means = _meet(exchange, compressor, xs)
    tolerance = 0.0 if selects(compressor) else 1e-14
    left = torch.stack(xs).sum(0)
    torch.testing.assert_close(left + ranks * means[0].values, there, rtol=tolerance, atol=tolerance)


@every_pair_again
@every_world
def test_what_is_counted_as_sent_is_in_the_mean(exchange, compressor, ranks):
    means = _meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(ranks)])
    own = sum(mean.own.positions.numel() + mean.own.known.numel() for mean in means)
    for mean in means:
        assert mean.sent == own <= mean.wanted
        # Nobody sent what is not there.
        assert set(mean.own.positions.tolist()) <= set(range(SEGMENTS.numel))


@pytest.mark.parametrize(("exchange", "compressor"), [(ShardedMean(), c) for c in compressors()], ids=repr)
def test_for_one_rank_it_is_what_gathering_is(exchange, compressor):
    xs = [[normal(SEGMENTS.numel, 1)], [normal(SEGMENTS.numel, 1)]]
    (ours,), (theirs,) = _meet(exchange, compressor, xs[0]), _meet(GatherMean(), compressor, xs[1])
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
    if _bare(exchange, compressor):
        # Where everything is sent the sum itself shows it, and nothing else travels.
        return
    means = _meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(3)], bad_rank=1)
    assert [m.finite for m in means] == [False] * 3


@every_pair_once
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
TOLD = [(e, c) for e, c in [*ONCE, *AGAIN] if e == GatherMean() or e in SELECT]
every_telling_pair = pytest.mark.parametrize(("exchange", "compressor"), TOLD, ids=repr)


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


@every_telling_pair
def test_every_rank_gets_the_mean_loss_and_hears_one_ranks_alarm(exchange, compressor):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(3)]
    each = [{"loss": loss, "alarmed": alarmed} for loss, alarmed in ((1.0, False), (2.5, True), (-0.5, False))]
    for mean in _meet(exchange, compressor, [x.clone() for x in xs], each=each):
        assert (mean.loss, mean.alarmed) == (1.0, True)
    for mean in _meet(exchange, compressor, [x.clone() for x in xs], loss=2.0):
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


@every_telling_pair
@every_world
def test_what_qualified_is_counted_apart_from_what_every_rank_sends(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    sents = [taken_by(compressor, Flat(x, SEGMENTS), 3) for x in xs]
    plan = sents[0].plan
    for mean in _meet(exchange, compressor, xs):
        assert mean.choosable == ranks * sum(s.size for s in plan.choosing)
        assert mean.qualified == sum(int(s.payload.wanted.sum()) for s in sents) <= mean.choosable
        assert mean.wanted == mean.qualified + ranks * plan.known_count
        for i, counts in enumerate(mean.counts.values()):
            assert sum(counts) == sum(int(s.payload.wanted[i]) for s in sents)
            assert len(counts) == ranks


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
        request = next(exchange.steps(x, SEGMENTS, compressor, Envelope(step=0, world_size=3, rank=rank)))
        assert isinstance(request, AllGather | AllReduce | AllToAll)
        sizes.add((type(request), request.send.numel(), request.send.dtype))
    assert len(sizes) == 1


@pytest.mark.parametrize("order", [(1e16, 1.0, -1e16), (1e16, -1e16, 1.0)], ids=str)
@pytest.mark.parametrize("compressor", [Dense(), TopK(density=1.0, whole_below=0)], ids=repr)
@pytest.mark.parametrize("exchange", [GatherMean(), ShardedMean()], ids=repr)
def test_messages_are_added_in_rank_order(exchange, compressor, order):
    xs = [torch.full((SEGMENTS.numel,), value, dtype=torch.float64) for value in order]
    expected = (order[0] * (1 / 3) + order[1] * (1 / 3)) + order[2] * (1 / 3)
    assert set(_meet(exchange, compressor, xs)[0].values.tolist()) == {expected}


def _reply(requests: Sequence[Request], rank: int) -> Tensor:
    """What a rank hears of what all asked for."""
    sends = [request.send for request in requests]
    if isinstance(requests[0], AllToAll):
        return torch.cat([r.send.split(r.given)[rank] for r in requests if isinstance(r, AllToAll)])
    rows = torch.stack(sends)
    return rows if isinstance(requests[0], AllGather) else rows.sum(0)


# A dense all-reduce is as bare as DDP's own: the handshake must do.
CHECKED = [(e, c) for e, c in [*ONCE, *AGAIN] if not _bare(e, c)]


@pytest.mark.parametrize(("exchange", "compressor"), CHECKED, ids=repr)
@pytest.mark.parametrize("differs", ["step", "fingerprint", "rates"])
def test_every_rank_refuses_to_go_on_with_a_rank_that_does_not_agree(exchange, compressor, differs):
    own, draws = (
        Envelope(step=3, world_size=3, fingerprint=5, rates=9),
        [normal(SEGMENTS.numel, r) for r in range(3)],
    )
    for stranger in range(3):
        said = [replace(own, rank=rank, **({differs: 4} if rank == stranger else {})) for rank in range(3)]
        ranks = [exchange.steps(x.clone(), SEGMENTS, compressor, e) for x, e in zip(draws, said, strict=True)]
        requests = [next(steps) for steps in ranks]
        for rank, steps in enumerate(ranks):
            with pytest.raises(GroupError, match=r"rank is at .*\. \(?\w+"):
                steps.send(_reply(requests, rank))


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
