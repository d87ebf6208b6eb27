"""TopK-SGD against values worked out by hand from Algorithm 1 (Alistarh et al. 2018; PAPERS.md 3.2 and 3.6)."""

from __future__ import annotations

import math

import pytest
import torch

import laconic
from laconic.compressors import TopK
from laconic.segments import Segments
from laconic.theory import _gamma
from lockstep.world import World, gradients

RATE = 0.1
MODEL = Segments.of(["x"], [4])
# Each step: the gradients of worker 1 and 2, then v and the memories of worker 1 and 2.
STEPS = [
    (
        ([1, -2, 0.5, 0], [0.5, 1, -3, 0.2]),
        ([0, 0.1, 0.15, 0], [0.1, 0, 0.05, 0], [0.05, 0.1, 0, 0.02]),
    ),
    (
        # Worker 2 has the tie 0.1 / 0.1: the lowest index wins.
        ([1, 0.5, 0.5, 0], [0.5, -1, 1, 0.2]),
        ([-0.15, 0.1, 0.15, 0], [0, 0.05, 0.1, 0], [0, 0, 0.1, 0.04]),
    ),
    (
        ([1, 0, 0.5, 0.1], [0.5, 0, 1, 0.2]),
        ([-0.15, 0.1, -0.025, 0], [0.1, 0.05, 0, 0.01], [0.05, 0, 0, 0.06]),
    ),
]


def _close(ours: torch.Tensor, golden: list[float]) -> None:
    torch.testing.assert_close(ours.double(), torch.tensor(golden, dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_three_steps_of_two_workers(dtype):
    world = World(laconic.topk_sgd(0.25), 2, model=MODEL, dtype=dtype)
    v = torch.zeros(4, dtype=dtype)
    for grads, (golden_v, *golden_memories) in STEPS:
        means = world.step([torch.tensor(g, dtype=dtype) for g in grads], rates=RATE)
        assert torch.equal(means[0], means[1])
        # What SGD does with the gradient it is handed.
        v = v - RATE * means[0]
        _close(v, golden_v)
        for memory, golden in zip(world.owed(), golden_memories, strict=True):
            _close(memory, golden)


def test_the_same_through_parameters_of_unlike_sizes():
    """K is taken of the whole vector: how it is cut into parameters does not matter."""
    model = Segments.of(["a", "b", "c"], [1, 2, 1])
    world, v = World(laconic.topk_sgd(0.25), 2, model=model), torch.zeros(4, dtype=torch.float64)
    for grads, (golden_v, *golden_memories) in STEPS:
        tensors = [torch.tensor(g, dtype=torch.float64) for g in grads]
        v = v - RATE * world.step(tensors, rates=RATE, buckets=[["c"], ["a", "b"]])[0]
        _close(v, golden_v)
        for memory, golden in zip(world.owed(), golden_memories, strict=True):
            _close(memory, golden)


def test_the_virtual_iterate_is_the_mean_memory_away():
    world = World(laconic.topk_sgd(0.25), 2, model=MODEL, measure_every=1)
    v = x = torch.zeros(4, dtype=torch.float64)
    for grads, _ in STEPS:
        tensors = [torch.tensor(g, dtype=torch.float64) for g in grads]
        x = x - RATE * torch.stack(tensors).mean(0)
        v = v - RATE * world.step(tensors, rates=RATE)[0]
        memory = torch.stack(world.owed()).mean(0)
        torch.testing.assert_close(v - x, memory, rtol=0, atol=1e-15)
        seen = world.reducers[0].stats().history[-1]
        assert seen.drift == pytest.approx(float(memory.norm()), abs=1e-15)
        assert seen.identity_error < 1e-12


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_identity_holds_under_any_schedule(ranks):
    world = World(laconic.topk_sgd(0.1), ranks, model=Segments.of(["x"], [50]))
    v = x = torch.zeros(50, dtype=torch.float64)
    for step in range(40):
        rate, grads = 0.3 / math.sqrt(step + 1), gradients(ranks, step, numel=50)
        x = x - rate * torch.stack(grads).mean(0)
        v = v - rate * world.step(grads, rates=rate)[0]
    memory = torch.stack(world.owed()).mean(0)
    torch.testing.assert_close(v - x, memory, rtol=0, atol=1e-13)
    assert float(memory.norm()) > 0.1


@pytest.mark.parametrize(
    ("density", "golden", "digits"), [(0.001, 1998, 0), (0.01, 198, 0), (0.1, 18.5, 1), (0.5, 2.41, 2)]
)
def test_gamma_over_one_minus_gamma(density, golden, digits):
    gamma = _gamma(Segments.of(["x"], [10_000]), TopK(density=density, whole_below=0), 0)
    assert gamma == pytest.approx(math.sqrt(1 - density), abs=1e-12)
    # The paper cuts the larger ones short: 1998.5 and 198.5.
    assert gamma / (1 - gamma) == pytest.approx(golden, abs=0.6 * 10**-digits)


def test_with_one_worker_it_is_sgd_with_a_memory():
    """P = 1, K = 1: two entries of equal gradient take turns, and nothing is lost."""
    world, v = World(laconic.topk_sgd(0.5), 1, model=Segments.of(["x"], [2])), torch.zeros(2, dtype=torch.float64)
    path = []
    for _ in range(4):
        v = v - 0.5 * world.step([torch.ones(2, dtype=torch.float64)], rates=0.5)[0]
        path.append(v.tolist())
    assert path == [[-0.5, 0.0], [-0.5, -1.0], [-1.5, -1.0], [-1.5, -2.0]]
