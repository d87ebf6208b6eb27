"""Ranges of entries written to bytes, and bytes from outside read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Codec, Coded
from laconic.errors import WireError
from laconic.wire.sheet import Sheet, sheet_of
from laconic.wire.values import meant, on_device, raw_codes


@dataclass(frozen=True, kw_only=True)
class Entries:
    """Values at known entries, and chosen ones with their positions, part after part.

    Positions ascend in each part. Behind the last there may be some beyond every part, of value zero.
    """

    known: Tensor
    positions: Tensor
    values: Tensor


@dataclass(frozen=True, kw_only=True)
class Bodies:
    """What each part looks like, as pieces of bytes one behind the other, and the entries as they will be read."""

    raw: list[list[Tensor]]
    sent: Entries


def write_parts(sheet: Sheet, entries: Entries, codec: Codec, *, seed: int) -> Bodies:
    """Write parts that lie one behind the other; nothing is copied from the device."""
    device, positions, known = entries.known.device, entries.positions, entries.known.numel()
    # How many entries lie before the end of each part, and of each piece.
    ends = torch.searchsorted(positions, on_device([part.span.stop for part in sheet.parts], device))
    stops = torch.searchsorted(positions, on_device([p.stop for part in sheet.parts for p in part.pieces], device))
    edges = torch.cat([on_device(sheet.known_ends, device), stops + known])
    coded = codec.encode(torch.cat([entries.known, entries.values]), edges, seed=seed)
    sent = meant(coded, edges, sheet.form).to(entries.values.dtype)
    values = _bytes(raw_codes(_laid_out(sheet, coded.codes, positions, ends), sheet.form))
    places = kernels.encode_positions(positions, ends, sheet.blocks)
    return Bodies(
        raw=_dealt(sheet, _bytes(coded.numbers), values, places),
        sent=Entries(known=sent[:known], positions=positions, values=sent[known:]),
    )


def read_parts(sheet: Sheet, rows: Sequence[Tensor], counts: Sequence[int]) -> Entries:
    """Read part r from the bytes of rank r, ``counts[r]`` chosen entries of it; raise if one is malformed."""
    for rank, (row, size) in enumerate(zip(rows, sheet.sizes, strict=True)):
        if row.numel() != size:
            raise WireError(f"rank {rank} sent {row.numel()} bytes of entries, the plan says {size}.")
    cut = [row.split(lengths.each) for row, lengths in zip(rows, sheet.lengths, strict=True)]
    known_shared, shared, raw, upper, lower = (torch.cat(column) for column in zip(*cut, strict=True))
    placed = kernels.decode_positions(torch.cat([upper, lower]).unsqueeze(0), [list(counts)], sheet.blocks)
    if not all(placed.good):
        raise WireError(
            f"rank {_culprit(sheet, cut, counts)} sent positions that do not ascend within their range, or not as "
            f"many as it says. A message was damaged on the way, or the ranks run unlike versions."
        )
    positions, codes, slots = placed.positions[0], _codes(sheet, raw), sheet.slots
    known = [codes[at : at + part.known] for at, part in zip(slots[::2], sheet.parts, strict=False)]
    chosen = [codes[at : at + count] for at, count in zip(slots[1::2], counts, strict=True)]
    return Entries(
        known=_values(sheet, torch.cat(known), on_device(sheet.known_ends, codes.device), known_shared),
        positions=positions,
        values=_values(sheet, torch.cat(chosen), _piece_ends(sheet, positions, counts), shared),
    )


def _laid_out(sheet: Sheet, codes: Tensor, positions: Tensor, ends: Tensor) -> Tensor:
    """Lay codes out as the sheet says: each part's known ones, and its chosen ones."""
    device, slots, begin = codes.device, sheet.slots, 0
    out = codes.new_zeros(slots[-1] + 1)
    for at, part in zip(slots[::2], sheet.parts, strict=False):
        out[at : at + part.known] = codes[begin : begin + part.known]
        begin += part.known
    owner = torch.searchsorted(on_device([part.span.stop for part in sheet.parts], device), positions, right=True)
    # What lies beyond every part goes to one place more, which is cut off.
    first = on_device([*slots[1::2], slots[-1]], device)
    before = torch.cat([ends.new_zeros(1), ends])
    place = first[owner] + torch.arange(positions.numel(), device=device) - before[owner]
    out[place.clamp(max=slots[-1])] = codes[begin:]
    return out[: slots[-1]]


def _dealt(sheet: Sheet, numbers: Tensor, values: Tensor, positions: Tensor) -> list[list[Tensor]]:
    """Deal bytes out to the parts."""
    lengths = sheet.lengths
    shared = numbers.split([*(n.known_shared for n in lengths), *(n.shared for n in lengths)])
    places = positions.split([*(n.upper for n in lengths), *(n.lower for n in lengths)])
    count, each = len(lengths), values.split([n.values for n in lengths])
    return [[shared[i], shared[count + i], each[i], places[i], places[count + i]] for i in range(count)]


def _piece_ends(sheet: Sheet, positions: Tensor, counts: Sequence[int]) -> Tensor:
    """Return how many entries there are up to the end of each piece; raise if one lies in none."""
    begins, ends = torch.from_numpy(sheet.pieces).to(positions.device, non_blocking=True)
    moved = torch.arange(len(counts), device=positions.device) * sheet.stride
    many = on_device(list(counts), positions.device)
    at = positions + torch.repeat_interleave(moved, many, output_size=positions.numel())
    piece = torch.searchsorted(ends, at, right=True)
    beyond = begins.new_full((1,), len(counts) * sheet.stride)
    outside = torch.cat([begins, beyond])[piece] > at
    if bool(outside.any()):
        rank = int(at[outside][0]) // sheet.stride
        raise WireError(
            f"rank {rank} sent a position that nothing is chosen from. Run the same version on every rank."
        )
    return torch.bincount(piece, minlength=len(ends)).cumsum(0)


def _codes(sheet: Sheet, raw: Tensor) -> Tensor:
    if sheet.form.numbers:
        return kernels.unpack_codes(raw, sheet.form.bits, sheet.slots[-1])
    return raw.view(sheet.dtype if sheet.form.kind == "float" else torch.bfloat16)


def _values(sheet: Sheet, codes: Tensor, ends: Tensor, shared: Tensor) -> Tensor:
    numbers = shared.view(sheet.dtype).view(len(ends), sheet.form.numbers)
    return meant(Coded(codes=codes, numbers=numbers), ends, sheet.form).to(sheet.dtype)


def _culprit(sheet: Sheet, cut: Sequence[Sequence[Tensor]], counts: Sequence[int]) -> int:
    """Return the first rank whose positions are not good."""
    for rank, (part, row, count) in enumerate(zip(sheet.parts, cut, counts, strict=True)):
        alone = sheet_of((part,), sheet.form, sheet.dtype)
        placed = kernels.decode_positions(torch.cat([row[3], row[4]]).unsqueeze(0), [[count]], alone.blocks)
        if not all(placed.good):
            return rank
    return 0


def _bytes(x: Tensor) -> Tensor:
    # A tensor without entries may have any strides, and cannot be viewed.
    return x.contiguous().view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)
