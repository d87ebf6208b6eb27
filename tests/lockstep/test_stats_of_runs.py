"""The numbers of a run: bytes are those handed to the transport, computed here from the plans alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import normal
from covering import in_turn
from laconic.segments import Segments
from laconic.state import observation
from laconic.tuners import Warmup
from laconic.wire import Frame
from lockstep.world import MODEL, World, gradients

every_recipe = pytest.mark.parametrize("method", recipes(), ids=label)
# Those whose bytes follow from the compressor's plan.
SIZED = [m for m in recipes() if m.exchange.name in ("gather_mean", "reduce_mean")]
BUCKETS = [["w", "s"], ["v"], ["empty", "b"]]


def _bytes_of_the_next_step(world: World) -> int:
    """What one rank will hand over, from what all ranks know before the step."""
    method, state, item = world.method, world.save()[0], world.dtype.itemsize
    parts = {name: (getattr(method.compressor, name), value) for name, value in state["setting"].items()}
    # Where a compressor holds another one, that one's settings are saved by name too.
    saved = {k: replace(old, **new) if isinstance(new, dict) else new for k, (old, new) in parts.items()}
    setting = replace(method.compressor, **saved)
    _, compressor = method.tuner.update(state["tuner"], observation(state["seen"]), setting)
    if method.scope == "model":
        layouts = [MODEL.merged()]
    else:
        layouts = [Segments.of(names, [MODEL[n].size for n in names]) for names in BUCKETS]
    total = 0
    for layout in layouts:
        plan = compressor.plan(layout, step=state["step"], rooms=world.rooms())
        if method.exchange.name == "gather_mean":
            tells = method.tuner.spectrum_of != "none"
            form = method.exchange.values.form
            total += Frame(plan=plan, form=form, dtype=world.dtype, notes=0, spectrum=tells).total
        else:
            # Dense is as bare as DDP's own; others carry the 32 bits of a digest behind their values.
            total += (plan.known_count + (0 if compressor.name == "dense" else 32)) * item
    return total


@pytest.mark.parametrize(("method", "made_of"), in_turn(SIZED, [(2, torch.float64), (3, torch.float32)], ids=label))
def test_wire_bytes_are_the_bytes_of_the_messages(method, made_of):
    """Also of room that was not used: it travels, so it counts."""
    ranks, dtype = made_of
    world, expected = World(method, ranks, dtype=dtype), 0
    for step in range(6):
        expected += _bytes_of_the_next_step(world)
        world.step(gradients(ranks, step, dtype=dtype), buckets=BUCKETS)
    for reducer, port in zip(world.reducers, world.lockstep.ports, strict=True):
        stats = reducer.stats()
        assert stats.wire_bytes == port.wire_bytes == expected
        assert stats.collectives == port.collectives == 6 * (1 if method.scope == "model" else len(BUCKETS))
        assert stats.dense_bytes == 6 * MODEL.numel * dtype.itemsize
        assert stats.ratio == stats.dense_bytes / expected
        assert stats.steps == 6


def test_a_warm_up_sends_less_from_step_to_step():
    method = laconic.topk(0.02, whole_below=0, warmup_steps=4)
    assert isinstance(method.tuner, Warmup)
    model = Segments.of(["w"], [5000])
    world, sent = World(method, 2, model=model), [0]
    for step in range(7):
        world.step(gradients(2, step, numel=5000))
        sent.append(world.reducers[0].stats().wire_bytes)
    steps = [b - a for a, b in itertools.pairwise(sent)]
    assert steps[:5] == sorted(steps[:5], reverse=True)
    assert len(set(steps[:5])) == 5
    assert len(set(steps[4:])) == 1


@every_recipe
def test_one_rank_alone_sends_nothing(method):
    world = World(method, 1)
    world.step(gradients(1, 0))
    stats = world.reducers[0].stats()
    assert stats.wire_bytes == stats.collectives == 0
    assert stats.ratio == math.inf


def test_density_is_the_share_sent_in_the_last_step():
    model = Segments.of(["w", "b"], [100, 10])
    world = World(laconic.topk(0.2, whole_below=20), 2, model=model)
    assert world.reducers[0].stats().density == 0.0
    for step in range(2):
        world.step(gradients(2, step, numel=110))
        assert world.reducers[0].stats().density == (20 + 10) / 110
    dense = World(laconic.dense(), 2, model=model)
    dense.step(gradients(2, 0, numel=110))
    assert dense.reducers[1].stats().density == 1.0


@every_recipe
def test_owed_norm_is_the_norm_of_what_this_rank_owes(method):
    world = World(method, 2)
    for step in range(3):
        world.step(gradients(2, step))
    norms = [float(torch.linalg.vector_norm(owed)) for owed in world.owed()] or [0.0, 0.0]
    assert [r.stats().owed_norm for r in world.reducers] == pytest.approx(norms)


def test_dense_bytes_are_counted_in_the_gradients_own_dtypes():
    world = World(laconic.topk(0.3), 2, dtypes=dict.fromkeys(MODEL.names, torch.bfloat16))
    for step in range(3):
        world.step(gradients(2, step), buckets=BUCKETS)
    assert world.reducers[0].stats().dense_bytes == 3 * 2 * MODEL.numel


def test_seconds_come_from_the_clock_that_was_given():
    ticks = itertools.count()
    ticking = World(laconic.topk(0.3), 1, clock=lambda: float(next(ticks)))
    standing = World(laconic.topk(0.3), 1, clock=lambda: 5.0)
    for world in (ticking, standing):
        world.step([normal(MODEL.numel, 0, torch.float64)])
    assert ticking.reducers[0].stats().select_seconds > 0
    assert ticking.reducers[0].stats().wait_seconds > 0
    assert standing.reducers[0].stats().select_seconds == standing.reducers[0].stats().wait_seconds == 0.0


def test_bytes_of_a_skipped_step_are_counted_too():
    world = World(laconic.topk(0.3, whole_below=0), 2)
    grads = gradients(2, 0)
    grads[0][2] = math.nan
    world.step(grads)
    skipped = world.reducers[0].stats()
    world.step(gradients(2, 1))
    assert skipped.wire_bytes > 0
    assert world.reducers[0].stats().wire_bytes == 2 * skipped.wire_bytes
    assert skipped.steps == skipped.skipped_steps == 1
