"""A whole message: header, counts, spectrum, notes, numbers, known values, chosen values, positions.

The byte size follows from the frame alone, so every rank knows it without asking. Unused room is zero. Parts start
at multiples of 8 bytes. docs/wire-format.md says it in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Blocks, Codec, Form, blocks_of, padded
from laconic.errors import WireError
from laconic.kernels.copies import zeros_on
from laconic.spectrum import SPECTRUM_BYTES, Spectrum
from laconic.types import Payload, Plan
from laconic.wire.header import HEADER_BYTES, Header, Received, read_headers, seal_, with_totals
from laconic.wire.values import Shared, encode_values, on_device, read_values


@dataclass(frozen=True, kw_only=True)
class Message:
    """One rank's message, checked and read."""

    header: Received
    payload: Payload
    notes: Tensor
    spectrum: Spectrum | None


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A message's bytes, and the payload as it will be read: values as they were rounded."""

    message: Tensor
    sent: Payload


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where each part of a message starts."""

    spectrum: int
    notes: int
    numbers: int
    known: int
    values: int
    positions: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What all ranks know of a message before it is made: plan, form of values, what else it carries."""

    plan: Plan
    form: Form
    dtype: torch.dtype
    notes: int = 0
    spectrum: bool = False

    @property
    def total(self) -> int:
        """How many bytes the message has."""
        return self.layout.total

    @property
    def fixed(self) -> int:
        """How many of them are not for chosen entries; padding is counted as if it were needed."""
        return self.layout.values + 24

    @property
    def value_bits(self) -> int:
        """How many bits a value has."""
        return self.form.value_bits(self.dtype.itemsize)

    @property
    def spans(self) -> int:
        """How many spans of values share numbers: known parameters, then segments that are chosen from."""
        return len(self.plan.known_sizes) + len(self.plan.choosing)

    @cached_property
    def count_dtype(self) -> torch.dtype:
        """What a count is written in."""
        return torch.int32 if all(s.size < 2**31 for s in self.plan.choosing) else torch.int64

    @cached_property
    def blocks(self) -> Blocks:
        """Where positions lie."""
        return blocks_of(self.plan.choosing, self.plan.rooms)

    @cached_property
    def layout(self) -> _Layout:
        """Where each part starts."""
        plan, bits = self.plan, self.value_bits
        counts = len(plan.choosing) * self.count_dtype.itemsize if plan.counted else 0
        spectrum = HEADER_BYTES + padded(8 * counts)
        notes = spectrum + (SPECTRUM_BYTES if self.spectrum else 0)
        numbers = notes + padded(8 * self.notes)
        known = numbers + padded(8 * self.spans * self.form.numbers * self.dtype.itemsize)
        values = known + padded(plan.known_count * bits)
        positions = values + padded(plan.capacity * bits)
        return _Layout(
            spectrum=spectrum,
            notes=notes,
            numbers=numbers,
            known=known,
            values=values,
            positions=positions,
            total=positions + self.blocks.upper_bytes + self.blocks.lower_bytes,
        )


def pack(
    frame: Frame,
    payload: Payload,
    header: Header,
    codec: Codec,
    *,
    notes: Tensor | None = None,
    spectrum: Tensor | None = None,
    seed: int = 0,
) -> Packed:
    """Return the message as one byte tensor of exactly ``frame.total`` bytes, and what it says."""
    device, plan, layout = payload.known.device, frame.plan, frame.layout
    ends = torch.minimum(payload.wanted, on_device(plan.rooms, device)).cumsum(0)
    written = encode_values(codec, payload, plan.known_sizes, ends, seed=seed)
    parts = (
        (0, header.words(device)),
        (HEADER_BYTES, payload.wanted.to(frame.count_dtype) if plan.counted else None),
        (layout.spectrum, spectrum),
        (layout.notes, None if notes is None else notes.to(torch.uint8)),
        (layout.numbers, written.numbers),
        (layout.known, written.known),
        (layout.values, written.chosen),
        (layout.positions, kernels.encode_positions(payload.positions, ends, frame.blocks)),
    )
    out = seal_(_laid_out(parts, layout.total, device))
    return Packed(message=out, sent=replace(payload, known=written.sent_known, values=written.sent_chosen))


def _laid_out(parts: Sequence[tuple[int, Tensor | None]], total: int, device: torch.device) -> Tensor:
    """Return bytes in which each part begins where it should, zero between them; one call writes them all."""
    pieces, end = [], 0
    for start, part in (*parts, (total, None)):
        assert start >= end, f"a part ends at {end}, the next begins at {start}"
        # What is empty may have a stride of 0, and cannot be viewed as bytes.
        raw = part.reshape(-1).view(torch.uint8) if part is not None and part.numel() else None
        if start > end and (raw is not None or start == total):
            pieces.append(zeros_on(device, start - end))
            end = start
        if raw is not None:
            pieces.append(raw)
            end += raw.numel()
    return torch.cat(pieces)


def unpack(rows: Tensor, frame: Frame, own: Header, senders: Sequence[int] | None = None) -> list[Message]:
    """Read every rank's row, or those of the ``senders``; raise before any entry is used if one is malformed."""
    layout, plan = frame.layout, frame.plan
    if rows.shape[1] != layout.total:
        raise WireError(f"a message has {rows.shape[1]} bytes, the plan says {layout.total}.")
    # One copy to the host has all that it needs to know.
    said, totals = with_totals(rows, layout.notes)
    counts = said[:, HEADER_BYTES : layout.spectrum].contiguous().view(frame.count_dtype)
    counts = counts[:, : len(plan.choosing) if plan.counted else 0]
    headers = read_headers(said, own, plan, counts, totals, senders)
    placed = kernels.decode_positions(rows[:, layout.positions :], [list(h.chosen) for h in headers], frame.blocks)
    # What a rank chose whose gradient is not finite means nothing, and is not looked at.
    ranks = range(len(headers)) if senders is None else senders
    damaged = [rank for rank, h, good in zip(ranks, headers, placed.good, strict=True) if h.finite and not good]
    if damaged:
        raise WireError(
            f"rank {damaged[0]} sent positions that do not ascend within their segments, or not as "
            f"many as it says. A message was damaged on the way, or the ranks run unlike versions."
        )
    known, chosen = _values(rows, frame, headers)
    wanted, notes = counts.to(torch.int64), rows[:, layout.notes : layout.notes + frame.notes]
    return [
        Message(
            header=headers[i],
            payload=Payload(known=known[i], positions=placed.positions[i], values=chosen[i], wanted=wanted[i]),
            notes=notes[i],
            spectrum=Spectrum.read(said[i, layout.spectrum :]) if frame.spectrum else None,
        )
        for i in range(len(headers))
    ]


def _values(rows: Tensor, frame: Frame, headers: Sequence[Received]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the known values of each rank, and the chosen ones."""
    layout, sizes = frame.layout, frame.plan.known_sizes
    numbers = rows[:, layout.numbers : layout.known].view(frame.dtype)[:, : frame.spans * frame.form.numbers]
    shared = Shared(form=frame.form, numbers=numbers.unflatten(1, (frame.spans, frame.form.numbers)))
    known, chosen = shared.split(len(sizes))
    return (
        read_values(rows[:, layout.known : layout.values], known, [sizes] * len(headers)),
        read_values(rows[:, layout.values : layout.positions], chosen, [h.chosen for h in headers]),
    )
