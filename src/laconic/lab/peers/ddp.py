"""Plain DistributedDataParallel, every gradient in 32 bits in every step: what all others are measured by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from laconic.lab.peers.peer import Prepared, in_ddp


@dataclass(frozen=True, kw_only=True)
class Ddp:
    """DDP as it comes."""

    name: str = "ddp"
    period: int = 1

    def missing(self) -> str:
        """Need nothing."""
        return ""

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Wrap the module."""
        return Prepared(model=in_ddp(module), optimizer=optimizer)
