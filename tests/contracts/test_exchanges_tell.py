"""The exam of every exchange with every compressor: what ranks tell each other beside values, and must agree on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from contracts.meeting import AGAIN, ONCE, SEGMENTS, SELECT, bare, every_pair, every_world, meet
from contracts.registry import pairs
from contracts.vectors import Flat, normal, taken_by
from laconic.collectives import AllGather, AllReduce, AllToAll, Request
from laconic.compressors import StdThreshold
from laconic.errors import GroupError
from laconic.exchanges import GatherMean, InParts, LedMean
from laconic.types import Envelope, Fresh

GATHERED = [c for e, c in pairs(accepted=True) if e == GatherMean()]
TOLD = [(e, c) for e, c in [*ONCE, *AGAIN] if e == GatherMean() or e in SELECT]
every_telling_pair = pytest.mark.parametrize(("exchange", "compressor"), TOLD, ids=repr)
# A dense all-reduce is as bare as DDP's own: the handshake must do.
CHECKED = [(e, c) for e, c in [*ONCE, *AGAIN] if not bare(e, c)]


def _reply(requests: Sequence[Request], rank: int) -> Tensor:
    """What a rank hears of what all asked for."""
    sends = [request.send for request in requests]
    if isinstance(requests[0], AllToAll):
        return torch.cat([r.send.split(r.given)[rank] for r in requests if isinstance(r, AllToAll)])
    rows = torch.stack(sends)
    return rows if isinstance(requests[0], AllGather) else rows.sum(0)


@every_pair
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_rank_that_is_not_finite_is_heard_by_every_rank(exchange, compressor, ranks):
    for bad_rank, bad in itertools.product(range(ranks), [math.nan, math.inf]):
        xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
        xs[bad_rank][7] = bad
        assert [m.finite for m in meet(exchange, compressor, xs, bad_rank=bad_rank)] == [False] * ranks
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    assert all(m.finite for m in meet(exchange, compressor, xs))


@every_pair
def test_a_rank_says_that_it_is_not_finite_though_what_it_sends_is(exchange, compressor):
    if bare(exchange, compressor):
        # Where everything is sent the sum itself shows it, and nothing else travels.
        return
    means = meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(3)], bad_rank=1)
    assert [m.finite for m in means] == [False] * 3


@every_pair
@every_world
def test_every_rank_gets_the_sum_of_the_notes(exchange, compressor, ranks):
    notes = [torch.tensor([1, rank % 2, 0, rank], dtype=torch.uint8) for rank in range(ranks)]
    each = [{"notes": n} for n in notes]
    means = meet(exchange, compressor, [normal(SEGMENTS.numel, r) for r in range(ranks)], each=each)
    expected = torch.stack(notes).sum(0)
    for mean in means:
        assert mean.notes.tolist() == expected.tolist()
    without = meet(exchange, compressor, [normal(SEGMENTS.numel, r) for r in range(ranks)])
    assert all(mean.notes is None for mean in without)


@pytest.mark.parametrize("compressor", GATHERED, ids=repr)
@every_world
def test_gathered_counts_are_what_each_rank_counted_and_none_where_all_know(compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    sents = [taken_by(compressor, Flat(x, SEGMENTS), 3) for x in xs]
    plan = sents[0].plan
    for mean in meet(GatherMean(), compressor, xs):
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
    for mean in meet(exchange, compressor, [x.clone() for x in xs], each=each):
        assert (mean.loss, mean.alarmed) == (1.0, True)
    for mean in meet(exchange, compressor, [x.clone() for x in xs], loss=2.0):
        assert (mean.loss, mean.alarmed) == (2.0, False)


@pytest.mark.parametrize("compressor", GATHERED, ids=repr)
def test_the_loss_is_the_mean_over_the_ranks_that_told_one(compressor):
    """A rank that has no batch left tells none; an infinite loss is told all the same."""
    some = itertools.product((math.nan, 1.0, -3.0), repeat=3)
    for losses in (*some, (math.nan, math.inf, 1.0)):
        xs = [normal(SEGMENTS.numel, rank) for rank in range(3)]
        told = [loss for loss in losses if not math.isnan(loss)]
        expected = sum(told) / len(told) if told else math.nan
        for mean in meet(GatherMean(), compressor, xs, each=[{"loss": loss} for loss in losses]):
            assert mean.loss == pytest.approx(expected, nan_ok=True)


@every_telling_pair
@every_world
def test_what_qualified_is_counted_apart_from_what_every_rank_sends(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    sents = [taken_by(compressor, Flat(x, SEGMENTS), 3) for x in xs]
    plan = sents[0].plan
    for mean in meet(exchange, compressor, xs):
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
    for mean in meet(GatherMean(), rule, xs, rooms=rooms, fresh=fresh):
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
        if isinstance(exchange.inner if isinstance(exchange, InParts) else exchange, LedMean):
            # A digest told them; now they say what they are at.
            requests = [steps.send(_reply(requests, rank)) for rank, steps in enumerate(ranks)]
        for rank, steps in enumerate(ranks):
            with pytest.raises(GroupError, match=r"rank is at .*\. \(?\w+"):
                steps.send(_reply(requests, rank))
