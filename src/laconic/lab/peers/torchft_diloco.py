"""DiLoCo of torchft: ranks train by themselves, and an outer optimizer follows the mean of what they did."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module

import torch

from laconic.lab.peers.peer import Prepared
from laconic.lab.peers.torchft_manager import managed, missing


@dataclass(frozen=True, kw_only=True)
class TorchftDiloco:
    """``torchft.local_sgd.DiLoCo``, each rank a replica; the outer optimizer is the paper's."""

    period: int = 4

    @property
    def name(self) -> str:
        """The word, with the period."""
        return f"torchft-diloco:{self.period}"

    def missing(self) -> str:
        """Need torchft."""
        return missing()

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Enter the context that torchft trains in; ``close`` leaves it."""
        outer = torch.optim.SGD(module.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with ExitStack() as ends:
            manager = ends.enter_context(managed())
            # Memory is pinned for a GPU, and here may be none.
            context = import_module("torchft.local_sgd").DiLoCo(
                manager, [module], optimizer, outer, sync_every=self.period, pin_memory=False
            )
            ends.enter_context(context)
            return Prepared(model=module, optimizer=optimizer, close=ends.pop_all().close)
