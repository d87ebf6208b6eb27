"""Work on ranks that share a process: the losses and gradients of all ranks in one call, on a GPU as one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from laconic.lab.lstm_together import TextTogether
from laconic.lab.models.awd import AWD
from laconic.lab.models.lstm import LSTM
from laconic.lab.models.resnet import ResNet
from laconic.lab.resnet_together import PicturesTogether
from laconic.lab.seeds import seed_draws
from laconic.lab.work import Work
from laconic.sim import World

# Steps before the graph is captured: kernels are compiled and libraries set up in them.
_EAGER_STEPS = 2


class Engine(Protocol):
    """Who computes for all ranks: ``run`` leaves a loss and gradients by name, each with a row a rank."""

    losses: Tensor
    grads: dict[str, Tensor]

    def fill(self, batches: Sequence[Any]) -> None:
        """Take the batch of every rank."""
        ...

    def run(self) -> None:
        """Compute; always in the same tensors, from the same tensors."""
        ...


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a rank comes with; ``seed`` is what it would draw by."""

    model: nn.Module
    batch: Any
    seed: int


class Shared:
    """What all ranks of a process share; ``same`` says that all of them have the same weights."""

    def __init__(self, *, same: bool) -> None:
        self._same, self._steps = same, 0
        self._replay: Callable[[], None] | None = None
        self._engine: Engine | None = None

    def step(self, given: list[Given]) -> Engine:
        """Compute the losses and gradients of all ranks."""
        batches = [one.batch for one in given]
        engine = self._engine = self._engine or _engine_of([one.model for one in given], batches, same=self._same)
        engine.fill(batches)
        # Whoever comes last computes, which is not the same rank each time that a run is repeated.
        seed_draws(engine.losses.device, given[0].seed)
        if self._replay is not None:
            self._replay()
        else:
            engine.run()
            self._steps += 1
            if engine.losses.is_cuda and self._steps > _EAGER_STEPS:
                self._capture(engine)
        return engine

    def _capture(self, engine: Engine) -> None:
        """Record what a step is; nothing is computed. This thread has just run one: libraries begin by thread."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            engine.run()
        self._replay = graph.replay


def can_be_together(model: nn.Module) -> bool:
    """Whether there is an engine for a model."""
    return isinstance(model, LSTM | AWD | ResNet)


def _engine_of(models: list[nn.Module], batches: list[Any], *, same: bool) -> Engine:
    texts = [model for model in models if isinstance(model, LSTM | AWD)]
    if texts:
        return TextTogether.of(texts, batches[0].tokens, same=same)
    return PicturesTogether([m for m in models if isinstance(m, ResNet)], batches[0].images, same=same)


class TogetherWork:
    """Work on one rank, whose gradients are in their places when ``loss`` returns.

    For plain modules of ranks that share a process. Backward on the loss adds nothing; times are not simulated.
    """

    def __init__(self, work: Work, world: World, rank: int, shared: Shared) -> None:
        self._world, self._rank, self._shared = world, rank, shared
        self.model, self.metric, self.splits = work.model, work.metric, work.splits
        self.steps_per_epoch = work.steps_per_epoch
        self.batch, self.evaluate = work.batch, work.evaluate
        self.state_dict, self.load_state_dict = work.state_dict, work.load_state_dict
        self._named = list(work.model.named_parameters())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ARG002
        """Return the mean loss of a batch, and leave the parameters' gradients in their places."""
        given = Given(model=self.model, batch=batch, seed=torch.default_generator.initial_seed())
        engine = self._world.together(self._rank, "gradients", given, self._shared.step)
        for name, parameter in self._named:
            parameter.grad = engine.grads[name][self._rank]
        # A copy: the next step writes over it.
        return engine.losses[self._rank].clone().requires_grad_()
