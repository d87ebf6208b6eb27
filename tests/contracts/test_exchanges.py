"""The exam of every exchange with every compressor: the mean of what was sent, the same on all ranks."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from contracts.registry import accepts, compressors, exchanges, pairs
from contracts.vectors import DTYPES, dyadic, normal, same_bits, segments_of
from laconic.compressors import Dense, TopK
from laconic.errors import GroupError
from laconic.exchanges import GatherMean, ReduceMean
from laconic.transports import Lockstep
from laconic.types import AllGather, AllReduce, Compressor, Envelope, Exchange, Mean, Segments, Sparsifier

SEGMENTS = segments_of([5, 0, 1, 30, 12])
RANKS = [1, 2, 3, 5]

every_pair = pytest.mark.parametrize(("exchange", "compressor"), pairs(accepted=True), ids=repr)
every_world = pytest.mark.parametrize("ranks", RANKS)


def _meet(
    exchange: Exchange,
    compressor: Compressor,
    xs: Sequence[Tensor],
    *,
    step: int = 3,
    bad_rank: int | None = None,
    notes: Sequence[Tensor] | None = None,
) -> list[Mean]:
    """Run one exchange on as many ranks as there are vectors; return what each rank got."""
    world, futures = Lockstep(len(xs)), []
    for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
        envelope = Envelope(
            step=step,
            world_size=len(xs),
            fingerprint=5,
            rates=9,
            finite=rank != bad_rank,
            notes=notes[rank] if notes else None,
        )
        futures.append(port.start(exchange.steps(x, SEGMENTS, compressor, envelope), label="the exam"))
    for port in world.ports:
        port.drain()
    return [future.value() for future in futures]


def _decoded(compressor: Compressor, x: Tensor, segments: Segments, step: int) -> tuple[Tensor, Tensor]:
    """What a rank's message stands for, dense, and what it leaves."""
    plan, left = compressor.plan(segments, step=step), x.clone()
    payload = compressor.compress_(left, segments, plan)
    sent = torch.zeros_like(x)
    sent[plan.known] += payload.known
    sent[payload.positions] += payload.values
    return sent, left


@every_pair
@every_world
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_mean_is_the_mean_of_what_the_messages_say(exchange, compressor, ranks, dtype):
    xs = [normal(SEGMENTS.numel, rank, dtype) for rank in range(ranks)]
    sent = [_decoded(compressor, x, SEGMENTS, 3)[0] for x in xs]
    means = _meet(exchange, compressor, xs)
    torch.testing.assert_close(means[0].values, torch.stack(sent).sum(0) / ranks)


@every_pair
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_mean_of_exact_numbers_is_exact(exchange, compressor, ranks):
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    sent = [_decoded(compressor, x, SEGMENTS, 3)[0] for x in xs]
    means = _meet(exchange, compressor, xs)
    assert torch.equal(means[0].values, torch.stack(sent).sum(0) / ranks)


@every_pair
@every_world
def test_every_rank_gets_the_same_bits(exchange, compressor, ranks):
    first, *others = _meet(exchange, compressor, [normal(SEGMENTS.numel, rank) for rank in range(ranks)])
    for mean in others:
        assert same_bits(mean.values, first.values)
        assert (mean.finite, mean.sent, mean.wanted) == (first.finite, first.sent, first.wanted)


