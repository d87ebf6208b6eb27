"""What exchanges that send messages share: the header, the seed of rounding, and what rounding loses."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import isfinite, isnan, nan
from typing import Any

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.coding import Codec
from laconic.kernels.copies import copy_on, numbers_on
from laconic.pace import Pace
from laconic.spectrum import Spectrum
from laconic.types import Envelope, Payload, Plan
from laconic.wire.values import MANY


def check_codec(values: object) -> None:
    """Raise unless it is a codec."""
    if isinstance(values, type) or not isinstance(values, Codec):
        raise TypeError(f"values must be a codec such as Linear(bits=4) or Exact(), got {values!r}.")


def frame_of(plan: Plan, values: Codec, x: Tensor, envelope: Envelope) -> wire.Frame:
    """Return what all ranks know of the messages about x."""
    return wire.Frame(
        plan=plan,
        form=values.form,
        dtype=x.dtype,
        notes=0 if envelope.notes is None else envelope.notes.numel(),
        spectrum=envelope.spectrum is not None,
    )


def seed_of(envelope: Envelope) -> int:
    """Return a seed that is another one in every step of every rank, and the same when a run is repeated."""
    return zlib.crc32(f"{envelope.step}/{envelope.rank}".encode())


def give_back_(x: Tensor, plan: Plan, taken: Payload, sent: Payload) -> None:
    """Add to x what rounding lost: it stays owed."""
    if sent.known is not taken.known:
        lost = taken.known - sent.known
        if isinstance(plan.known, slice):
            x[plan.known] += lost
        else:
            x.index_add_(0, copy_on(x.device, plan.known), lost)
    if sent.values is not taken.values:
        # Behind the last entry both are zero.
        x.index_add_(0, taken.positions, taken.values - sent.values)


def all_read_finite(payloads: Sequence[Payload]) -> bool:
    """Say whether all values that were read are finite: every rank sees the same ones, at one glance.

    Where everything is sent no rank has looked before, and what is finite may be too large for a codec's numbers.
    """
    parts = [part for p in payloads for part in (p.known, p.values) if part.numel()]
    if sum(part.numel() for part in parts) > MANY:
        # To lay them side by side would be as many vectors again.
        return all(kernels.all_finite(part) for part in parts)
    return not parts or kernels.all_finite(torch.cat(parts))


def header_of(payload: Payload | None, frame: wire.Frame, envelope: Envelope) -> wire.Header:
    """Return this rank's header; without a payload it says what others must agree with, and is not sent."""
    count: Tensor | int = 0
    wanted: Tensor | int = 0
    if payload is not None:
        rooms, device = frame.plan.rooms, payload.wanted.device
        if device.type == "cpu":
            said = payload.wanted.tolist()
            count, wanted = sum(map(min, said, rooms)), sum(said)
        else:
            count = torch.minimum(payload.wanted, numbers_on(device, rooms)).sum()
            wanted = payload.wanted.sum()
    return wire.Header(
        fingerprint=envelope.fingerprint,
        step=envelope.step,
        count=count,
        wanted=wanted,
        finite=envelope.finite,
        rates=envelope.rates,
        value_bytes=frame.dtype.itemsize,
        form=frame.form,
        loss=envelope.loss,
        alarmed=envelope.alarmed,
        pace=envelope.pace,
        change=envelope.change,
    )


def heard(messages: Sequence[wire.Message]) -> dict[str, Any]:
    """Return what a ``Mean`` has of messages beside entries: whether all are finite, and what ranks told."""
    headers, first = [m.header for m in messages], messages[0]
    return {
        "finite": all(h.finite for h in headers) and all_read_finite([m.payload for m in messages]),
        "notes": torch.stack([m.notes for m in messages]).sum(0) if first.notes.numel() else None,
        "loss": mean_told([h.loss for h in headers]),
        "alarmed": any(h.alarmed for h in headers),
        "pace": Pace.of_group([h.pace for h in headers]),
        "spectrum": Spectrum.mean([m.spectrum for m in messages if m.spectrum]) if first.spectrum else None,
        "change": share_told([h.change for h in headers]),
    }


def share_told(told: list[tuple[float, float]]) -> float:
    """Return the sum of the first numbers over that of the second, of those ranks that know them."""
    known = [pair for pair in told if isfinite(sum(pair))]
    whole = sum(second for _, second in known)
    return sum(first for first, _ in known) / whole if whole > 0 else nan


def mean_told(losses: list[float]) -> float:
    """Return the mean over the ranks that told one."""
    told = [loss for loss in losses if not isnan(loss)]
    return sum(told) / len(told) if told else nan
