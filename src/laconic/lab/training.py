"""How long, how fast and with which optimizer: what every task's training has in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from laconic.arguments import check_choice, check_number, check_whole
from laconic.codecs import WORDS

Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["constant", "linear", "cosine", "steps"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a training. What is None is the task's own choice; a run's spec.json has all of them."""

    steps: int | None = None
    """Optimizer steps; or give epochs."""
    epochs: float | None = None
    """Passes over the data."""
    batch: int | None = None
    """Examples a rank and step (lm: streams of text)."""
    optimizer: Optimizer | None = None
    """sgd or adamw."""
    rate: float | None = None
    """Learning rate."""
    momentum: float | None = None
    """Momentum of sgd, in [0, 1)."""
    decay: float | None = None
    """Weight decay."""
    clip: float | None = None
    """Norm to which the gradient is clipped, 0 for none; methods that clip local gradients get the same number."""
    schedule: Schedule | None = None
    """How the rate falls: constant; linear, in the second half; cosine; steps, to a tenth at 1/2 and at 3/4."""
    final: float | None = None
    """The share of the rate that is left at the end of linear and cosine."""
    warmup: int | None = None
    """Steps in which the rate rises from nothing."""
    seed: int = 0
    """Seed of weights, split, order, dropout and augmentation."""
    settle: str = "none"
    """How what ranks owe at the end of rounds of local steps is sent: none, sign (1 bit), octaves2 (2), exact."""
    eval_every: int | None = None
    """Steps between evaluations; by default an epoch, and at least ten evaluations."""
    log_every: int = 10
    """Steps between lines of steps.jsonl."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "eval_every", "log_every"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, f"Write --{name.replace('_', '-')} 10, say.")
        for name in ("warmup", "seed"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 0, f"Write --{name} 0.")
        for name in ("epochs", "rate", "decay", "clip", "final", "momentum"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0.0, f"Write --{name} 0.1, say.")
        check_choice("settle", self.settle, ("none", *WORDS))
        if self.momentum is not None and self.momentum >= 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}. Write --momentum 0.9.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"give steps or epochs, got both ({self.steps} and {self.epochs}). Leave one out.")

    def filled(self, choice: Training) -> Training:
        """Return these settings with what is None taken from a task's choice."""
        ours = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in ours.items() if value is not None}
        if "epochs" in given or "steps" in given:
            choice = replace(choice, steps=None, epochs=None)
        return replace(choice, **given)


@dataclass(frozen=True, kw_only=True)
class Course:
    """The settings of a run with nothing left open."""

    steps: int
    batch: int
    optimizer: Optimizer
    rate: float
    momentum: float
    decay: float
    clip: float
    schedule: Schedule
    final: float
    warmup: int
    seed: int
    eval_every: int
    log_every: int
    settle: str = "none"

    @staticmethod
    def of(training: Training, steps_per_epoch: int) -> Course:
        """Settle what depends on the size of the data."""
        if training.steps is None and training.epochs is None:
            training = replace(training, epochs=1.0)
        steps = training.steps or max(1, round((training.epochs or 0) * steps_per_epoch))
        known: dict[str, Any] = {
            "optimizer": "sgd", "momentum": 0.0, "decay": 0.0, "clip": 0.0, "schedule": "constant", "final": 0.0,
            "warmup": 0, "batch": 1, "rate": 0.1,
        }  # fmt: skip
        wanted = {f.name: getattr(training, f.name, None) for f in fields(Course)}
        known |= {name: value for name, value in wanted.items() if value is not None}
        every = training.eval_every or max(1, min(steps_per_epoch, math.ceil(steps / 10)))
        return Course(**(known | {"steps": steps, "eval_every": every}))

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = step / self.steps
        if self.schedule == "linear":
            fall = 1 - (1 - self.final) * max(0.0, 2 * done - 1)
        elif self.schedule == "cosine":
            fall = self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
        elif self.schedule == "steps":
            fall = 0.1 ** ((done >= 0.5) + (done >= 0.75))
        else:
            fall = 1.0
        return self.rate * rise * fall

    def make_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer for a model."""
        if self.optimizer == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=self.decay)
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum, weight_decay=self.decay)
