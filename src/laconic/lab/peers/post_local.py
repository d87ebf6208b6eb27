"""Torch's post-local SGD: ranks train by themselves, and their models are averaged every few steps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from laconic.lab.peers.peer import Prepared, in_ddp


@dataclass(frozen=True, kw_only=True)
class PostLocal:
    """``PostLocalSGDOptimizer`` and its hook, local from the first step on; models are averaged every period."""

    period: int = 4

    @property
    def name(self) -> str:
        """The word, with the period."""
        return f"post-local:{self.period}"

    def missing(self) -> str:
        """Need nothing."""
        return ""

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Wrap both."""
        with warnings.catch_warnings():
            # What lies beside it is compiled by an old way of torch's, which torch then warns about.
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import PostLocalSGDOptimizer

        model = in_ddp(module)
        # A rank is a node of its own: there is nobody to share gradients with.
        alone = PostLocalSGDState(None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False)
        model.register_comm_hook(alone, post_localSGD_hook)
        # The averager acts on the first step that it counts, too: so the last of every period is meant.
        averager = PeriodicModelAverager(period=self.period, warmup_steps=self.period - 1)
        return Prepared(model=model, optimizer=PostLocalSGDOptimizer(optimizer, averager))
