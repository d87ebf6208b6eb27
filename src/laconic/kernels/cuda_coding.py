"""Coding on CUDA, compiled by Triton: each a twin of a function in ``reference_coding``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.coding import ROOM, SIZE, UPPER, Blocks, Form
from laconic.kernels import cuda_codes as compiled
from laconic.kernels import reference_coding
from laconic.kernels.cuda_layout import counters_of, device_of
from laconic.kernels.reference_coding import Placed

# Entries or bits that a program looks at together; the most programs that share a span's values.
_TILE, _PARTS = 1024, 16
_REAL = (torch.float32, torch.float64)


def encode_positions(positions: Tensor, ends: Tensor, blocks: Blocks) -> Tensor:
    """Do what ``reference_coding.encode_positions`` does, but for the error: to raise it, the host would wait.

    Positions that are not as promised give bytes of no meaning; nothing is written out of bounds.
    """
    cut = _cut(positions.device, blocks)
    words = torch.zeros((blocks.upper_bytes + blocks.lower_bytes) // 8, dtype=torch.int64, device=positions.device)
    if cut.entries.count:
        with device_of(positions):
            compiled.encode[(cut.entries.count,)](
                positions.contiguous(), ends.contiguous(), words, words[blocks.upper_bytes // 8 :], cut.rows,
                cut.entries.owner, cut.entries.first, positions.numel(), TILE=_TILE, num_warps=4,
            )  # fmt: skip
    return words.view(torch.uint8)


def decode_positions(rows: Tensor, counts: list[list[int]], blocks: Blocks) -> Placed:
    """Do what ``reference_coding.decode_positions`` does, all ranks in one go; the host waits once."""
    cut, ranks, width = _cut(rows.device, blocks), len(rows), blocks.upper_bytes + blocks.lower_bytes
    if rows.shape[1] != width:
        raise ValueError(f"rows must have the {width} bytes of their blocks, got {rows.shape[1]}. Cut them so.")
    held = np.array(counts, np.int64).reshape(ranks, len(blocks.rows) - 1)
    likely = ((held >= 0) & (held <= blocks.rows[:-1, [ROOM, SIZE]].min(1))).all(1)
    held = np.where(likely[:, None], held, 0)
    # Segment after segment, rank after rank; behind each rank's last segment where that one ends.
    before = np.concatenate([[0], held.sum(1).cumsum()])
    begins = np.hstack([before[:-1, None], before[:-1, None] + held.cumsum(1)])
    out = torch.empty(int(before[-1]), dtype=torch.int64, device=rows.device)
    good = likely.tolist()
    if cut.bits.count and ranks:
        bad = _decoded(_words(rows), torch.from_numpy(begins).to(rows.device, non_blocking=True), out, blocks, cut)
        good = [fine and not flag for fine, flag in zip(good, bad.tolist(), strict=True)]
    found = out.split(held.sum(1).tolist()) if ranks else ()
    return Placed(positions=[p if fine else p[:0] for p, fine in zip(found, good, strict=True)], good=good)


def span_statistics(values: Tensor, ends: Tensor) -> Tensor:
    """Do what ``reference_coding.span_statistics`` does; sums in another order, the same one each time."""
    spans = len(ends)
    out = torch.empty(spans, 8, dtype=torch.float64, device=values.device)
    if spans:
        parts = torch.empty(spans * 7 * _PARTS, dtype=torch.float64, device=values.device)
        shares = max(1, min(_PARTS, -(-values.numel() // _TILE)))
        with device_of(values):
            compiled.statistics[(spans, shares)](
                values.contiguous(), ends.contiguous(), parts, out, counters_of(values.device, spans),
                values.numel(), PARTS=_PARTS, TILE=_TILE, num_warps=8, enable_fp_fusion=False,
            )  # fmt: skip
    return out


def quantise_line(values: Tensor, ends: Tensor, numbers: Tensor, *, bits: int, seed: int | None) -> Tensor:
    """Do what ``reference_coding.quantise_line`` does."""
    if values.dtype not in _REAL:
        return reference_coding.quantise_line(values, ends, numbers, bits=bits, seed=seed)
    out = torch.empty(values.numel(), dtype=torch.uint8, device=values.device)
    lines = numbers.to(values.dtype).contiguous()
    salts = ends if seed is None else reference_coding.salts(lines, seed)
    if values.numel():
        with device_of(values):
            compiled.quantise[(-(-values.numel() // _TILE),)](
                values.contiguous(), ends.contiguous(), lines, out, values.numel(),
                len(ends), len(ends).bit_length(), 2 ** (bits - 1) - 1, salts,
                CHANCE=seed is not None, TILE=_TILE, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
    return out


def dequantise(codes: Tensor, ends: Tensor, numbers: Tensor, form: Form) -> Tensor:
    """Do what ``reference_coding.dequantise`` does."""
    if numbers.dtype not in _REAL:
        return reference_coding.dequantise(codes, ends, numbers, form)
    out = torch.empty(codes.numel(), dtype=numbers.dtype, device=codes.device)
    if codes.numel():
        with device_of(codes):
            compiled.dequantise[(-(-codes.numel() // _TILE),)](
                codes.contiguous(), ends.contiguous(), numbers.contiguous(), out, codes.numel(),
                len(ends), len(ends).bit_length(), form.numbers, 2 ** (form.bits - 1),
                TABLE=form.kind == "table", TILE=_TILE, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
    return out


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Pieces of segments that programs work on: whose each is, and which is each segment's first."""

    count: int
    owner: Tensor
    first: Tensor


