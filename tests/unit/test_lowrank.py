"""Matrices as two thin ones: what of the mean is sent, what is left, and with what the next step begins."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

import laconic
from contracts.bad_settings import BAD_SETTINGS, refusal
from contracts.vectors import normal, same_bits
from laconic.collectives import AllReduce
from laconic.compressors import Dense
from laconic.exchanges import LowRankMean
from laconic.exchanges.lowrank_mean import orthonormal
from laconic.segments import Segment, Segments
from laconic.transports import Lockstep
from laconic.types import Envelope, Mean

ROWS, COLUMNS = 12, 9
LAYERS = Segments.of(["w", "b", "v"], [ROWS * COLUMNS, 5, 64], [ROWS, 1, 8])


def _of_rank(rank: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A vector for LAYERS whose matrices have this rank."""
    parts = []
    for i, s in enumerate(LAYERS):
        left = normal(s.rows * rank, 10 * seed + i, dtype).view(s.rows, rank)
        right = normal(s.size // s.rows * rank, 10 * seed + i + 500, dtype).view(rank, -1)
        parts.append((left @ right).flatten())
    return torch.cat(parts)


def _meet(exchange: LowRankMean, xs: list[Tensor], segments: Segments = LAYERS, **said: object) -> list[Mean]:
    world, futures = Lockstep(len(xs)), []
    for port, x in zip(world.ports, xs, strict=True):
        envelope = Envelope(**({"step": 0, "world_size": len(xs)} | said))
        futures.append(port.start(exchange.steps(x, segments, Dense(), envelope), label="the exam"))
    for port in world.ports:
        port.drain()
    return [future.value() for future in futures]


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_mean_of_no_more_directions_is_sent_whole(rank, ranks):
    """Golden: P P^T M = M where P spans all columns of M."""
    whole, kept = _of_rank(rank, 1), {}
    # What ranks differ in cancels in the mean.
    noise = normal(LAYERS.numel, 7, torch.float64) * (ranks > 1)
    for _ in range(2):
        xs = [whole - noise / max(1, ranks - 1) if r else whole + noise for r in range(ranks)]
        means = _meet(LowRankMean(rank=3, least_ratio=1.0), xs, kept=kept)
        kept = means[0].kept
        for mean in means:
            assert same_bits(mean.values, means[0].values)
            torch.testing.assert_close(mean.values, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ranks", "dtype"), [(1, torch.float64), (2, torch.float32), (5, torch.float64)], ids=str)
def test_what_is_sent_and_what_is_left_is_what_was_there(ranks, dtype):
    xs = [normal(LAYERS.numel, rank, dtype) for rank in range(ranks)]
    given = torch.stack(xs).sum(0)
    means = _meet(LowRankMean(rank=2), xs)
    torch.testing.assert_close(torch.stack(xs).sum(0) + ranks * means[0].values, given)
    w, b, v = LAYERS.views(xs[0])
    assert w.any()
    assert v.any()
    assert not b.any()


def test_one_step_is_the_obvious_one_and_the_next_begins_with_its_q():
    exchange = LowRankMean(rank=2)
    (mean,) = _meet(exchange, [normal(LAYERS.numel, 0, torch.float64)])
    m = normal(LAYERS.numel, 1, torch.float64)[: ROWS * COLUMNS].view(ROWS, COLUMNS)
    p = torch.linalg.qr(m @ mean.kept["lowrank.w"].double()).Q
    x = normal(LAYERS.numel, 1, torch.float64)
    (after,) = _meet(exchange, [x], step=1, kept=mean.kept)
    torch.testing.assert_close(LAYERS.views(after.values)[0].view_as(m), p @ (p.T @ m), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(LAYERS.views(x)[0].view_as(m), m - p @ (p.T @ m), rtol=1e-10, atol=1e-10)


def test_step_by_step_it_finds_the_best_directions():
    x = normal(LAYERS.numel, 3, torch.float64)
    m = LAYERS.views(x)[0].clone().view(ROWS, COLUMNS)
    values = torch.linalg.svdvals(m)
    best, lost, kept = float(values[2:].norm()), [], {}
    for _ in range(40):
        y = x.clone()
        (mean,) = _meet(LowRankMean(rank=2), [y], kept=kept)
        kept = mean.kept
        lost.append(float(LAYERS.views(y)[0].norm()))
    assert lost[0] > 1.02 * best
    assert lost[-1] == pytest.approx(best, rel=1e-6)


def test_numbers_sent_are_those_of_the_thin_ones_and_of_what_goes_whole():
    exchange, x = LowRankMean(rank=2), normal(LAYERS.numel, 0)
    steps = exchange.steps(x, LAYERS, Dense(), Envelope(step=0, world_size=1))
    first = next(steps)
    assert isinstance(first, AllReduce)
    # The digest has 32 numbers.
    assert first.send.numel() == 2 * (ROWS + 8) + 5 + 32
    second = steps.send(first.send)
    assert isinstance(second, AllReduce)
    assert second.send.numel() == 2 * (COLUMNS + 8)
    with pytest.raises(StopIteration) as end:
        steps.send(second.send)
    assert end.value.value.sent == 2 * (ROWS + COLUMNS + 16) + 5


@pytest.mark.parametrize(
    ("rows", "size", "ratio", "splits"),
    [(1, 64, 1.0, False), (0, 0, 1.0, False), (8, 64, 2.0, True), (8, 56, 2.0, False), (2, 64, 1.0, False)],
)
def test_a_matrix_is_split_where_that_is_smaller_by_the_ratio(rows, size, ratio, splits):
    exchange = LowRankMean(rank=2, least_ratio=ratio)
    assert exchange.splits(Segment(name="w", offset=0, size=size, rows=rows)) is splits


def test_without_matrices_there_is_one_round():
    vectors = Segments.of(["b", "empty"], [5, 0])
    steps = LowRankMean().steps(normal(5, 0), vectors, Dense(), Envelope(step=0, world_size=1))
    with pytest.raises(StopIteration) as end:
        steps.send(next(steps).send)
    assert same_bits(end.value.value.values, normal(5, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_columns_become_orthonormal_and_span_the_same(dtype):
    tall = [normal(40 * 3, seed, dtype).view(40, 3) for seed in range(3)]
    tall.insert(1, normal(21, 9, dtype).view(7, 3) * 1e-20)
    for before, after in zip(tall, orthonormal(tall), strict=True):
        assert after.dtype == dtype
        torch.testing.assert_close(after.T @ after, torch.eye(3, dtype=dtype))
        rest = before - after @ (after.T @ before)
        assert float(rest.norm()) < 1e-5 * float(before.norm())


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_columns_that_add_nothing_become_zero(scale):
    a, b = scale * normal(20, 0), scale * normal(20, 1)
    zero = torch.zeros(20)
    (out,) = orthonormal([torch.stack([zero, a, 3 * a, b, a - 2 * b], 1)])
    assert [bool(column.any()) for column in out.T] == [False, True, False, True, False]
    alive = out[:, [1, 3]]
    torch.testing.assert_close(alive.T @ alive, torch.eye(2))


def test_a_direction_that_died_begins_anew():
    """A column of zeros would stay zero in every later step: after a silent one nothing would ever be sent."""
    exchange = LowRankMean(rank=2)
    (silent,) = _meet(exchange, [torch.zeros(LAYERS.numel)])
    assert not silent.values.any()
    (single,) = _meet(exchange, [_of_rank(1, 0, torch.float32)], kept=silent.kept)
    assert all(bool(q.isfinite().all()) and bool((q.abs().amax(0) > 0).all()) for q in single.kept.values())
    x = _of_rank(2, 1)
    (mean,) = _meet(exchange, [x.clone()], kept=single.kept)
    torch.testing.assert_close(mean.values, x, rtol=1e-5, atol=1e-5)


def test_where_nothing_came_the_directions_found_so_far_stay():
    """A layer that is frozen for a step had to begin anew."""
    exchange = LowRankMean(rank=2)
    (mean,) = _meet(exchange, [_of_rank(2, 0, torch.float32)])
    (silent,) = _meet(exchange, [torch.zeros(LAYERS.numel)], kept=mean.kept)
    assert mean.kept
    assert not silent.kept


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_gradients_of_any_size_are_sent(scale):
    """Q is M^T P: were it kept as it is, P of the next step would have the size of M squared."""
    kept = {}
    for step in range(3):
        x = scale * _of_rank(2, step, torch.float32)
        (mean,) = _meet(LowRankMean(rank=2), [x.clone()], kept=kept)
        assert mean.finite
        torch.testing.assert_close(mean.values / scale, x / scale, rtol=1e-4, atol=1e-4)
        kept = mean.kept


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, ROWS * COLUMNS + 1, LAYERS.numel - 1])
def test_a_poisoned_matrix_is_heard_by_every_rank_and_nothing_is_kept_of_it(bad, place):
    xs = [normal(LAYERS.numel, rank) for rank in range(3)]
    xs[1][place] = bad
    for mean in _meet(LowRankMean(rank=2), xs):
        assert not mean.finite
        assert mean.kept == {}


def test_the_first_q_follows_from_seed_and_name_alone():
    """Not from the bucket: parameters move between buckets."""
    drawn = LowRankMean(rank=2)
    alone = Segments.of(["v"], [64], [8])
    (here,) = _meet(drawn, [_of_rank(2, 0)])
    x = LAYERS.views(_of_rank(2, 0))[2].clone()
    (there,) = _meet(drawn, [x], alone)
    torch.testing.assert_close(here.kept["lowrank.v"], there.kept["lowrank.v"])
    again, other, named = (
        e._begin(Segment(name=name, offset=0, size=64, rows=8), {}, x)
        for e, name in [(drawn, "v"), (replace(drawn, seed=1), "v"), (drawn, "w")]
    )
    assert same_bits(again, drawn._begin(alone["v"], {}, x))
    assert not torch.equal(again, other)
    assert not torch.equal(again, named)


def test_what_was_kept_with_another_rank_is_dropped():
    (mean,) = _meet(LowRankMean(rank=2), [normal(LAYERS.numel, 0)])
    fresh, changed = ([normal(LAYERS.numel, 1)] for _ in range(2))
    (a,) = _meet(LowRankMean(rank=1), fresh)
    (b,) = _meet(LowRankMean(rank=1), changed, kept=mean.kept)
    assert same_bits(a.values, b.values)


@pytest.mark.parametrize(("field", "value"), BAD_SETTINGS[LowRankMean])
def test_a_bad_setting_is_refused(field, value):
    with pytest.raises(ValueError, match=refusal(field, value)):
        LowRankMean(**{field: value})


def test_every_setting_has_bad_values():
    assert {field for field, _ in BAD_SETTINGS[LowRankMean]} == {f.name for f in fields(LowRankMean)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scope": "model", "exchange": laconic.TwoLevel(inner=LowRankMean())}, r"scope='layer'"),
        ({"scope": "model"}, r"one vector of them all is none: scope='layer'"),
        ({"guard": laconic.Guard()}, r"lowrank_mean carries no alarm, no loss and no spectrum: leave guard=None"),
        ({"momentum": "method", "masking": True}, r"lowrank_mean sends none: set masking=False"),
        ({"compressor": laconic.TopK(density=0.1)}, r"topk takes entries out of them\. Use Dense\(\)"),
    ],
    ids=repr,
)
def test_a_method_refuses_what_does_not_go_with_it(change, says):
    with pytest.raises(ValueError, match=says):
        replace(laconic.powersgd(), **change)


def test_some_senders_are_refused():
    with pytest.raises(ValueError, match=r"lowrank_mean adds up what all ranks send, got senders=\(0,\)\. Use"):
        _meet(LowRankMean(), [normal(LAYERS.numel, 0)], senders=(0,))
    with pytest.raises(ValueError, match=r"where only some ranks send.*use GatherMean\(\) with participants"):
        laconic.celgc(2, participants=2, send=laconic.powersgd())
