"""What the training loop asks of a task: a model, batches, a loss, a score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank stands: which one of how many, on what device, with which seed and whose data.

    ``data_home`` is the folder that ``laconic data`` fills; ``batch`` counts a rank's own examples a step.
    """

    rank: int
    ranks: int
    device: torch.device
    seed: int
    batch: int
    data_home: Path


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a task is judged by. With ``exponential`` it is e to the mean score: perplexity from nats."""

    name: str
    lower_is_better: bool
    exponential: bool = False

    def of(self, tally: Tally) -> float:
        """Return the metric of a tally over all ranks; infinite where nothing was scored.

        >>> Metric(name="accuracy", lower_is_better=False).of(Tally(loss=8.0, examples=4, score=3.0, scored=4))
        0.75
        """
        mean = tally.score / tally.scored if tally.scored else math.inf
        # e to the 700 is about the largest double.
        return math.exp(min(mean, 700.0)) if self.exponential else mean

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than another."""
        return one < other if self.lower_is_better else one > other


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Sums over the examples that this rank evaluated: they are added up over ranks, and then divided."""

    loss: float
    examples: float
    score: float
    scored: float


class Work(Protocol):
    """A task made ready on one rank. Every rank holds the same model; batches differ.

    ``batch(step)`` depends on nothing but the seed, the rank and the step, so that a run that goes on from a
    checkpoint sees what it would have seen. What else a step leaves behind (a recurrent state) is in
    ``state_dict``. ``splits`` names what there is to evaluate on: the first while training, all at the end.
    """

    model: nn.Module
    metric: Metric
    steps_per_epoch: int
    splits: tuple[str, ...]

    def batch(self, step: int) -> Any:
        """Return this rank's batch of a step, on the device."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch; ``model`` is ``self.model``, perhaps wrapped."""
        ...

    def evaluate(self, split: str) -> Tally:
        """Score this rank's share of a split with ``self.model``, which is left in training mode."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what steps have left behind on this rank: tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...