@every_pair
@every_world
def test_what_a_rank_did_not_send_is_left(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    left = [_decoded(compressor, x, SEGMENTS, 3)[1] for x in xs]
    _meet(exchange, compressor, xs)
    if isinstance(compressor, Dense):
        # Where everything is sent nothing is left, and the exchange may put the mean itself there.
        assert all(not x.any() for x in left)
        return
    for x, expected in zip(xs, left, strict=True):
        assert same_bits(x, expected)


@pytest.mark.parametrize(("exchange", "compressor"), pairs(accepted=True), ids=repr)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_with_everything_sent_it_is_the_dense_mean(exchange, compressor, ranks):
    everything = compressor.at_density(1.0) if isinstance(compressor, Sparsifier) else Dense()
    xs = [dyadic(SEGMENTS.numel, rank) for rank in range(ranks)]
    expected = torch.stack(xs).sum(0) / ranks
    for mean in _meet(exchange, everything, xs):
        assert torch.equal(mean.values, expected)
        assert mean.sent == mean.wanted == ranks * SEGMENTS.numel


@every_pair
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_rank_that_is_not_finite_is_heard_by_every_rank(exchange, compressor, ranks):
    for bad_rank in range(ranks):
        xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
        assert [m.finite for m in _meet(exchange, compressor, xs, bad_rank=bad_rank)] == [False] * ranks
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    assert all(m.finite for m in _meet(exchange, compressor, xs))


@every_pair
@every_world
def test_what_is_counted_as_sent_was_sent(exchange, compressor, ranks):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(ranks)]
    # No entry of a normal draw is zero, so what was sent is what is not zero.
    sent = sum(int(_decoded(compressor, x, SEGMENTS, 3)[0].count_nonzero()) for x in xs)
    for mean in _meet(exchange, compressor, xs):
        assert mean.sent == sent
        assert mean.wanted >= sent


@every_pair
@every_world
def test_every_rank_gets_the_sum_of_the_notes(exchange, compressor, ranks):
    notes = [torch.tensor([1, rank % 2, 0, rank], dtype=torch.uint8) for rank in range(ranks)]
    means = _meet(exchange, compressor, [normal(SEGMENTS.numel, r) for r in range(ranks)], notes=notes)
    expected = torch.stack(notes).sum(0)
    for mean in means:
        assert mean.notes.tolist() == expected.tolist()
    without = _meet(exchange, compressor, [normal(SEGMENTS.numel, r) for r in range(ranks)])
    assert all(mean.notes is None for mean in without)


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
    expected = ((order[0] + order[1]) + order[2]) * (1 / 3)
    assert set(_meet(GatherMean(), compressor, xs)[0].values.tolist()) == {expected}


# A dense all-reduce is as bare as DDP's own: the handshake must do.
CHECKED = [(e, c) for e, c in pairs(accepted=True) if not (e == ReduceMean() and c == Dense())]


@pytest.mark.parametrize(("exchange", "compressor"), CHECKED, ids=repr)
@pytest.mark.parametrize("differs", ["step", "fingerprint", "rates"])
@pytest.mark.parametrize("stranger", [0, 1, 2])
def test_every_rank_refuses_to_go_on_with_a_rank_that_does_not_agree(exchange, compressor, differs, stranger):
    own = Envelope(step=3, world_size=3, fingerprint=5, rates=9)
    envelopes = [replace(own, **{differs: 4}) if rank == stranger else own for rank in range(3)]
    ranks = [exchange.steps(normal(SEGMENTS.numel, r), SEGMENTS, compressor, e) for r, e in enumerate(envelopes)]
    sends = torch.stack([next(steps).send for steps in ranks])
    reply = sends if exchange == GatherMean() else sends.sum(0)
    for steps in ranks:
        with pytest.raises(GroupError, match=r"rank is at .*\. \(?\w+"):
            steps.send(reply.clone())


@pytest.mark.parametrize(("exchange", "compressor"), pairs(accepted=False), ids=repr)
def test_a_pair_that_cannot_work_is_refused_before_any_rank_talks(exchange, compressor):
    with pytest.raises(ValueError, match=rf"{exchange.name} .*{compressor.name}.*\. Use \w+"):
        exchange.check(compressor)


@pytest.mark.parametrize("compressor", compressors(), ids=repr)
def test_every_compressor_has_an_exchange(compressor):
    assert any(accepts(exchange, compressor) for exchange in exchanges())


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
    assert all(f.value().finite and f.value().values.numel() == 0 for f in futures)
