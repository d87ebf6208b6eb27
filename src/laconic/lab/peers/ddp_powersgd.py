"""DistributedDataParallel with torch's PowerSGD hook, with error feedback and warm start as it comes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from laconic.lab.peers.peer import Prepared, in_ddp

# With several buckets the hook waits for itself for ever on gloo: all gradients go into one.
_ONE_BUCKET_MEGABYTES = 1 << 20
# The fewest that the hook takes: DDP deals its buckets out anew after the first step.
_DENSE_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class DdpPowerSgd:
    """DDP with ``powerSGD_hook``; its first two steps are dense."""

    rank: int
    """Columns of the factors that matrices are sent as."""
    period: int = 1

    @property
    def name(self) -> str:
        """The word, with the rank of the approximation."""
        return f"powersgd-hook:{self.rank}"

    def missing(self) -> str:
        """Need nothing."""
        return ""

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Wrap the module, and register the hook."""
        model = in_ddp(module, bucket_cap_mb=_ONE_BUCKET_MEGABYTES)
        state = PowerSGDState(
            process_group=None, matrix_approximation_rank=self.rank, start_powerSGD_iter=_DENSE_STEPS
        )
        model.register_comm_hook(state, powerSGD_hook)
        return Prepared(model=model, optimizer=optimizer)
