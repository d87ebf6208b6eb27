"""A sparse all-reduce: how much it sends, what fits, what is told, what stays owed, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import laconic
from contracts.bad_settings import BAD_SETTINGS, refusal
from contracts.vectors import normal
from laconic.averaging import dense
from laconic.codecs import WORDS, Exact, Linear, Qsgd
from laconic.compressors import Dense, RandomK, StdThreshold, TopK
from laconic.damping import Damped
from laconic.exchanges import GatherMean, ShardedMean, SmallestMean, TwoLevel
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Mean, Plan

MODEL = Segments.of(["w", "empty", "b", "v", "last"], [600, 0, 40, 300, 0])
HALF = TopK(density=0.1, whole_below=100)


def _meet(
    exchange: Exchange, compressor: Compressor, xs: list[Tensor], segments: Segments = MODEL, **shared: object
) -> list[Mean]:
    """Run one exchange on as many ranks as there are vectors."""
    world, futures = Lockstep(len(xs)), []
    for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
        envelope = replace(Envelope(step=3, world_size=len(xs), rank=rank), **shared)
        futures.append(port.start(exchange.steps(x, segments, compressor, envelope), label="the exam"))
    for port in world.ports:
        port.drain()
    return [future.value() for future in futures]


def _plan(compressor: Compressor, segments: Segments = MODEL):
    return compressor.plan(segments, step=0, rooms={})


def _one(numel: int) -> Segments:
    return Segments.of(["w"], [numel])


def _received(exchange: GatherMean | ShardedMean, plan: Plan, ranks: int) -> int:
    """How many bytes a rank receives of float32 vectors."""
    return exchange.received_bytes(plan, torch.empty(0), Envelope(step=0, world_size=ranks))


# Volume.


@pytest.mark.parametrize("values", ["int4", "exact"])
@pytest.mark.parametrize("numel", [1_000_000, 4_000_000])
def test_what_a_rank_receives_does_not_grow_with_the_ranks(numel, values):
    plan, codec = _plan(TopK(density=0.01), _one(numel)), WORDS[values]()
    received = {n: _received(ShardedMean(values=codec), plan, n) for n in (2, 4, 8, 16, 64)}
    assert all(size <= 1.3 * received[2] for size in received.values())
    assert received[16] <= 1.1 * received[2]
    gathered = {n: _received(GatherMean(values=codec), plan, n) for n in (2, 64)}
    assert gathered[64] > 24 * received[64]
    assert received[2] <= 1.02 * gathered[2]


@pytest.mark.parametrize("compressor", [HALF, Dense(), RandomK(density=0.1), StdThreshold(c=1.5)], ids=repr)
@pytest.mark.parametrize("ranks", [2, 5])
def test_bytes_are_what_the_formula_says(compressor, ranks):
    plan = compressor.plan(MODEL, step=3, rooms={})
    for exchange in (ShardedMean(), ShardedMean(values=Linear(bits=4)), GatherMean()):
        world = Lockstep(ranks)
        xs = [normal(MODEL.numel, rank) for rank in range(ranks)]
        for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
            envelope = Envelope(step=3, world_size=ranks, rank=rank)
            port.start(exchange.steps(x, MODEL, compressor, envelope), label="bytes")
        for port in world.ports:
            port.drain()
        received = _received(exchange, plan, ranks)
        sent = world.ports[0].wire_bytes
        assert {port.wire_bytes for port in world.ports} == {sent}
        # A gathered message is sent once and heard from all; parts differ, and most is what is heard at most.
        assert sent * ranks == received if isinstance(exchange, GatherMean) else sent < received


@pytest.mark.parametrize(("ranks", "kind"), [(1, GatherMean), (2, GatherMean), (3, ShardedMean), (16, ShardedMean)])
def test_the_smaller_one_is_used(ranks, kind):
    numel = 20_000
    plan, x = _plan(TopK(density=0.01), _one(numel)), torch.zeros(numel)
    chosen = SmallestMean(values=Linear(bits=8)).of(plan, x, Envelope(step=0, world_size=ranks))
    assert type(chosen) is kind
    assert chosen.values == Linear(bits=8)
    tiny = SmallestMean().of(
        _plan(TopK(density=0.1, whole_below=0), _one(20)), x[:20], Envelope(step=0, world_size=3)
    )
    assert type(tiny) is GatherMean


# What is told.


@pytest.mark.parametrize("values", WORDS)
@pytest.mark.parametrize("ranks", [2, 5])
def test_what_all_send_survives_and_every_codec_conserves(values, ranks):
    xs = [normal(MODEL.numel, rank) for rank in range(ranks)]
    loud = torch.tensor([3, 100, 599, 640, 939])
    for x in xs:
        x[loud] = torch.tensor([50.0, -60.0, 55.0, -52.0, 58.0])
    there = torch.stack(xs).sum(0)
    means = _meet(ShardedMean(values=WORDS[values]()), HALF, xs)
    values_ = [dense(mean.values, xs[0]) for mean in means]
    assert all(torch.equal(v, values_[0]) for v in values_)
    for mean in means:
        assert set(loud.tolist()) <= set(mean.values.payloads[0].positions.tolist())
    torch.testing.assert_close(torch.stack(xs).sum(0) + ranks * values_[0], there, rtol=1e-4, atol=1e-3)


def test_a_quiet_parameter_is_not_starved_by_a_loud_one():
    segments = Segments.of(["loud", "quiet"], [500, 500])
    xs = [torch.cat([1000 * normal(500, rank), normal(500, 50 + rank)]) for rank in range(4)]
    means = _meet(ShardedMean(), TopK(density=0.04, whole_below=0), xs, segments)
    told = means[0].values.payloads[0].positions
    assert int((told >= 500).sum()) >= 15
    assert told.numel() <= 44


def test_what_has_no_room_goes_back_as_it_was_and_others_come_next_time():
    numel, entries = 400, 40
    xs = [torch.zeros(numel) for _ in range(4)]
    for x in xs:
        x[:entries] = 1.0 + torch.arange(entries) / 64
    before = xs[0].clone()
    seen = set()
    for step in range(6):
        trial = [x.clone() for x in xs]
        means = _meet(ShardedMean(), TopK(density=0.1, whole_below=0), trial, _one(numel), step=step)
        told = means[0].values.payloads[0].positions.tolist()
        # A range of 100 entries has room for 10 sums; what is not told is left to the bit.
        assert len(told) == 10
        left = [at for at in range(entries) if at not in told]
        assert torch.equal(trial[0][left], before[left])
        assert not trial[0][told].any()
        seen |= set(told)
    assert len(seen) > 20


def test_own_is_what_this_rank_sent_and_is_in_the_mean():
    xs = [normal(MODEL.numel, rank) for rank in range(3)]
    before = [x.clone() for x in xs]
    for x, was, mean in zip(xs, before, _meet(ShardedMean(), HALF, xs), strict=True):
        own = mean.own
        assert own is not None
        assert torch.equal(own.values, was[own.positions])
        assert not x[own.positions].any()
        assert torch.equal(own.known, was[600:640])
        assert set(own.positions.tolist()) <= set(mean.values.payloads[0].positions.tolist())


@pytest.mark.parametrize("density", [0.002, 0.02])
def test_fewer_entries_than_ranks(density):
    xs = [normal(600, rank) for rank in range(7)]
    there = torch.stack(xs).sum(0)
    means = _meet(ShardedMean(), TopK(density=density, whole_below=0), xs, _one(600))
    torch.testing.assert_close(torch.stack(xs).sum(0) + 7 * dense(means[0].values, xs[0]), there)
    assert means[0].values.payloads[0].positions.numel() >= 1


def test_counts_are_told_where_they_vary_also_of_parameters_without_entries():
    rule = StdThreshold(c=1.5, whole_below=100)
    xs = [normal(MODEL.numel, rank) for rank in range(5)]
    gathered = _meet(GatherMean(), rule, [x.clone() for x in xs])[0]
    for mean in _meet(ShardedMean(), rule, xs):
        assert {name: sum(c) for name, c in mean.counts.items()} == {n: sum(c) for n, c in gathered.counts.items()}
        assert all(max(c) - min(c) <= 1 for c in mean.counts.values())
        assert (mean.qualified, mean.wanted, mean.rooms) == (gathered.qualified, gathered.wanted, gathered.rooms)


@pytest.mark.parametrize("values", ["exact", "int4", "bfloat16", "binned", "qsgd"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_rank_that_is_not_finite_sends_parts_that_can_be_read(values, bad):
    for at in (0, 5, 620, 939):
        xs = [normal(MODEL.numel, rank) for rank in range(3)]
        xs[1][at : at + 2] = bad
        exchange, world = ShardedMean(values=WORDS[values]()), Lockstep(3)
        futures = [
            port.start(
                exchange.steps(x, MODEL, HALF, Envelope(step=3, world_size=3, rank=r, finite=r != 1)),
                label="poison",
            )
            for r, (port, x) in enumerate(zip(world.ports, xs, strict=True))
        ]
        for port in world.ports:
            port.drain()
        assert [future.value().finite for future in futures] == [False] * 3


@dataclass(frozen=True)
class _Padded:
    """As on a device that is not asked how many entries there are: unused room comes as zeros, at the end."""

    name: ClassVar[str] = "padded"
    inner: Compressor

    def plan(self, segments, *, step, rooms):
        return self.inner.plan(segments, step=step, rooms=rooms)

    def compress_(self, x, segments, plan, fresh):
        payload = self.inner.compress_(x, segments, plan, fresh)
        spare = plan.capacity - payload.values.numel()
        assert spare > 0
        positions, values = (torch.cat([t, t.new_zeros(spare)]) for t in (payload.positions, payload.values))
        return replace(payload, positions=positions, values=values)


@pytest.mark.parametrize("values", ["exact", "int4", "sign"])
def test_room_that_is_not_used_stands_for_nothing(values):
    rule = StdThreshold(c=2.0, whole_below=100)
    xs, padded = ([normal(MODEL.numel, rank) for rank in range(3)] for _ in range(2))
    ours = _meet(ShardedMean(values=WORDS[values]()), rule, xs)
    theirs = _meet(ShardedMean(values=WORDS[values]()), _Padded(rule), padded)
    for one, other, x, y in zip(ours, theirs, xs, padded, strict=True):
        assert torch.equal(dense(one.values, x), dense(other.values, y))
        assert torch.equal(x, y)
        assert (one.sent, one.counts) == (other.sent, other.counts)
        assert torch.equal(one.own.positions, other.own.positions)


@pytest.mark.parametrize("codec", [Linear(bits=4), Exact(), Qsgd(levels=1)], ids=repr)
def test_a_number_too_large_for_a_codec_is_heard_by_every_rank(codec):
    """Finite as it was sent, and not as it is read (a norm overflows): it must not come back to its rank."""
    for at in (5, 620):
        xs = [normal(MODEL.numel, rank) for rank in range(3)]
        xs[1][at : at + 2] = 3e38
        means = _meet(ShardedMean(values=codec), HALF, xs)
        assert [mean.finite for mean in means] == [codec != Qsgd(levels=1)] * 3
        assert not means[0].finite or all(bool(torch.isfinite(x).all()) for x in xs)


# What is refused.


def test_who_does_not_send_and_what_is_damped_is_refused():
    x = torch.zeros(MODEL.numel)
    for exchange in (ShardedMean(), SmallestMean()):
        with pytest.raises(ValueError, match=r"adds up what all ranks send, got senders=\(0,\)\. Use GatherMean"):
            next(exchange.steps(x, MODEL, HALF, Envelope(step=0, world_size=3, senders=(0,))))
        with pytest.raises(ValueError, match=r"damping .*\. Use GatherMean\(\)"):
            exchange.check(Damped(HALF, torch.ones(MODEL.numel)))


@pytest.mark.parametrize("exchange", [ShardedMean(), TwoLevel(inner=SmallestMean(), node_size=2)], ids=repr)
def test_a_method_that_needs_to_see_what_each_rank_sent_is_refused(exchange):
    for method, reason in (
        (
            laconic.cat("bits", gain="curvature"),
            r"cat looks along what each rank sent, .* tells sums alone: use Gather",
        ),
        (
            laconic.sdagc(3.0, std_of="residual", revision="damp", masking=False, scope="layer", values="exact"),
            r"damping cuts what is sent",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            replace(method, exchange=exchange)
    assert replace(laconic.cat("bits"), exchange=exchange).exchange == exchange
    with pytest.raises(ValueError, match=r"sharded_mean every rank sends: use GatherMean\(\) with participants"):
        replace(laconic.celgc(2, participants=2), exchange=ShardedMean())


@pytest.mark.parametrize("exchange", ["sharded", "smallest"])
def test_what_reckons_with_all_that_is_sent_is_refused(exchange):
    """Entries drawn by chance would be biased, and a bandwidth would be used by a small part."""
    with pytest.raises(ValueError, match="unbiased only where all of it arrives"):
        laconic.cat("bits", rule="random", exchange=exchange)
    with pytest.raises(ValueError, match="budget knows what a gathered message puts on the link"):
        laconic.cat(bits_per_second=1e6, exchange=exchange)


@pytest.mark.parametrize("kind", [ShardedMean, SmallestMean])
def test_a_bad_setting_is_refused(kind):
    for field, value in BAD_SETTINGS[kind]:
        with pytest.raises(TypeError, match=refusal(field, value)):
            kind(**{field: value})
    assert {field for field, _ in BAD_SETTINGS[kind]} == {f.name for f in fields(kind)}
