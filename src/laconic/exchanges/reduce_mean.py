"""All-reduce of entries whose positions every rank knows: dense vectors, random-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.types import AllReduce, Compressor, Envelope, Mean, Segments, Steps


@dataclass(frozen=True, kw_only=True)
class ReduceMean:
    """One all-reduce; volume does not grow with the ranks. Each rank divides before the sum, as DDP does."""

    name: ClassVar[str] = "reduce_mean"

    def check(self, compressor: Compressor) -> None:
        """Refuse compressors whose ranks choose their own entries."""
        probe = Segments.of(["probe"], [1 << 20])
        if compressor.plan(probe, step=0).capacity:
            raise ValueError(
                f"reduce_mean adds entries that all ranks send; with {compressor.name} each rank chooses its "
                f"own. Use GatherMean() with it."
            )

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; where everything is sent, x itself becomes the mean."""
        plan = compressor.plan(segments, step=envelope.step)
        everything = isinstance(plan.known, slice)
        # Dense must cost what plain DDP costs: no copy of the vector.
        sent = x if everything else compressor.compress_(x, segments, plan).known
        sent.mul_(1.0 / envelope.world_size)
        if not envelope.finite:
            sent.fill_(torch.nan)
        notes = envelope.notes
        message = sent if notes is None else torch.cat([sent, notes.to(sent.dtype)])
        total = yield AllReduce(send=message)
        summed = total[: sent.numel()]
        if everything:
            values = summed
        else:
            values = torch.zeros_like(x)
            values[plan.known] = summed
        return Mean(
            values=values,
            finite=_finite(summed),
            sent=sent.numel() * envelope.world_size,
            wanted=sent.numel() * envelope.world_size,
            notes=None if notes is None else total[sent.numel() :],
        )


def _finite(x: Tensor) -> bool:
    """Whether all entries are finite: one pass, no temporary of x's size."""
    return x.numel() == 0 or bool(torch.isfinite(torch.linalg.vector_norm(x, ord=float("inf"))))
