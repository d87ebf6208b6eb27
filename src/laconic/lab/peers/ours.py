"""Methods of laconic over DistributedDataParallel, by ``laconic.attach``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import laconic
from laconic.lab.peers.peer import Prepared, in_ddp


@dataclass(frozen=True, kw_only=True)
class Ours:
    """A method under a name."""

    name: str
    method: laconic.Method

    @property
    def period(self) -> int:
        """The local steps of a round; where a law moves them, those of the first."""
        return 1 if self.method.local is None else self.method.local.period.first

    def missing(self) -> str:
        """Need nothing."""
        return ""

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Wrap the module, and attach the method."""
        model = in_ddp(module)
        link = laconic.attach(model, optimizer, self.method)
        return Prepared(model=model, optimizer=optimizer, link=link, close=link.detach)
