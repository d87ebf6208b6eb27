"""Every rank gathers every rank's message and adds them up in rank order: any compressor, one collective."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.segments import Segments
from laconic.types import AllGather, Compressor, Envelope, Gathered, Mean, Payload, Plan, Steps


@dataclass(frozen=True, kw_only=True)
class GatherMean:
    """One all-gather of messages whose size follows from the plan; volume received grows with the ranks."""

    name: ClassVar[str] = "gather_mean"

    def check(self, compressor: Compressor) -> None:
        """Accept every compressor."""

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; return the mean of what all ranks sent."""
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        fresh = envelope.fresh or kernels.fresh_of(x, segments)
        payload = compressor.compress_(x, segments, plan, fresh)
        header = _header(payload, plan, envelope, value_bytes=x.element_size())
        message = wire.pack(payload, plan, header, numel=x.numel(), notes=envelope.notes)
        rows = yield AllGather(send=message)
        notes = 0 if envelope.notes is None else envelope.notes.numel()
        messages = wire.unpack(rows, plan, header, numel=x.numel(), notes=notes, dtype=x.dtype)
        headers = [m.header for m in messages]
        counts = zip(*(h.counts for h in headers), strict=True) if plan.counted else []
        return Mean(
            values=Gathered(known=plan.known, payloads=tuple(m.payload for m in messages)),
            # Where everything is sent no rank has looked before; every rank sees the same values, at one glance.
            finite=all(h.finite for h in headers)
            and kernels.all_finite(torch.cat([m.payload.known for m in messages])),
            sent=sum(h.count for h in headers) + plan.known_count * len(headers),
            wanted=sum(h.wanted for h in headers) + plan.known_count * len(headers),
            notes=torch.stack([m.notes for m in messages]).sum(0) if notes else None,
            qualified=sum(h.wanted for h in headers),
            choosable=plan.choosing.numel * len(headers),
            counts=dict(zip(plan.choosing.names, counts, strict=False)),
            rooms=dict(zip(plan.choosing.names, plan.rooms, strict=True)),
            loss=_mean_told([h.loss for h in headers]),
            alarmed=any(h.alarmed for h in headers),
            own=payload,
        )


def _header(payload: Payload, plan: Plan, envelope: Envelope, *, value_bytes: int) -> wire.Header:
    rooms = torch.tensor(plan.rooms, dtype=torch.int64).to(payload.wanted.device, non_blocking=True)
    return wire.Header(
        fingerprint=envelope.fingerprint,
        step=envelope.step,
        count=torch.minimum(payload.wanted, rooms).sum(),
        wanted=payload.wanted.sum(),
        finite=envelope.finite,
        rates=envelope.rates,
        value_bytes=value_bytes,
        loss=envelope.loss,
        alarmed=envelope.alarmed,
    )


def _mean_told(losses: list[float]) -> float:
    told = [loss for loss in losses if not isnan(loss)]
    return sum(told) / len(told) if told else nan
