"""Lockstep and gloo: the same exchanges give the same bits, so what is examined in one process holds in many."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.codecs import Linear
from laconic.exchanges import ShardedMean, SmallestMean
from laconic.methods import METHODS
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports import Lockstep, ProcessGroupTransport
from laconic.transports.lockstep import ring_sum
from laconic.types import Momentum
from models import digest

MODEL = Segments.of(["a", "b", "c", "d", "scalar"], [3000, 1500, 257, 40, 1], [60, 25, 1, 5, 1])
# As backward would fill them: not in the model's order.
BUCKETS = [("scalar", "d"), ("c", "b"), ("a",)]
STEPS, POISONED = 5, 3

CASES = {name: make() for name, make in METHODS.items()} | {
    # Seconds that are measured are other ones every time.
    "cat": laconic.cat("bits"),
    "cat, curvature": laconic.cat("packets", gain="curvature"),
    "topk warm-up": laconic.topk(0.02, warmup_steps=4),
    "topk update": laconic.topk(0.02, memory="update", whole_below=0),
    "topk by chance": laconic.topk(0.02, values="stochastic4"),
    "cat by signs": laconic.cat("bits", rule="sign", whole_below=0),
    "randomk update": laconic.randomk(0.02, memory="update", warmup_steps=4),
    "randomk none": laconic.randomk(0.02, memory="none"),
    "powersgd update": laconic.powersgd(2, memory="update", seed=3),
    "powersgd none": laconic.powersgd(1, memory="none", least_ratio=1.0),
    "sdagc with all companions": laconic.sdagc(
        3.0, law="target", density=0.05, clip=0.5, clip_scope="layer", fallback=True, scope="layer", values="exact"
    ),
    "sdagc progress": laconic.sdagc(
        3.0, law="progress", over="model", clip=0.5, whole_below=0, scope="layer", values="exact"
    ),
    "sdagc damped": laconic.sdagc(
        3.0, std_of="residual", revision="damp", masking=False, scope="layer", values="exact"
    ),
    "sdagc whole": replace(
        laconic.sdagc(3.0, over="model", scope="model", values="exact"), tuner=laconic.Warmup(steps=4)
    ),
    "topk sharded": replace(laconic.topk(0.02), exchange=ShardedMean(values=Linear(bits=4, rounding="stochastic"))),
    "dgc smallest": replace(laconic.dgc(0.02, warmup_steps=4), exchange=SmallestMean()),
    "sdagc sharded": replace(laconic.sdagc(3.0, scope="layer", values="exact"), exchange=ShardedMean()),
    "dgc warm-up": laconic.dgc(0.02, warmup_steps=4, clip=0.5),
}
MEASURED = [
    name for name, m in CASES.items() if m.memory != "none" and not m.compressor.counts_vary and m.decay == 1
]


def _buckets(rank, step, dtype):
    source = torch.Generator().manual_seed(100 * rank + step)
    for names in BUCKETS:
        sizes = [MODEL[name].size for name in names]
        grad = torch.randn(sum(sizes), generator=source, dtype=dtype)
        if (rank, step) == (1, POISONED):
            grad[0] = float("inf")
        yield grad, Segments.of(names, sizes, [MODEL[name].rows for name in names])


def _begin(reducer, rank, step, dtype, notes):
    rates = {name: 0.1 * (i + 1) / (step + 1) for i, name in enumerate(MODEL.names)}
    momentum = Momentum(factor=0.9 - 0.1 * step, nesterov=True)
    owned = reducer.method.momentum == "method"
    reducer.loss = 3.0 / (step + 1) + rank
    reducer.begin_step(rates=rates, momenta=dict.fromkeys(MODEL.names, momentum) if owned else None, grad_scale=8.0)
    grads = []
    for i, (grad, segments) in enumerate(_buckets(rank, step, dtype)):
        told = torch.tensor([1, rank % 2], dtype=torch.uint8) if notes and i == 0 else None
        reducer.begin(grad, segments, notes=told)
        grads.append(grad)
    return grads


def _summary(reducer, seen):
    state, stats = reducer.state_dict(), reducer.stats()
    memory = {kind: digest(vectors.values()) for kind, vectors in state["memory"].items()}
    numbers = (stats.steps, stats.skipped_steps, stats.wire_bytes, stats.collectives, stats.density)
    ledger = {kind: repr(state["ledger"][kind]) for kind in ("rooms", "running", "clipped")}
    return seen, memory, numbers, [m.xi for m in stats.history], ledger, repr(state["tuner"])


def _reducer(method, transport, dtype, every):
    return Reducer(
        method,
        MODEL,
        transport,
        dtype=dtype,
        fingerprint=7,
        measure_every=every,
        velocity=method.momentum == "method",
        track_age=method.memory != "none" and not every,
    )


def _in_lockstep(ranks, method, dtype, every, notes):
    world = Lockstep(ranks)
    reducers = [_reducer(method, port, dtype, every) for port in world.ports]
    seen = [[] for _ in range(ranks)]
    for step in range(STEPS):
        grads = [_begin(r, rank, step, dtype, notes) for rank, r in enumerate(reducers)]
        for reducer in reducers:
            reducer.end_step()
        for rank in range(ranks):
            seen[rank].append(digest(grads[rank]))
    return [_summary(r, s) for r, s in zip(reducers, seen, strict=True)]


def _over_gloo(group, method, dtype, every, notes):
    rank = dist.get_rank(group)
    reducer = _reducer(method, ProcessGroupTransport(group, torch.device("cpu")), dtype, every)
    seen = []
    for step in range(STEPS):
        grads = _begin(reducer, rank, step, dtype, notes)
        reducer.end_step()
        seen.append(digest(grads))
    return _summary(reducer, seen)


def _check(pool, ranks, *case):
    ours, theirs = _in_lockstep(ranks, *case), pool.run(ranks, _over_gloo, *case)
    assert theirs == ours
    assert theirs[0][2][:2] == (STEPS, 1 if ranks > 1 else 0)
    assert len(set(theirs[0][0])) == STEPS


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_lockstep_and_gloo_give_the_same_bits(pool, case, ranks):
    _check(pool, ranks, CASES[case], torch.float32, 0, False)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", MEASURED)
def test_so_they_do_with_measurements_of_several_rounds(pool, case, ranks):
    _check(pool, ranks, CASES[case], torch.float64, 2, False)


@pytest.mark.parametrize("case", CASES)
def test_so_they_do_with_notes(pool, case):
    _check(pool, 3, CASES[case], torch.float32, 0, True)


def _vector(rank, size, dtype):
    source = torch.Generator().manual_seed(7919 * rank + size)
    return torch.randn(size, generator=source).to(dtype)


def _unlike_gloo(group, sizes, dtype):
    """The sizes for which ring_sum and a real all-reduce differ in any bit."""
    ranks, wrong = dist.get_world_size(group), []
    for size in sizes:
        vectors = [_vector(rank, size, dtype) for rank in range(ranks)]
        real = vectors[dist.get_rank(group)].clone()
        dist.all_reduce(real, group=group)
        if digest([real]) != digest([ring_sum(vectors)]):
            wrong.append(size)
    return wrong


SIZES = [*range(1, 80), *range(80, 1000, 37), *range(1000, 5001, 211), 4096, 5000]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [(ranks, dtype) for ranks in (2, 3, 4) for dtype in (torch.float32, torch.float64)]
    + [(3, torch.bfloat16), (3, torch.float16)],
    ids=str,
)
def test_ring_sum_adds_as_gloo_does_for_small_vectors(pool, ranks, dtype):
    assert pool.run(ranks, _unlike_gloo, SIZES, dtype) == [[]] * ranks


@pytest.mark.parametrize(("ranks", "dtype"), [(3, torch.float32), (3, torch.float64), (4, torch.float32)], ids=str)
def test_ring_sum_adds_as_gloo_does_around_its_pieces_of_a_mebibyte(pool, ranks, dtype):
    piece = MIB // dtype.itemsize
    edges = [2 * ranks * piece + d for d in (-1, 0, 1)] + [piece + 1, ranks * piece - 1]
    assert pool.run(ranks, _unlike_gloo, edges, dtype) == [[]] * ranks


def test_the_order_of_a_sum_shows_in_its_bits():
    # Otherwise the exams above would pass with any order.
    vectors = [_vector(rank, 1000, torch.float32) for rank in range(3)]
    assert not torch.equal(ring_sum(vectors), vectors[0] + vectors[1] + vectors[2])
