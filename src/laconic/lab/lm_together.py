"""Language models on ranks that share a process: the losses and gradients of all ranks in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laconic.lab.lstm_together import Size, Together
from laconic.lab.models.lstm import LSTM
from laconic.lab.tasks.lm import LmWork, Window
from laconic.sim import World

# Steps before the graph is captured: kernels are compiled and libraries set up in them.
_EAGER_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What a rank comes with."""

    model: LSTM
    batch: Window


class Shared:
    """What all ranks of a process share: their models side by side, and on a GPU the graph of a step."""

    def __init__(self, *, same: bool) -> None:
        self._same, self._steps = same, 0
        self._replay: Callable[[], None] | None = None
        self.together: Together | None = None

    def step(self, given: list[_Given]) -> Together:
        """Compute the losses and gradients of all ranks."""
        together = self.together = self.together or self._begin(given)
        if given[0].batch.first:
            together.forget()
        torch.stack([one.batch.tokens for one in given], out=together.tokens)
        torch.stack([one.batch.targets for one in given], out=together.targets)
        if self._replay is not None:
            self._replay()
        elif together.tokens.is_cuda and self._steps == _EAGER_STEPS:
            self._capture(together)
        else:
            together.run()
        self._steps += 1
        return together

    def _begin(self, given: list[_Given]) -> Together:
        streams, length = given[0].batch.tokens.shape
        size = Size(ranks=len(given), streams=streams, length=length, same=self._same)
        return Together([one.model for one in given], size)

    def _capture(self, together: Together) -> None:
        graph, square = torch.cuda.CUDAGraph(), together.losses.new_ones(8, 8)
        # The rank that comes last captures, and its thread may not have multiplied yet: cuBLAS begins with that.
        torch.mm(square, square)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            together.run()
        self._replay = graph.replay
        graph.replay()


class TogetherWork:
    """An LSTM's work on one rank, whose gradients are in their places when ``loss`` returns.

    For plain modules of ranks that share a process. Backward on the loss adds nothing; times are not simulated.
    """

    def __init__(self, work: LmWork, model: LSTM, world: World, rank: int, shared: Shared) -> None:
        self._world, self._rank, self._shared, self._model = world, rank, shared, model
        self.model, self.metric, self.splits = work.model, work.metric, work.splits
        self.steps_per_epoch = work.steps_per_epoch
        self.batch, self.evaluate = work.batch, work.evaluate
        self.state_dict, self.load_state_dict = work.state_dict, work.load_state_dict
        self._named = list(model.named_parameters())

    def loss(self, model: nn.Module, batch: Window) -> Tensor:  # noqa: ARG002
        """Return the mean loss of a batch, and leave the parameters' gradients in their places."""
        given = _Given(model=self._model, batch=batch)
        together = self._world.together(self._rank, "gradients", given, self._shared.step)
        for name, parameter in self._named:
            parameter.grad = together.grads[name][self._rank]
        # A copy: the next step writes over it.
        return together.losses[self._rank].clone().requires_grad_()
