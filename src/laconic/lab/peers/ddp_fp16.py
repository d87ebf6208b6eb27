"""DistributedDataParallel with torch's hook that sends gradients in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from laconic.lab.peers.peer import Prepared, in_ddp


@dataclass(frozen=True, kw_only=True)
class DdpFp16:
    """DDP with ``fp16_compress_hook``."""

    name: str = "ddp-fp16"
    period: int = 1

    def missing(self) -> str:
        """Need nothing."""
        return ""

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Wrap the module, and register the hook."""
        model = in_ddp(module)
        model.register_comm_hook(None, fp16_compress_hook)
        return Prepared(model=model, optimizer=optimizer)
