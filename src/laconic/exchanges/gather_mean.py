"""Every rank gathers every rank's message and adds them up in rank order: any compressor, one collective."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import ClassVar, get_args

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.arguments import check_choice
from laconic.collectives import AllGather
from laconic.pace import Pace
from laconic.segments import Segments
from laconic.spectrum import Spectrum
from laconic.types import Compressor, Envelope, Gathered, Mean, Over, Payload, Plan, Steps


@dataclass(frozen=True, kw_only=True)
class GatherMean:
    """One all-gather of messages whose size follows from the plan; volume received grows with the ranks.

    A chosen entry is divided ``over`` all ``ranks`` that send, or over its ``senders`` alone: those that sent a
    value other than zero for it, so that a rarely sent entry moves by up to the number of ranks more (SparseLoCo).
    """

    name: ClassVar[str] = "gather_mean"
    lossless: ClassVar[bool] = True
    over: Over = "ranks"

    def __post_init__(self) -> None:
        check_choice("over", self.over, get_args(Over))

    def check(self, compressor: Compressor) -> None:
        """Accept every compressor."""

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; return the mean of what all ranks sent.

        With ``envelope.senders`` it is the mean over these; a rank that is not among them keeps x as it is. Only
        senders are heard: their notes, losses and alarms, and whether what they have is finite.
        """
        senders = _checked(envelope)
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        notes = 0 if envelope.notes is None else envelope.notes.numel()
        tells = envelope.spectrum is not None
        payload, message = None, torch.empty(0, dtype=torch.uint8, device=x.device)
        header = _header(None, plan, envelope, value_bytes=x.element_size())
        if senders is None or envelope.rank in senders:
            fresh = envelope.fresh or kernels.fresh_of(x, segments)
            payload = compressor.compress_(x, segments, plan, fresh)
            header = _header(payload, plan, envelope, value_bytes=x.element_size())
            message = wire.pack(
                payload, plan, header, numel=x.numel(), notes=envelope.notes, spectrum=envelope.spectrum
            )
        shape = {"numel": x.numel(), "value_bytes": x.element_size()}
        size = wire.message_bytes(plan, notes=notes, spectrum=tells, **shape)
        rows = yield AllGather(send=message, senders=senders, size=size)
        messages = wire.unpack(rows, plan, header, numel=x.numel(), notes=notes, dtype=x.dtype, spectrum=tells)
        headers = [m.header for m in messages]
        counts = zip(*(h.counts for h in headers), strict=True) if plan.counted else []
        return Mean(
            values=Gathered(known=plan.known, payloads=tuple(m.payload for m in messages), over=self.over),
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
            pace=Pace.of_group([h.pace for h in headers]),
            spectrum=Spectrum.mean([m.spectrum for m in messages if m.spectrum]) if tells else None,
            change=_share([h.change for h in headers]),
            fixed_bytes=wire.fixed_bytes(plan, notes=notes, spectrum=tells, **shape),
            entry_bytes=wire.entry_bytes(**shape),
            own=payload,
            senders=senders,
        )


def _checked(envelope: Envelope) -> tuple[int, ...] | None:
    senders, ranks = envelope.senders, envelope.world_size
    if senders is not None and (not senders or list(senders) != sorted(set(senders) & set(range(ranks)))):
        raise ValueError(
            f"senders must be one or more of the ranks 0 to {ranks - 1}, ascending, got {senders!r}. Give every "
            f"rank the same ones, or None for all."
        )
    return senders


def _header(payload: Payload | None, plan: Plan, envelope: Envelope, *, value_bytes: int) -> wire.Header:
    """Return this rank's header; without a payload it says what others must agree with, and is not sent."""
    count: Tensor | int = 0
    wanted: Tensor | int = 0
    if payload is not None:
        rooms = torch.tensor(plan.rooms, dtype=torch.int64).to(payload.wanted.device, non_blocking=True)
        count, wanted = torch.minimum(payload.wanted, rooms).sum(), payload.wanted.sum()
    return wire.Header(
        fingerprint=envelope.fingerprint,
        step=envelope.step,
        count=count,
        wanted=wanted,
        finite=envelope.finite,
        rates=envelope.rates,
        value_bytes=value_bytes,
        loss=envelope.loss,
        alarmed=envelope.alarmed,
        pace=envelope.pace,
        change=envelope.change,
    )


def _share(told: list[tuple[float, float]]) -> float:
    """Return the sum of the first numbers over that of the second, of those ranks that know them."""
    known = [pair for pair in told if isfinite(sum(pair))]
    whole = sum(second for _, second in known)
    return sum(first for first, _ in known) / whole if whole > 0 else nan


def _mean_told(losses: list[float]) -> float:
    told = [loss for loss in losses if not isnan(loss)]
    return sum(told) / len(told) if told else nan
