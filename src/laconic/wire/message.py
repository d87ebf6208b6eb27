"""A whole message: header, counts, spectrum, notes, values of the known entries, chosen values, chosen positions.

The byte size follows from the plan alone, so every rank knows it without asking. Unused room is zero.
Positions are int32, or int64 where the vector has 2^31 entries or more. Parts start at multiples of 8 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.errors import WireError
from laconic.spectrum import SPECTRUM_BYTES, Spectrum
from laconic.types import Payload, Plan
from laconic.wire.header import HEADER_BYTES, Header, Received, read_headers


@dataclass(frozen=True, kw_only=True)
class Message:
    """One rank's message, checked and read."""

    header: Received
    payload: Payload
    notes: Tensor
    spectrum: Spectrum | None


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where each part of a message starts."""

    counts: int
    spectrum: int
    notes: int
    known: int
    values: int
    positions: int
    total: int
    position_dtype: torch.dtype

    @staticmethod
    def of(plan: Plan, *, numel: int, notes: int, spectrum: bool, value_bytes: int) -> _Layout:
        dtype = _position_dtype(numel)
        at_spectrum = HEADER_BYTES + _padded(len(plan.choosing) * dtype.itemsize if plan.counted else 0)
        at_notes = at_spectrum + (SPECTRUM_BYTES if spectrum else 0)
        at_known = at_notes + _padded(notes)
        at_values = at_known + _padded(plan.known_count * value_bytes)
        at_positions = at_values + _padded(plan.capacity * value_bytes)
        return _Layout(
            counts=HEADER_BYTES,
            spectrum=at_spectrum,
            notes=at_notes,
            known=at_known,
            values=at_values,
            positions=at_positions,
            total=at_positions + _padded(plan.capacity * dtype.itemsize),
            position_dtype=dtype,
        )


def message_bytes(plan: Plan, *, numel: int, notes: int = 0, spectrum: bool = False, value_bytes: int = 4) -> int:
    """Return how many bytes a message under this plan has."""
    return _Layout.of(plan, numel=numel, notes=notes, spectrum=spectrum, value_bytes=value_bytes).total


def fixed_bytes(plan: Plan, *, numel: int, notes: int = 0, spectrum: bool = False, value_bytes: int = 4) -> int:
    """Return how many bytes a message has beside its chosen entries; padding is counted as if it were needed."""
    return _Layout.of(plan, numel=numel, notes=notes, spectrum=spectrum, value_bytes=value_bytes).values + 8


def entry_bytes(*, numel: int, value_bytes: int) -> int:
    """Return how many bytes one chosen entry takes: its value and its position."""
    return value_bytes + _position_dtype(numel).itemsize


def pack(
    payload: Payload,
    plan: Plan,
    header: Header,
    *,
    numel: int,
    notes: Tensor | None,
    spectrum: Tensor | None = None,
) -> Tensor:
    """Return the message as one byte tensor of exactly ``message_bytes`` bytes."""
    device = payload.known.device
    flags = torch.empty(0, dtype=torch.uint8, device=device) if notes is None else notes.to(torch.uint8)
    layout = _Layout.of(
        plan,
        numel=numel,
        notes=flags.numel(),
        spectrum=spectrum is not None,
        value_bytes=header.value_bytes,
    )
    out = torch.zeros(layout.total, dtype=torch.uint8, device=device)
    out[:HEADER_BYTES] = header.words(device).view(torch.uint8)
    counts = payload.wanted if plan.counted else payload.wanted[:0]
    parts = (
        (layout.counts, counts.to(layout.position_dtype)),
        (layout.spectrum, flags[:0] if spectrum is None else spectrum),
        (layout.notes, flags),
        (layout.known, payload.known),
        (layout.values, payload.values),
        (layout.positions, payload.positions.to(layout.position_dtype)),
    )
    for start, part in parts:
        raw = part.contiguous().view(torch.uint8)
        out[start : start + raw.numel()] = raw
    return out


def unpack(
    rows: Tensor, plan: Plan, own: Header, *, numel: int, notes: int, dtype: torch.dtype, spectrum: bool = False
) -> list[Message]:
    """Read every rank's row; raise before any entry is used if one is malformed or from another run."""
    layout = _Layout.of(plan, numel=numel, notes=notes, spectrum=spectrum, value_bytes=dtype.itemsize)
    if rows.shape[1] != layout.total:
        raise WireError(f"a message has {rows.shape[1]} bytes, the plan says {layout.total}.")
    # One copy to the host has all that it needs to know.
    said = rows[:, : layout.notes].cpu()
    counts = said[:, layout.counts : layout.spectrum].contiguous().view(layout.position_dtype)
    headers = read_headers(said, own, plan, counts[:, : len(plan.choosing) if plan.counted else 0])
    messages = []
    for rank, header in enumerate(headers):
        row = rows[rank]
        chosen = _part(row, layout.positions, header.count, layout.position_dtype)
        payload = Payload(
            known=_part(row, layout.known, plan.known_count, dtype),
            positions=chosen,
            values=_part(row, layout.values, header.count, dtype),
            wanted=torch.tensor(header.counts, dtype=torch.int64),
        )
        sizes = Spectrum.read(said[rank, layout.spectrum :]) if spectrum else None
        told = _part(row, layout.notes, notes, torch.uint8)
        messages.append(Message(header=header, payload=payload, notes=told, spectrum=sizes))
    _check_positions([m.payload.positions for m in messages], numel)
    return messages


def _check_positions(ranks: list[Tensor], numel: int) -> None:
    """Refuse positions that do not ascend in range; one copy to the host for all ranks."""
    bounds = torch.tensor([-1, numel]).to(ranks[0].device, non_blocking=True)
    good = torch.stack([(torch.cat([bounds[:1], p, bounds[1:]]).diff() > 0).all() for p in ranks])
    for rank, fine in enumerate(good.tolist()):
        if not fine:
            raise WireError(f"rank {rank} sent positions that do not ascend within 0 .. {numel - 1}.")


def _part(row: Tensor, start: int, count: int, dtype: torch.dtype) -> Tensor:
    return row[start : start + count * dtype.itemsize].view(dtype)


def _position_dtype(numel: int) -> torch.dtype:
    return torch.int32 if numel < 2**31 else torch.int64


def _padded(size: int) -> int:
    return -(-size // 8) * 8
