"""Two hundred steps of real training: no law of density starves or floods, and the model learns."""

from __future__ import annotations

import math

import pytest
import torch

import laconic
from contracts.vectors import normal
from laconic.segments import Segments
from laconic.types import Momentum
from lockstep.world import World

INPUTS, CLASSES, RANKS, STEPS = 60, 10, 2, 200
MODEL = Segments.of(["weight", "bias"], [INPUTS * CLASSES, CLASSES])
MOMENTUM = Momentum(factor=0.9)

LAWS = {
    "fixed": laconic.sdagc(10.0, whole_below=100, scope="layer", values="exact"),
    "fixed, nesterov": laconic.sdagc(10.0, running=0.0, whole_below=100, scope="layer", values="exact"),
    "fixed, one threshold, clipped": laconic.sdagc(
        10.0, over="model", clip=1.0, whole_below=100, scope="layer", values="exact"
    ),
    "fixed, momentum in the optimizer": laconic.sdagc(
        5.0, momentum=False, revision="none", whole_below=100, scope="layer", values="exact"
    ),
    "warm-up": laconic.sdagc(10.0, warmup_steps=50, fallback=True, whole_below=100, scope="layer", values="exact"),
    "by default": laconic.sdagc(10.0, whole_below=0),
    "progress": laconic.sdagc(12.0, law="progress", whole_below=100, scope="layer", values="exact"),
    "target": laconic.sdagc(10.0, law="target", density=0.05, whole_below=100, scope="layer", values="exact"),
    "damped": laconic.sdagc(10.0, revision="damp", whole_below=100, scope="layer", values="exact"),
    "dgc": laconic.dgc(0.05, warmup_steps=50, clip=1.0, whole_below=100),
    "sidco": laconic.sidco(0.05, whole_below=100),
    "adacomp": laconic.adacomp(50, whole_below=100),
}


class Problem:
    """Softmax regression on clouds of points; each rank has its own batches."""

    def __init__(self) -> None:
        self.centres = normal(INPUTS * CLASSES, 1).view(CLASSES, INPUTS) * 0.5
        self.weights = torch.zeros(MODEL.numel)

    def _batch(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.Generator().manual_seed(seed)
        labels = torch.randint(CLASSES, (16,), generator=source)
        return self.centres[labels] + torch.randn(16, INPUTS, generator=source), labels

    def gradient(self, seed: int) -> tuple[torch.Tensor, float]:
        x, labels = self._batch(seed)
        weights = self.weights.clone().requires_grad_(True)
        matrix, bias = weights[: INPUTS * CLASSES].view(CLASSES, INPUTS), weights[INPUTS * CLASSES :]
        loss = torch.nn.functional.cross_entropy(x @ matrix.T + bias, labels)
        return torch.autograd.grad(loss, weights)[0], float(loss.detach())


def _train(method: laconic.Method, momentum: Momentum, steps: int = STEPS) -> tuple[list[float], ...]:
    """Return loss, density and what is owed in gradients, the latter two every fifth step. The rate falls late."""
    owned = method.momentum == "method"
    world = World(method, RANKS, model=MODEL, dtype=torch.float32, momentum=momentum if owned else None)
    problem, losses, shares, owing = Problem(), [], [], []
    velocity = torch.zeros(MODEL.numel)
    for step in range(steps):
        rate = 0.02 if step < 150 else 0.004
        made = [problem.gradient(1000 * step + rank) for rank in range(RANKS)]
        losses.append(sum(loss for _, loss in made) / RANKS)
        mean = world.step([g for g, _ in made], rates=rate, losses=[loss for _, loss in made])[0]
        velocity = mean if owned else momentum.factor * velocity + mean
        problem.weights = problem.weights - rate * velocity
        if step % 5 == 0:
            layer = world.reducers[0].stats().layers[0]
            shares.append(layer.density)
            owing.append(layer.owed_gradients)
    return losses, shares, owing


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_neither_starves_nor_floods_and_the_model_learns(law):
    momentum = Momentum(factor=0.9, nesterov=True) if "nesterov" in law else MOMENTUM
    losses, shares, owing = _train(LAWS[law], momentum)
    assert losses[0] == pytest.approx(math.log(CLASSES), rel=1e-3)
    assert _mean(losses[-40:]) < 0.7
    # After warm-up and first guesses: at least one entry in two hundred, at most a fifth.
    for part in (shares[12:20], shares[20:30], shares[30:]):
        assert 1 / 200 < _mean(part) < 1 / 5
    assert max(owing[12:]) < 100
    if law == "target":
        assert 0.05 / 1.5 < _mean(shares[20:]) < 0.05 * 1.5


def test_a_larger_coefficient_sends_less():
    runs = [
        _train(laconic.sdagc(c, whole_below=100, scope="layer", values="exact"), MOMENTUM, steps=100)[1][10:]
        for c in (5.0, 20.0)
    ]
    assert _mean(runs[0]) > 2 * _mean(runs[1])