@dataclass(frozen=True, eq=False)
class _Cut:
    """Blocks on a device, cut by entries that are written and by bits that are read."""

    rows: Tensor
    entries: _Tiles
    bits: _Tiles


_seen: dict[tuple[torch.device, int], tuple[Blocks, _Cut]] = {}


def _cut(device: torch.device, blocks: Blocks) -> _Cut:
    """Return the table of blocks, which is there from the last step where rooms stay as they are."""
    key = device, id(blocks)
    if key not in _seen:
        if len(_seen) >= 1024:
            _seen.clear()
        # Holding on to the blocks keeps their id theirs.
        _seen[key] = blocks, _made(device, blocks.rows)
    return _seen[key][1]


def _made(device: torch.device, rows: NDArray[np.int64]) -> _Cut:
    pieces = [-(-sizes // _TILE) for sizes in (rows[:-1, ROOM], np.diff(rows[:, UPPER]))]
    owners = [np.repeat(np.arange(len(each)), each) for each in pieces]
    firsts = [np.concatenate([[0], each.cumsum()]) for each in pieces]
    # All in one copy: rooms may change from step to step.
    parts = [rows.ravel(), *owners, *firsts]
    there = torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True)
    table, *views = there.split([part.size for part in parts])
    entries, bits = (_Tiles(len(owner), owner, first) for owner, first in zip(views[:2], views[2:], strict=True))
    return _Cut(rows=table, entries=entries, bits=bits)


def _words(rows: Tensor) -> Tensor:
    """Return rows of bytes as rows of 64-bit words; where these would not lie evenly, of a copy."""
    even = rows.stride(1) == 1 and rows.stride(0) % 8 == rows.storage_offset() % 8 == rows.data_ptr() % 8 == 0
    return (rows if even else rows.clone(memory_format=torch.contiguous_format)).view(torch.int64)


def _decoded(words: Tensor, begins: Tensor, out: Tensor, blocks: Blocks, cut: _Cut) -> Tensor:
    """Write the positions of all ranks; return a flag for each that is not as promised."""
    ranks, tiles = len(words), cut.bits.count
    ones = torch.empty(ranks, tiles + 1, dtype=torch.int64, device=words.device)
    bad = torch.empty(ranks, dtype=torch.int32, device=words.device)
    table = cut.rows, cut.bits.owner, cut.bits.first, words.stride(0)
    with device_of(words):
        compiled.count_ones[(tiles, ranks)](words, ones, bad, *table, tiles, TILE=_TILE, num_warps=4)
        compiled.decode[(tiles, ranks)](
            words, ones.cumsum(1), begins, out, bad, *table, blocks.upper_bytes // 8, tiles, len(blocks.rows) - 1,
            TILE=_TILE, num_warps=4,
        )  # fmt: skip
    return bad
