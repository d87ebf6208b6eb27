"""Memory is kept by parameter name: how parameters are dealt into buckets changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laconic
from contracts.registry import label, recipes
from contracts.vectors import dyadic, normal, same_bits
from laconic.segments import Segments
from lockstep.world import MODEL, World, gradients

GATHERED = [m for m in recipes() if m.exchange.name == "gather_mean"]
# One number over the whole model must not depend on the order in which its parts came.
GATHERED += [
    laconic.sdagc(1.5, over="model", scope="model", running=0.0, whole_below=0, values="exact"),
    laconic.sdagc(1.5, clip=0.5, clip_scope="model", running=0.0, whole_below=0, scope="layer", values="exact"),
    laconic.sdagc(1.5, clip=0.5, clip_scope="layer", revision="damp", whole_below=4, scope="layer", values="exact"),
]
# What is agreed for all buckets by their messages' sizes and coarse counts follows how many buckets there are.
WEIGHED = [m for m in GATHERED if m.tuner.spectrum_of != "none" and m.scope == "layer"]
GATHERED = [m for m in GATHERED if m not in WEIGHED]
REDUCED = [m for m in recipes() if m.exchange.name == "reduce_mean"]


@st.composite
def _dealt(draw: st.DrawFn) -> list[list[str]]:
    """The parameters in any order, cut into any buckets, two at least."""
    names = list(draw(st.permutations(MODEL.names)))
    cuts = sorted(draw(st.sets(st.integers(1, len(names) - 1), min_size=1)))
    return [names[a:b] for a, b in zip([0, *cuts], [*cuts, len(names)], strict=True)]


def _same_however_dealt(method, ranks, dealt, draw):
    one, other = World(method, ranks), World(method, ranks)
    for step, buckets in enumerate(dealt):
        grads = gradients(ranks, step, draw=draw)
        whole = one.step(grads)
        parts = other.step(grads, buckets=buckets)
        assert all(same_bits(a, b) for a, b in zip(whole, parts, strict=True))
    assert all(same_bits(a, b) for a, b in zip(one.owed(), other.owed(), strict=True))
    assert one.rooms() == other.rooms()
    if method.exchange.name == "gather_mean":
        for a, b in zip(one.reducers, other.reducers, strict=True):
            assert a.stats().layers == b.stats().layers
    if method.momentum == "method":
        assert all(same_bits(a, b) for a, b in zip(one.kept("velocity"), other.kept("velocity"), strict=True))


@pytest.mark.parametrize("method", GATHERED, ids=label)
@settings(max_examples=4)
@given(dealt=st.lists(_dealt(), min_size=2, max_size=4), ranks=st.sampled_from([3, 2, 5, 1]))
def test_gathered_buckets_may_be_dealt_anew_in_every_step(method, dealt, ranks):
    _same_however_dealt(method, ranks, dealt, normal)


@pytest.mark.parametrize("method", WEIGHED, ids=label)
@settings(max_examples=4)
@given(dealt=st.lists(_dealt(), min_size=2, max_size=4), ranks=st.sampled_from([3, 2, 5, 1]))
def test_however_buckets_are_dealt_ranks_agree_and_nothing_is_lost(method, dealt, ranks):
    world, given, handed = World(method, ranks), 0.0, 0.0
    for step, buckets in enumerate(dealt):
        grads = gradients(ranks, step)
        given += torch.stack(world.enters(grads)).sum(0)
        first, *others = world.step(grads, buckets=buckets)
        assert all(same_bits(mean, first) for mean in others)
        handed += first * ranks * world.units(0.5)
    assert len({repr(reducer.agreement()) for reducer in world.reducers}) == 1
    torch.testing.assert_close(handed + torch.stack(world.owed()).sum(0), given, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", REDUCED, ids=label)
@settings(max_examples=4)
@given(dealt=st.lists(_dealt(), min_size=2, max_size=4), ranks=st.sampled_from([2, 4, 1]))
def test_reduced_buckets_may_be_dealt_anew_in_every_step(method, dealt, ranks):
    # A ring adds in an order that depends on an entry's place in its bucket: bits are compared of exact sums.
    _same_however_dealt(method, ranks, dealt, dyadic)


@pytest.mark.parametrize("scope", ["layer", "model"])
def test_a_parameter_that_no_bucket_brings_keeps_what_it_owes(scope):
    """With scope 'model' the whole vector was written back, and absent parameters lost what they owed."""
    world = World(laconic.topk(0.1, scope=scope, whole_below=0), 2)
    world.step(gradients(2, 0))
    before = [MODEL.views(owed)[0].clone() for owed in world.owed()]
    assert all(owed.any() for owed in before)
    world.step(gradients(2, 1), buckets=[[name for name in MODEL.names if name != "w"]])
    for owed, then in zip(world.owed(), before, strict=True):
        assert same_bits(MODEL.views(owed)[0], then)


def test_a_parameter_without_entries_can_be_a_bucket_of_its_own():
    world = World(laconic.topk(0.3), 3)
    grads = gradients(3, 0)
    together = World(laconic.topk(0.3), 3).step(grads)
    apart = world.step(grads, buckets=[["empty"], ["w", "b", "v", "s"]])
    assert same_bits(together[0], apart[0])


def test_the_future_of_a_bucket_waits_for_the_last_rank_and_hands_the_same_tensor_back():
    world = World(laconic.topk(0.3, whole_below=0), 2)
    layouts = [Segments.of(["v", "b"], [9, 3]), Segments.of(["w", "s"], [14, 1])]
    grads = [[torch.ones(s.numel, dtype=torch.float64) for s in layouts] for _ in range(2)]
    futures = []
    for reducer, mine in zip(world.reducers, grads, strict=True):
        reducer.begin_step()
        futures.append([reducer.begin(g, s) for g, s in zip(mine, layouts, strict=True)])
        assert not any(f.done() for rank in futures for f in rank)
        reducer.end_step()
    for mine, rank in zip(grads, futures, strict=True):
        assert all(f.value() is g for f, g in zip(rank, mine, strict=True))


def test_the_text_of_a_method_does_not_steer_it():
    one, other = laconic.topk(0.3, whole_below=0), replace(laconic.topk(0.3, whole_below=0), name="mine")
    grads = gradients(2, 0)
    assert same_bits(World(one, 2).step(grads)[0], World(other, 2).step(grads)[0])
