"""Local SGD of torchft: ranks train by themselves, and their models are averaged every few steps."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module

import torch

from laconic.lab.peers.peer import Prepared
from laconic.lab.peers.torchft_manager import managed, missing


@dataclass(frozen=True, kw_only=True)
class TorchftLocal:
    """``torchft.local_sgd.LocalSGD``, each rank a replica."""

    period: int = 4

    @property
    def name(self) -> str:
        """The word, with the period."""
        return f"torchft-local:{self.period}"

    def missing(self) -> str:
        """Need torchft."""
        return missing()

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Enter the context that torchft trains in; ``close`` leaves it."""
        with ExitStack() as ends:
            manager = ends.enter_context(managed())
            context = import_module("torchft.local_sgd").LocalSGD(
                manager, module, optimizer, sync_every=self.period
            )
            ends.enter_context(context)
            return Prepared(model=module, optimizer=optimizer, close=ends.pop_all().close)
