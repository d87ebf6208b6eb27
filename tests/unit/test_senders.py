"""Some ranks send and all hear: the request, the mean over senders, the memory of who did not send, and decay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.futures import Future

import laconic
from contracts.registry import compressors
from contracts.vectors import Flat, normal, same_bits, segments_of, taken_by
from covering import in_turn
from laconic.averaging import add_mean_, dense
from laconic.collectives import AllGather
from laconic.compressors import Dense, GaussianK, TopK
from laconic.exchanges import GatherMean, ReduceMean
from laconic.job import Job, Part
from laconic.memory import Memory
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Envelope, Gathered, Mean, Payload

SEGMENTS = segments_of([5, 0, 1, 30, 12])
SOME = [(0,), (2,), (0, 3), (1, 2, 3), (0, 1, 2, 3)]
every_group = pytest.mark.parametrize("senders", SOME, ids=str)
every_compressor = pytest.mark.parametrize("compressor", compressors(), ids=repr)
compressors_in_turn = pytest.mark.parametrize(("compressor", "senders"), in_turn(compressors(), SOME, ids=repr))


def _meet(compressor, xs, senders, *, exchange=None, notes=None, each=None, **shared):
    """Run an exchange of four ranks; return what each rank got, and the world."""
    world, futures = Lockstep(len(xs)), []
    for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
        own = shared | (each[rank] if each else {}) | ({"notes": notes[rank]} if notes else {})
        envelope = Envelope(step=3, world_size=len(xs), rank=rank, senders=senders, **own)
        steps = (exchange or GatherMean()).steps(x, SEGMENTS, compressor, envelope)
        futures.append(port.start(steps, label="the exam"))
    for port in world.ports:
        port.drain()
    return [future.value() for future in futures], world


def _xs():
    return [normal(SEGMENTS.numel, rank) for rank in range(4)]


@compressors_in_turn
def test_the_mean_is_that_of_the_senders_alone_on_a_world_of_their_own(compressor, senders):
    """To the bit, as if the other ranks were not there."""
    alone = [x for rank, x in enumerate(_xs()) if rank in senders]
    expected = _meet(compressor, alone, None)[0][0]
    xs = _xs()
    for rank, mean in enumerate(_meet(compressor, xs, senders)[0]):
        assert same_bits(dense(mean.values, xs[0]), dense(expected.values, xs[0]))
        for what in ("finite", "sent", "wanted", "qualified", "choosable", "counts", "rooms"):
            assert getattr(mean, what) == getattr(expected, what)
        assert mean.senders == senders
        assert (mean.own is None) is (rank not in senders)


@compressors_in_turn
def test_who_does_not_send_keeps_all_and_who_sends_what_was_not_sent(compressor, senders):
    xs = _xs()
    _meet(compressor, xs, senders)
    for rank, (x, before) in enumerate(zip(xs, _xs(), strict=True)):
        left = taken_by(compressor, Flat(before, SEGMENTS), 3).left
        assert same_bits(x, left if rank in senders else before)


@every_group
def test_a_message_is_counted_once_and_no_message_as_nothing(senders):
    _, world = _meet(TopK(density=0.2), _xs(), senders)
    _, all_send = _meet(TopK(density=0.2), _xs(), None)
    each = all_send.ports[0].wire_bytes
    assert [port.wire_bytes for port in world.ports] == [each if rank in senders else 0 for rank in range(4)]
    assert [port.collectives for port in world.ports] == [1] * 4


@every_compressor
def test_a_request_says_who_sends_and_how_large_a_message_is(compressor):
    for rank in range(3):
        envelope = Envelope(step=0, world_size=3, rank=rank, senders=(0, 2), notes=torch.ones(9, dtype=torch.uint8))
        request = next(GatherMean().steps(normal(SEGMENTS.numel, rank), SEGMENTS, compressor, envelope))
        assert isinstance(request, AllGather)
        assert request.senders == (0, 2)
        assert request.send.numel() == (0 if rank == 1 else request.size)


def test_only_senders_are_heard():
    notes = [torch.tensor([1, rank], dtype=torch.uint8) for rank in range(4)]
    each = [{"loss": float(rank), "alarmed": rank == 3, "finite": torch.tensor(rank != 0)} for rank in range(4)]
    for mean in _meet(TopK(density=0.2), _xs(), (1, 2), notes=notes, each=each)[0]:
        assert (mean.loss, mean.alarmed, mean.finite) == (1.5, False, True)
        assert mean.notes.tolist() == [2, 3]
    for mean in _meet(TopK(density=0.2), _xs(), (0, 3), notes=notes, each=each)[0]:
        assert (mean.loss, mean.alarmed, mean.finite) == (1.5, True, False)


@pytest.mark.parametrize("senders", [(), (4,), (-1,), (1, 0), (1, 1)], ids=str)
def test_senders_that_are_no_ranks_are_refused(senders):
    with pytest.raises(ValueError, match=r"senders must be one or more of the ranks 0 to 3, ascending, got \("):
        _meet(TopK(density=0.2), _xs(), senders)


def test_an_all_reduce_has_no_senders():
    with pytest.raises(ValueError, match=r"got senders=\(0, 2\)\. Use GatherMean\(\)"):
        _meet(Dense(), _xs(), (0, 2), exchange=ReduceMean())


MODEL = Segments.of(["a", "b"], [3, 2])


def _job(x, mean, **kinds):
    memory = Memory(MODEL, kinds={"owed": torch.float32, **kinds}, device=torch.device("cpu"))
    return Job(x, MODEL, parts=[Part(x, MODEL, MODEL, Future())], mean=mean), memory


def _mean(**more):
    return Mean(values=torch.tensor([0.0, 3.0, 0.0, 0.0, 1.0]), finite=True, sent=0, wanted=0, **more)


def _own(*positions, spare=0):
    at = torch.tensor([*positions, *[0] * spare], dtype=torch.int64)
    values = torch.tensor([1.0] * len(positions) + [0.0] * spare)
    return Payload(known=values[:0], positions=at, values=values, wanted=torch.tensor([len(positions)]))


@every_group
def test_what_was_chosen_is_what_this_rank_counted_by_its_place_among_the_senders(senders):
    """A room that is not used up stands for nothing: it is no entry that was sent."""
    counted = GaussianK(density=0.1, whole_below=0)
    for rank, mean in enumerate(_meet(counted, _xs(), senders, rooms={"p3": 30, "p4": 12})[0]):
        if rank not in senders:
            continue
        place = senders.index(rank)
        count = sum(min(counts[place], mean.rooms[name]) for name, counts in mean.counts.items())
        assert mean.own.positions.numel() == mean.own.values.numel() == count < 30
        job = Job(torch.zeros(SEGMENTS.numel), SEGMENTS, mean=mean)
        assert job.chosen().tolist() == mean.own.positions.tolist()


def test_who_did_not_send_has_chosen_nothing_and_keeps_velocity_and_ages():
    mean = _mean(counts={"a": (1, 2), "b": (1, 0)}, rooms={"a": 2, "b": 2}, senders=(3, 5))
    job, memory = _job(torch.ones(5), mean, velocity=torch.float32, sent_at=torch.int32)
    job.velocity = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    job.commit(memory, step=8, masking=True)
    assert job.chosen().tolist() == []
    assert memory["owed"].tolist() == [1.0] * 5
    assert memory["velocity"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert memory["sent_at"].tolist() == [0] * 5


def test_what_nobody_heard_to_be_poisoned_does_not_enter_memory():
    job, memory = _job(torch.full((5,), math.nan), _mean(senders=(3,)), velocity=torch.float32)
    memory["owed"].fill_(2.0)
    job.finite, job.velocity = torch.tensor(False), torch.full((5,), math.nan)
    job.commit(memory, step=8, masking=False)
    assert memory["owed"].tolist() == [2.0] * 5
    assert memory["velocity"].tolist() == [0.0] * 5
    job.hand_back({})
    assert job.x.tolist() == [0.0, 3.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_what_is_owed_fades(decay):
    job, memory = _job(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), _mean(own=_own(1)))
    job.hold_(MODEL, {"b"})
    job.commit(memory, step=0, masking=False, decay=decay)
    assert memory["owed"].tolist() == [decay * n for n in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.5, math.nan, "0.9", True, None], ids=repr)
def test_a_decay_is_a_share(decay):
    with pytest.raises(ValueError, match=r"decay must be a number in \(0, 1\], got .*\. Write 1\.0"):
        replace(laconic.topk(0.1), decay=decay)


def test_without_memory_nothing_fades():
    with pytest.raises(ValueError, match=r"decay=0\.9 fades what is owed, and memory='none' owes nothing: set"):
        replace(laconic.topk(0.1, memory="none"), decay=0.9)
    assert replace(laconic.topk(0.1), decay=0.9).decay == 0.9


def _gathered(ranks, seed, known):
    payloads = []
    for rank in range(ranks):
        source = torch.Generator().manual_seed(seed + rank)
        at = torch.nonzero(torch.rand(SEGMENTS.numel, generator=source) < 0.4).flatten().to(torch.int32)
        values = torch.randn(at.numel(), generator=source)
        # Some are chosen and zero: their ranks have sent nothing for the entry.
        values[torch.rand(at.numel(), generator=source) < 0.2] = 0.0
        held = torch.randn(known.numel(), generator=source)
        payloads.append(Payload(known=held, positions=at, values=values, wanted=torch.tensor([at.numel()])))
    return Gathered(known=known, payloads=tuple(payloads), over="senders")


@pytest.mark.parametrize("factors", [{}, {"p0": 8.0, "p2": 3.0, "p4": 0.1}], ids=str)
@settings(max_examples=20)
@given(ranks=st.integers(1, 4), seed=st.integers(0, 20))
def test_over_senders_an_entry_is_divided_by_the_ranks_that_have_a_value_for_it(factors, ranks, seed):
    known = torch.tensor([0, 5, 17])
    gathered, out = _gathered(ranks, seed, known), torch.zeros(SEGMENTS.numel)
    expected = torch.zeros(SEGMENTS.numel)
    for layer in SEGMENTS:
        factor = factors.get(layer.name, 1.0)
        for at in range(layer.offset, layer.offset + layer.size):
            for payload in gathered.payloads:
                expected[at] += payload.known[known == at].sum() * torch.tensor(factor / ranks)
            values = [p.values[p.positions == at] for p in gathered.payloads]
            senders = sum(int(v.count_nonzero()) for v in values)
            for value in values:
                expected[at] += (value / max(1, senders)).sum() * torch.tensor(factor)
    add_mean_(out, gathered, SEGMENTS, factors)
    assert torch.equal(out, expected)


def test_over_ranks_and_over_senders_are_alike_where_all_send_the_same_entries():
    xs = [x.abs() + 1 for x in _xs()]
    over_ranks = _meet(TopK(density=1.0, whole_below=0), [x.clone() for x in xs], (0, 1, 2))[0][0]
    exchange = GatherMean(over="senders")
    over_senders = _meet(TopK(density=1.0, whole_below=0), xs, (0, 1, 2), exchange=exchange)[0][0]
    torch.testing.assert_close(dense(over_senders.values, xs[0]), dense(over_ranks.values, xs[0]))


@pytest.mark.parametrize("compressor", [TopK(density=0.2, whole_below=4), GaussianK(density=0.2)], ids=repr)
def test_what_one_rank_alone_sends_arrives_whole(compressor):
    xs = [normal(SEGMENTS.numel, 1), *[torch.zeros(SEGMENTS.numel) for _ in range(3)]]
    sent = taken_by(compressor, Flat(xs[0], SEGMENTS), 3)
    chosen = torch.zeros(SEGMENTS.numel)
    chosen[sent.payload.positions] = sent.payload.values
    mean = _meet(compressor, xs, None, exchange=GatherMean(over="senders"))[0][2]
    torch.testing.assert_close(dense(mean.values, xs[0]), chosen + (sent.decoded() - chosen) / 4)


@pytest.mark.parametrize("over", ["", "rank", None, 1], ids=repr)
def test_a_mean_is_over_ranks_or_senders(over):
    with pytest.raises(ValueError, match=r"over must be one of ranks, senders; got "):
        GatherMean(over=over)
