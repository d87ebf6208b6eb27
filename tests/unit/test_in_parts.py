"""One part of the entries in each step, another in the next."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import laconic
from contracts.vectors import normal, same_bits
from laconic import kernels
from laconic.averaging import dense
from laconic.codecs import SignMean
from laconic.compressors import StdThreshold, TopK
from laconic.exchanges import GatherMean, InParts, LedMean, ReduceMean, ShardedMean, TwoLevel
from laconic.exchanges.in_parts import _Part, _segments_of
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Mean
from lockstep.world import World, gradients

SIZE = 1000
SEGMENTS = Segments.of(["first", "second"], [400, 600])
TOP = TopK(density=0.02, whole_below=0)
PARTS = InParts(inner=GatherMean(), parts=4, block=8)


def _meet(
    exchange: Exchange, compressor: Compressor, xs: list[torch.Tensor], step: int = 0
) -> tuple[list[Mean], int]:
    """What each rank got, and the bytes that one of them handed over."""
    world = Lockstep(len(xs))
    futures = [
        port.start(
            exchange.steps(x, SEGMENTS, compressor, Envelope(step=step, world_size=len(xs), rank=rank)), label="it"
        )
        for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True))
    ]
    for port in world.ports:
        port.drain()
    return [future.value() for future in futures], world.ports[0].wire_bytes


def _part(step: int, parts: int = 4, block: int = 8) -> torch.Tensor:
    """Where the part of a step lies, said in another way."""
    number = torch.arange(SIZE) // block
    return ((number + number // parts) % parts == step % parts).nonzero().flatten()


@given(size=st.integers(0, 300), parts=st.integers(1, 7), block=st.integers(1, 9), cut=st.integers(0, 300))
def test_parts_have_every_entry_once_and_know_where_it_lies(size, parts, block, cut):
    x = torch.arange(size)
    segments = Segments.of(["a", "b"], [min(cut, size), size - min(cut, size)])
    seen = []
    for number in range(parts):
        part = _Part(number=number, of=parts, block=block)
        mine = part.taken(x)
        assert torch.equal(part.at(torch.arange(mine.numel())), mine)
        assert _segments_of(segments, part).numel == mine.numel()
        for whole, share in zip(segments, _segments_of(segments, part), strict=True):
            there = mine[share.offset : share.offset + share.size]
            assert bool(((there >= whole.offset) & (there < whole.offset + whole.size)).all())
        written = x.clone()
        part.put_(written, mine - size)
        assert torch.equal((written < 0).nonzero().flatten(), mine)
        seen.append(mine)
    assert torch.equal(torch.cat(seen).sort().values, x)


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("inner", [GatherMean(), LedMean()], ids=repr)
def test_a_step_sends_the_largest_of_its_part_and_leaves_all_else(inner, step):
    xs = [normal(SIZE, rank) for rank in range(3)]
    before = [x.clone() for x in xs]
    means, _ = _meet(replace(PARTS, inner=inner), TOP, xs, step)
    part = set(_part(step).tolist())
    for mean, x, was in zip(means, xs, before, strict=True):
        assert mean.own is not None
        at = mean.own.positions
        assert set(at.tolist()) <= part
        assert same_bits(mean.own.values, was[at])
        assert not x[at].any()
        x[at] = was[at]
        assert same_bits(x, was)


def test_as_many_entries_a_step_as_without_parts_in_fewer_bytes():
    one, many = (
        _meet(exchange, TOP, [normal(SIZE, rank) for rank in range(3)])
        for exchange in (GatherMean(values=SignMean()), replace(PARTS, inner=GatherMean(values=SignMean())))
    )
    # Of two segments each rounds its own number.
    assert abs(one[0][0].sent - many[0][0].sent) <= 3 * len(SEGMENTS)
    assert (one[0][0].choosable, many[0][0].choosable) == (3 * SIZE, 3 * SIZE)
    assert many[1] < one[1]


def test_where_a_part_would_be_sent_whole_there_are_fewer_parts():
    xs = [normal(SIZE, rank) for rank in range(2)]
    expected = torch.stack(xs).sum(0) / 2
    means, _ = _meet(PARTS, TopK(density=1.0, whole_below=0), xs)
    assert same_bits(dense(means[0].values, xs[0]), expected)
    # Of a density of 0.4 two parts: 0.8 of each.
    (mean, _), _ = _meet(PARTS, TopK(density=0.4, whole_below=0), [normal(SIZE, rank) for rank in range(2)], step=1)
    assert set(mean.own.positions.tolist()) <= set(_part(1, parts=2).tolist())
    assert mean.own.positions.numel() == pytest.approx(0.4 * SIZE, abs=4)


def test_a_threshold_is_that_of_the_whole():
    was, rule, sent = normal(SIZE, 1), StdThreshold(c=1.5, whole_below=0), []
    for step in range(4):
        x = was.clone()
        known = kernels.fresh_of(x, SEGMENTS)
        rooms = {f"{name}, part {step} of 4": SIZE for name in SEGMENTS.names}
        envelope = Envelope(step=step, world_size=1, rooms=rooms, fresh=known)
        (port,) = Lockstep(1).ports
        future = port.start(PARTS.steps(x, SEGMENTS, rule, envelope), label="it")
        port.drain()
        sent.append(future.value().own.positions)
    spread = kernels.fresh_of(was, SEGMENTS).deviation
    beyond = torch.cat([was[:400].abs() > 1.5 * spread[0], was[400:].abs() > 1.5 * spread[1]])
    assert torch.equal(torch.cat(sent).sort().values, beyond.nonzero().flatten())


def test_where_nothing_passes_a_threshold_the_largest_of_the_part_goes():
    """It was the largest of the model, if that lay in the part, and else nothing."""
    rule, was = StdThreshold(c=50.0, whole_below=0), normal(SIZE, 1)
    for step in range(4):
        (mean,), _ = _meet(PARTS, rule, [was.clone()], step)
        known = kernels.fresh_of(was, SEGMENTS)
        (port,) = Lockstep(1).ports
        envelope = Envelope(step=step, world_size=1, fresh=known)
        future = port.start(PARTS.steps(was.clone(), SEGMENTS, rule, envelope), label="it")
        port.drain()
        part = _part(step)
        for own in (mean.own, future.value().own):
            largest = {int(p[was[p].abs().argmax()]) for p in (part[part < 400], part[part >= 400])}
            assert set(own.positions.tolist()) == largest


def test_a_loud_part_has_room_of_its_own():
    """Room was that of the part before: behind a quiet one a loud part sent two entries at each of its turns."""
    rule = StdThreshold(c=2.0, whole_below=0)
    method = replace(laconic.topk(0.25, scope="model"), compressor=rule, exchange=replace(PARTS, block=16))
    world = World(method, 2, model=Segments.of(["w"], [256]))
    loud = torch.arange(256) // 16
    loud = (loud + loud // 4) % 4 == 1
    for step in range(120):
        world.step([grad * torch.where(loud, 1.0, 0.02) for grad in gradients(2, step, numel=256)])
    owed = torch.stack([owed[loud].abs().mean() for owed in world.owed()])
    # What waits is below the threshold, and what came in the four steps since its last turn.
    assert bool((owed < 3.0).all())


def test_in_a_matrix_of_wide_rows_parts_are_not_columns():
    """They were: a round of blocks had just as many entries as a row."""
    at = _Part(number=3, of=16, block=64).at(torch.arange(64 * 256))
    assert at.remainder(1024).unique().numel() == 1024


def test_a_small_model_is_sent_whole_and_a_large_one_never():
    """Parts of less than a thousand entries were small parameters, and went whole."""
    rule = TopK(density=0.02, whole_below=800)
    means, _ = _meet(PARTS, rule, [normal(SIZE, rank) for rank in range(2)])
    assert means[0].sent == pytest.approx(2 * 0.02 * SIZE, abs=4)
    means, _ = _meet(PARTS, replace(rule, whole_below=SIZE + 1), [normal(SIZE, rank) for rank in range(2)])
    assert means[0].sent == 2 * SIZE


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_each_rank_chooses_for_each_part_in_turn(ranks):
    """By chance some pairs of rank and part met once in hundreds of steps."""
    exchange, parts = replace(PARTS, inner=LedMean(), block=2), 4
    chosen = []
    for step in range(parts * ranks):
        # Each rank is large in one entry of each block.
        xs = [torch.zeros(SIZE) for _ in range(ranks)]
        for rank, x in enumerate(xs):
            x += 1e-3 * torch.arange(1, SIZE + 1) / SIZE
            x[rank::ranks] += 1
        (mean, *_), _ = _meet(exchange, TOP, xs, step)
        (leader,) = {int(at) % ranks for at in mean.own.positions}
        chosen.append((leader, step % parts))
    assert len(set(chosen)) == parts * ranks


def test_every_entry_has_its_turn_and_nothing_is_lost():
    method = replace(laconic.topk(0.25, scope="model", whole_below=0), exchange=InParts(parts=3, block=2))
    world, given, handed = World(method, 2), 0.0, 0.0
    touched = torch.zeros(world.model.numel, dtype=torch.bool)
    for step in range(24):
        grads = gradients(2, step)
        given = given + torch.stack(grads).sum(0)
        first, second = world.step(grads)
        assert same_bits(first, second)
        touched |= first != 0
        handed = handed + 2 * first
    torch.testing.assert_close(handed + torch.stack(world.owed()).sum(0), given)
    assert bool(touched.all())


def test_two_levels_may_have_parts_between_nodes():
    method = replace(
        laconic.topk(0.25, scope="model", whole_below=0),
        exchange=TwoLevel(inner=InParts(inner=GatherMean(), parts=2, block=2), node_size=2),
    )
    world = World(method, 4, node_size=2)
    handed = [world.step(gradients(4, step)) for step in range(4)]
    assert all(same_bits(each, ranks[0]) for ranks in handed for each in ranks)
    assert bool(handed[0][0].any())


def test_what_it_refuses_is_said_with_what_to_do():
    for inner in (ReduceMean(), ShardedMean(), PARTS, LedMean):
        with pytest.raises(TypeError, match=r"inner must be .* Write LedMean\(\)"):
            InParts(inner=inner)
    method = laconic.topk(0.01, exchange="led")
    with pytest.raises(ValueError, match="scope='model'"):
        replace(method, exchange=InParts())
    with pytest.raises(ValueError, match="without parts"):
        replace(laconic.cat("bits"), scope="model", exchange=InParts(inner=GatherMean()))
    model = replace(laconic.topk(0.01, scope="model"), exchange=InParts())
    with pytest.raises(ValueError, match="damping"):
        replace(model, damping=True, exchange=InParts(inner=GatherMean()))
    with pytest.raises(ValueError, match="memory='gradient'"):
        replace(model, memory="none", exchange=InParts(inner=GatherMean()))
    with pytest.raises(ValueError, match=r"budget .*without parts"):
        replace(model, tuner=laconic.Budget(share=0.01), exchange=InParts(inner=GatherMean()))
    with pytest.raises(ValueError, match=r"stochastic .*without parts"):
        replace(
            laconic.cat("bits", rule="random"), memory="update", scope="model", exchange=InParts(inner=GatherMean())
        )
    with pytest.raises(ValueError, match="measure_every"):
        World(model, 1, measure_every=1)
