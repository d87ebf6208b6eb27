"""The coding kernels' definition in plain torch: positions as Elias-Fano blocks, values as codes of a few bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.coding import LOWER, OFFSET, ROOM, SIZE, UPPER, WIDTH, Blocks, Form
from laconic.kernels.copies import shifts_on, zeros_on

# The columns of a span's statistics.
LEAST, LARGEST, MAGNITUDES, SQUARES, SUM, BELOW, BELOW_COUNT, COUNT = range(8)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Positions as they were read, and whether they ascend within their segments, a flag a rank."""

    positions: list[Tensor]
    good: list[bool]


def encode_positions(positions: Tensor, ends: Tensor, blocks: Blocks) -> Tensor:
    """Return the bytes of ascending positions, segment s's ending before ``ends[s]``: upper parts, lower parts.

    Positions that are not as promised raise ``ValueError``.
    """
    device, bounds = positions.device, [0, *ends.tolist()]
    upper = torch.zeros(8 * blocks.upper_bytes, dtype=torch.bool, device=device)
    lower = torch.zeros(8 * blocks.lower_bytes, dtype=torch.bool, device=device)
    for row, begin, end in zip(blocks.rows.tolist(), bounds, bounds[1:], strict=False):
        place = torch.arange(end - begin, device=device)
        y = positions[begin:end].to(torch.int64) - row[OFFSET] - place
        check = torch.cat([y.new_zeros(1), y, y.new_full((1,), row[SIZE] - (end - begin))])
        if end - begin > row[ROOM] or bool((check.diff() < 0).any()):
            raise ValueError("positions must ascend within their segment, and fit its room.")
        upper[row[UPPER] + (y >> row[WIDTH]) + place] = True
        bit = torch.arange(row[WIDTH], device=device)
        begin_at = row[LOWER]
        lower[begin_at : begin_at + y.numel() * row[WIDTH]] = (y.unsqueeze(1) >> bit & 1).flatten() == 1
    return torch.cat([_packed(upper), _packed(lower)])


def decode_positions(rows: Tensor, counts: list[list[int]], blocks: Blocks) -> Placed:
    """Read each row's positions, ``counts[rank][s]`` of segment s; nothing outside the row is looked at."""
    positions, good = [], []
    for raw, count in zip(rows, counts, strict=True):
        upper, lower = (_unpacked(p) for p in raw.split([blocks.upper_bytes, blocks.lower_bytes]))
        found, fine = [torch.empty(0, dtype=torch.int64, device=rows.device)], True
        for row, end, k in zip(blocks.rows.tolist(), blocks.rows[1:, UPPER].tolist(), count, strict=False):
            ones = torch.nonzero(upper[row[UPPER] : end]).flatten()
            fine = ones.numel() == k <= row[ROOM]
            if not fine:
                break
            place = torch.arange(k, device=rows.device)
            bits = lower[row[LOWER] : row[LOWER] + k * row[WIDTH]].view(k, row[WIDTH]).to(torch.int64)
            low = (bits << torch.arange(row[WIDTH], device=rows.device)).sum(1)
            y = (ones - place << row[WIDTH]) + low
            ordered = bool((torch.cat([y, y.new_full((1,), row[SIZE] - k)]).diff() >= 0).all())
            fine = ordered and k <= row[SIZE]
            if not fine:
                break
            found.append(y + place + row[OFFSET])
        positions.append(torch.cat(found) if fine else found[0])
        good.append(fine)
    return Placed(positions=positions, good=good)


def span_statistics(values: Tensor, ends: Tensor) -> Tensor:
    """Return eight numbers of each span's values, in float64.

    The least and the largest magnitude; the sums of magnitudes, of squares, of values and of those below zero; how
    many are below zero, and how many there are.
    """
    exact, owner = values.to(torch.float64), owners(ends, values.numel())
    size = exact.abs()
    below = torch.where(exact < 0, exact, 0.0)
    spans = len(ends) + 1
    # Sums of whole columns run in one order; those of single spans would be taken in any.
    columns = torch.stack([size, exact.square(), exact, below, (exact < 0).double(), torch.ones_like(exact)])
    out = torch.zeros(8, spans, dtype=torch.float64, device=values.device)
    out[LEAST] = torch.inf
    out[LEAST].scatter_reduce_(0, owner, size, "amin")
    out[LARGEST].scatter_reduce_(0, owner, size, "amax")
    out[MAGNITUDES:].index_add_(1, owner, columns)
    return out[:, :-1].T.contiguous()


