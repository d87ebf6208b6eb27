"""Linear layers with ReLU between them: the work of the benchmarks of steps."""

from __future__ import annotations

from torch import nn


def perceptron(layers: int, width: int) -> nn.Sequential:
    """Return as many layers as wide."""
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
