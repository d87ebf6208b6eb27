"""Every rank gathers every rank's message and adds them up in rank order: any compressor, one collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.types import AllGather, Compressor, Envelope, Mean, Plan, Segments, Steps


@dataclass(frozen=True, kw_only=True)
class GatherMean:
    """One all-gather of messages whose size follows from the plan; volume received grows with the ranks."""

    name: ClassVar[str] = "gather_mean"

    def check(self, compressor: Compressor) -> None:
        """Accept every compressor."""

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; return the mean of what all ranks sent."""
        plan = compressor.plan(segments, step=envelope.step)
        payload = compressor.compress_(x, segments, plan)
        header = wire.Header(
            fingerprint=envelope.fingerprint,
            step=envelope.step,
            count=payload.values.numel(),
            wanted=payload.wanted,
            finite=envelope.finite,
            rates=envelope.rates,
            value_bytes=x.element_size(),
        )
        message = wire.pack(payload, plan, header, numel=x.numel(), notes=envelope.notes)
        rows = yield AllGather(send=message)
        notes = 0 if envelope.notes is None else envelope.notes.numel()
        messages = wire.unpack(rows, plan, header, numel=x.numel(), notes=notes, dtype=x.dtype)
        values = _mean(messages, plan, like=x)
        return Mean(
            values=values,
            # Finite values can still add up to an infinity; every rank sees the same sum.
            finite=all(m.header.finite for m in messages) and kernels.all_finite(values),
            sent=sum(m.payload.count for m in messages),
            wanted=sum(m.header.wanted for m in messages) + plan.known_count * len(messages),
            notes=torch.stack([m.notes for m in messages]).sum(0) if notes else None,
        )


def _mean(messages: list[wire.Message], plan: Plan, *, like: Tensor) -> Tensor:
    """Add rank by rank, in the same order everywhere, so that models stay equal to the bit."""
    out = torch.zeros_like(like)
    known = plan.known if isinstance(plan.known, slice) else plan.known.to(like.device)
    for message in messages:
        out[known] += message.payload.known
    payloads = [m.payload for m in messages]
    kernels.add_payloads_(out, [p.positions for p in payloads], [p.values for p in payloads])
    return out.mul_(1.0 / len(messages))