def quantise_line(values: Tensor, ends: Tensor, numbers: Tensor, *, bits: int, seed: int | None) -> Tensor:
    """Return the codes of values on their span's line: the nearest magnitude, or with a seed one by chance.

    The draw follows from the seed, the span's numbers and the place in the span: what else is in a message does not
    matter.

    A code is the sign in its uppermost bit and below it m, the magnitude being low + step * m. What lies behind the
    last span has code 0; so has a value that is not a number.
    """
    owner = owners(ends, values.numel())
    lines = torch.cat([numbers, numbers.new_zeros(1, 2)]).to(values.dtype)
    low, step = lines[owner].unbind(1)
    at = (values.abs() - low) / step
    most = 2 ** (bits - 1) - 1
    shift = 0.5 if seed is None else _draws(ends, salts(numbers, seed), owner).to(values.dtype)
    # A line without length has one point.
    magnitude = torch.nan_to_num((at + shift).floor(), nan=0.0).clamp(0, most)
    code = magnitude.to(torch.uint8) + (values < 0).to(torch.uint8) * (most + 1)
    return torch.where(owner < len(ends), code, 0)


def dequantise(codes: Tensor, ends: Tensor, numbers: Tensor, form: Form) -> Tensor:
    """Return what codes stand for; zero behind the last span."""
    owner = owners(ends, codes.numel())
    shared = torch.cat([numbers, numbers.new_zeros(1, form.numbers)])
    if form.kind == "table":
        return shared.view(-1)[owner * form.numbers + codes]
    low, step = shared[owner].unbind(1)
    half = 2 ** (form.bits - 1)
    magnitude = low + step * (codes % half).to(numbers.dtype)
    return torch.where(codes < half, magnitude, -magnitude)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Return codes of so many bits, a divisor of 8, in a row, the first in a byte's lowest bits."""
    each = 8 // bits
    missing = -codes.numel() % each
    full = torch.cat([codes, zeros_on(codes.device, missing)]) if missing else codes
    return (full.view(-1, each) << shifts_on(codes.device, bits)).sum(1, dtype=torch.uint8)


def unpack_codes(raw: Tensor, bits: int, count: int) -> Tensor:
    """Return the first ``count`` codes of so many bits, of each row where there are several."""
    codes: Tensor = raw.unsqueeze(-1) >> shifts_on(raw.device, bits) & (2**bits - 1)
    return codes.flatten(-2)[..., :count]


def owners(ends: Tensor, count: int) -> Tensor:
    """Return the span of each of so many values; those behind the last belong to one more."""
    return torch.searchsorted(ends, torch.arange(count, device=ends.device), right=True)


def salts(numbers: Tensor, seed: int) -> Tensor:
    """Return a word a span to draw its numbers with: a hash of the seed and of its line's step."""
    bits = numbers[:, 1].contiguous().view(torch.int64 if numbers.dtype == torch.float64 else torch.int32)
    return _mixed((bits.to(torch.int64) ^ bits.to(torch.int64) >> 32 ^ seed) & _WORD)


_WORD = 0xFFFFFFFF


def _draws(ends: Tensor, salt: Tensor, owner: Tensor) -> Tensor:
    """Return numbers in [0, 1) that look like chance: a hash of the place in the span and of the span's salt."""
    nothing = ends.new_zeros(1)
    begins, salt = torch.cat([nothing, ends]), torch.cat([salt, nothing])
    place = torch.arange(owner.numel(), device=ends.device) - begins[owner]
    h = _mixed(_mixed(place & _WORD) ^ salt[owner])
    return (h >> 8).to(torch.float32) * 2.0**-24


def _mixed(h: Tensor) -> Tensor:
    # The last steps of MurmurHash3, in 32 bits.
    h = (h ^ h >> 16) * 0x85EBCA6B & _WORD
    h = (h ^ h >> 13) * 0xC2B2AE35 & _WORD
    return h ^ h >> 16


def _packed(bits: Tensor) -> Tensor:
    return pack_codes(bits.to(torch.uint8), 1)


def _unpacked(raw: Tensor) -> Tensor:
    return unpack_codes(raw, 1, 8 * raw.numel()) == 1
