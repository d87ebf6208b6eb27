"""No communication at all: every rank trains by itself. What a step takes then is the floor for all others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from laconic.lab.peers.peer import Prepared


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Ranks that never talk."""

    name: str = "alone"
    period: int = 1

    def missing(self) -> str:
        """Need nothing."""
        return ""

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Return them as they are."""
        return Prepared(model=module, optimizer=optimizer)
