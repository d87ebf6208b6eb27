"""Runs whose amount is weighed at every step: ranks agree on it, it moves, it is resumed, it follows the link."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isnan

import pytest
import torch

import laconic
from contracts.vectors import normal, same_bits
from laconic import descent
from laconic.costs import Affine, Seconds
from laconic.method import Method
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.sizes import Size
from laconic.transports.lockstep import Port
from lockstep.locals import Point, Rank, draw, run, sgd
from lockstep.world import World, gradients

MODEL = Segments.of(["w", "b", "v"], [3000, 7, 1500])
BUCKETS = [["v", "b"], ["w"]]
OVERHEAD = Affine(fixed_bits=2e4)
WEIGHED = {
    "lag": laconic.cat(OVERHEAD, whole_below=0),
    "curvature": laconic.cat(OVERHEAD, gain="curvature", whole_below=0),
    "packets": laconic.cat("paper", whole_below=16, memory="gradient"),
    "alpha": laconic.cat(OVERHEAD, memory="none", whole_below=0),
    "layer": laconic.cat(OVERHEAD, per="layer", whole_below=16),
    "sign": laconic.cat(OVERHEAD, rule="sign", whole_below=0),
    "random": replace(laconic.cat(OVERHEAD, rule="random", coding="published", whole_below=0), name="random"),
    "sdagc": laconic.sdagc(3.0, law="cat", cost=OVERHEAD, whole_below=16, scope="layer", values="exact"),
}
every_method = pytest.mark.parametrize("method", WEIGHED.values(), ids=WEIGHED)


def _world(method: Method, ranks: int = 2) -> World:
    return World(method, ranks, model=MODEL, dtype=torch.float32)


def _grads(ranks: int, step: int) -> list[torch.Tensor]:
    """Gradients whose tails are heavier in some steps than in others."""
    return [g ** (1 + 2 * (step % 3)) for g in gradients(ranks, step, numel=MODEL.numel, dtype=torch.float32)]


def _count(world: World) -> float:
    """The amount that every rank chose for the last step."""
    states = [reducer._state for reducer in world.reducers]
    assert all(s.tuner == states[0].tuner and s.setting == states[0].setting for s in states)
    return states[0].tuner.get("count", -1.0)


@every_method
def test_every_rank_has_the_same_amount_in_every_step_and_it_moves(method):
    world, counts = _world(method), []
    for step in range(8):
        first, *others = world.step(_grads(2, step), buckets=BUCKETS)
        assert all(same_bits(mean, first) for mean in others)
        counts.append(_count(world))
    assert counts[0] == -1.0
    assert min(counts[1:]) >= 1
    # Of packets few are worth filling.
    assert len(set(counts[1:])) > 2 or method.tuner.cost.step_bits is not None


@every_method
@pytest.mark.parametrize("at", [1, 4])
def test_a_resumed_run_gives_the_same_bits_and_amounts(method, at):
    straight, first, second = (_world(method) for _ in range(3))
    for step in range(at):
        first.step(_grads(2, step), buckets=BUCKETS)
    second.load(first.save())
    for step in range(7):
        mean = straight.step(_grads(2, step), buckets=BUCKETS)[0]
        if step >= at:
            assert same_bits(second.step(_grads(2, step), buckets=BUCKETS)[0], mean)
            assert _count(second) == _count(straight)


@every_method
def test_the_numbers_of_the_choice_are_told(method):
    world = _world(method)
    assert world.reducers[0].stats().tuning is None
    for step in range(4):
        world.step(_grads(2, step), buckets=BUCKETS)
    told = [reducer.stats().tuning for reducer in world.reducers]
    assert all(repr(t) == repr(told[0]) for t in told)
    assert told[0].count == _count(world)
    assert 0 < told[0].gain <= 1
    assert told[0].cost > 0
    assert told[0].unit == method.tuner.cost.unit
    assert told[0].efficiency == told[0].gain / told[0].cost
    assert isnan(told[0].latency_seconds)
    assert len(told[0].curve) > 10
    assert all(a[0] < b[0] for a, b in itertools.pairwise(told[0].curve))


def test_the_amount_chosen_is_the_amount_sent():
    world = _world(WEIGHED["lag"])
    for step in range(6):
        world.step(_grads(2, step))
        if step:
            assert world.reducers[0].stats().density == round(_count(world)) / MODEL.numel


@pytest.mark.parametrize("name", ["layer", "sdagc"])
@pytest.mark.parametrize("power", [1, 3])
def test_a_threshold_comes_near_the_amount_that_is_wanted_and_stays_there(name, power):
    """It went all the way at once, and every other step had room for half of the model, the others for nothing."""
    world, off = _world(WEIGHED[name]), []
    for step in range(24):
        grads = [g**power for g in gradients(2, step, numel=MODEL.numel, dtype=torch.float32)]
        world.step(grads, buckets=BUCKETS)
        off.append(world.reducers[0]._state.ledger.seen.room / _count(world))
    assert max(off[8:]) < 4.0
    assert min(off[8:]) > 0.25


def test_a_poisoned_step_leaves_the_amount_as_it_was():
    world = _world(WEIGHED["lag"])
    for step in range(3):
        world.step(_grads(2, step))
    bad = _grads(2, 3)
    bad[1][5] = float("inf")
    world.step(bad)
    before = _count(world)
    world.step(_grads(2, 4))
    assert _count(world) == before
    world.step(_grads(2, 5))
    assert _count(world) != before


class SimulatedLink:
    """Two ranks, each with a clock that stands still but for a step's work and for its bytes' time on a link."""

    def __init__(self, method: Method) -> None:
        self.latency, self.per_byte = 0.0, 0.0
        self.now, self.sent = [0.0, 0.0], [0, 0]
        self.world = _world(method, 2)
        ports = self.world.lockstep.ports
        self.world.reducers = [
            Reducer(method, MODEL, p, clock=partial(self.now.__getitem__, p.rank)) for p in ports
        ]
        for port in ports:
            port.drain = partial(self._drain, port, port.drain)

    def _drain(self, port: Port, drain: Callable[[], None]) -> None:
        drain()
        fresh, self.sent[port.rank] = port.wire_bytes - self.sent[port.rank], port.wire_bytes
        self.now[port.rank] += self.waiting(fresh)

    def waiting(self, size: float) -> float:
        return self.latency + self.per_byte * size

    @property
    def message(self) -> Size:
        """How many bits the message of so many entries has."""
        seen = self.world.reducers[0]._state.ledger.seen
        return Size(fixed_bits=8 * seen.fixed_bytes, entry_bits=seen.value_bits, among=MODEL.numel)

    def size(self, count: float) -> float:
        """How many bytes the message of so many entries has."""
        return float(self.message.bits(torch.tensor(count, dtype=torch.float64))) / 8

    def steps(self, count: int, *, per_byte: float) -> float:
        """Take so many steps on such a link, always along the same gradient; return the amount they end with."""
        self.latency, self.per_byte = LATENCY, per_byte
        for _ in range(count):
            self.now[:] = [now + REST for now in self.now]
            self.world.step([GRADIENT.clone() for _ in self.world.reducers])
        return _count(self.world)


LATENCY, REST = 0.002, 0.1
GRADIENT = normal(MODEL.numel, 4) ** 3
MEASURED = {
    "lag": laconic.cat(whole_below=0),
    "curvature": laconic.cat(gain="curvature", whole_below=0),
    "alpha": laconic.cat(memory="none", whole_below=0),
}


@pytest.mark.parametrize("per_byte", [1e-6, 1e-5, 1e-4])
def test_on_a_link_that_is_measured_the_amount_settles_where_gain_and_time_are_in_balance(per_byte):
    link = SimulatedLink(MEASURED["alpha"])
    count = link.steps(20, per_byte=per_byte)
    gains = descent.alpha(GRADIENT)
    cost = Seconds(latency_seconds=REST + LATENCY, bits_per_second=8 / per_byte)
    best = descent.choose(gains, link.message, cost, ceiling=MODEL.numel // 2)
    ours = float(gains[round(count) - 1]) / (REST + link.waiting(link.size(count)))
    assert ours >= 0.9 * best.efficiency


@pytest.mark.parametrize("method", MEASURED.values(), ids=MEASURED)
def test_the_amount_moves_with_the_link(method):
    link = SimulatedLink(method)
    before = link.steps(15, per_byte=1e-6)
    during = link.steps(12, per_byte=1e-4)
    after = link.steps(12, per_byte=1e-6)
    assert during < 0.7 * before
    assert after > 1.3 * during


def test_the_link_that_was_fitted_is_told():
    link = SimulatedLink(MEASURED["lag"])
    link.steps(8, per_byte=1e-5)
    told = link.world.reducers[1].stats().tuning
    assert told.bits_per_second == pytest.approx(8e5, rel=1e-6)
    assert told.latency_seconds == pytest.approx(LATENCY, rel=1e-6)
    assert told.unit == "seconds"


def test_a_budget_of_time_is_kept():
    link = SimulatedLink(laconic.cat(share=0.2, whole_below=0))
    size = link.size(link.steps(16, per_byte=1e-5))
    waiting = link.waiting(size)
    assert waiting / (REST + waiting) == pytest.approx(0.2, rel=0.05)


def test_a_budget_of_bits_a_second_is_kept():
    link = SimulatedLink(laconic.cat(bits_per_second=5e4, whole_below=0))
    size = link.size(link.steps(16, per_byte=1e-5))
    assert 8 * size / (REST + link.waiting(size)) == pytest.approx(5e4, rel=0.05)


def test_local_steps_send_what_is_worth_its_cost():
    method = laconic.celgc(2, clip=1.0, send=laconic.cat(OVERHEAD, start=0.3, whole_below=0))

    def job(rank: Rank):
        seen = []
        for step in range(10):
            rank.follow(draw(rank.rank, step, numel=400) ** 3)
            if step % 2:
                seen.append((rank.x, rank.stats.tuning and rank.stats.tuning.count))
        return seen

    first, *others = run(method, 3, job, model=Point(300, 100), make=sgd(0.1))
    for other in others:
        assert all(same_bits(a, b) and s == t for (a, s), (b, t) in zip(first, other, strict=True))
    counts = [count for _, count in first if count is not None]
    assert len(counts) >= 4
    assert len(set(counts)) > 1
