"""All-reduce of entries whose positions every rank knows: dense vectors, random-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.exchanges.reducing import added, refuse_some_senders, shown
from laconic.segments import Segments
from laconic.types import Compressor, Envelope, Mean, Plan, Steps


@dataclass(frozen=True, kw_only=True)
class ReduceMean:
    """One all-reduce; volume does not grow with the ranks. Each rank divides before the sum, as DDP does."""

    name: ClassVar[str] = "reduce_mean"
    lossless: ClassVar[bool] = True
    tells: ClassVar[bool] = False

    def check(self, compressor: Compressor) -> None:
        """Refuse compressors whose ranks choose their own entries."""
        if compressor.ranks_choose:
            raise ValueError(
                f"reduce_mean adds entries that all ranks send; with {compressor.name} each rank chooses its "
                f"own. Use GatherMean() with it."
            )

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; where everything is sent, x itself becomes the mean."""
        refuse_some_senders(self.name, envelope)
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        everything = isinstance(plan.known, slice)
        # Dense must cost what plain DDP costs: no copy of the vector.
        sent = x if everything else _known(x, segments, compressor, plan, envelope)
        sent.mul_(1.0 / envelope.world_size)
        summed, notes = yield from added(sent, envelope, bare=everything and envelope.notes is None)
        values = summed
        if not everything:
            values = torch.zeros_like(x)
            values[plan.known] = summed
        return Mean(
            values=values,
            finite=kernels.all_finite(summed),
            sent=sent.numel() * envelope.world_size,
            wanted=sent.numel() * envelope.world_size,
            notes=notes,
        )


def _known(x: Tensor, segments: Segments, compressor: Compressor, plan: Plan, envelope: Envelope) -> Tensor:
    fresh = envelope.fresh or kernels.fresh_of(x, segments)
    values = compressor.compress_(x, segments, plan, fresh).known
    # What is not finite may lie outside the entries sent.
    return shown(values, envelope)
