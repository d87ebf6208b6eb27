"""Coding on CPU, compiled by Numba: each a twin of a function in ``reference_coding``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.coding import ROOM, Blocks, Form
from laconic.kernels import cpu_codes as loops
from laconic.kernels.reference_coding import Placed, salts


def encode_positions(positions: Tensor, ends: Tensor, blocks: Blocks) -> Tensor:
    """Do what ``reference_coding.encode_positions`` does."""
    raw = np.zeros((blocks.upper_bytes + blocks.lower_bytes) // 8, np.uint64)
    upper, lower = raw[: blocks.upper_bytes // 8], raw[blocks.upper_bytes // 8 :]
    if not loops.encode_positions(positions.long().numpy(), ends.numpy(), blocks.rows, upper, lower):
        raise ValueError("positions must ascend within their segment, and fit its room.")
    return torch.from_numpy(raw.view(np.uint8))


def decode_positions(rows: Tensor, counts: list[list[int]], blocks: Blocks) -> Placed:
    """Do what ``reference_coding.decode_positions`` does."""
    words, split = rows.contiguous().numpy().view(np.uint64), blocks.upper_bytes // 8
    positions, good = [], []
    for row, count in zip(words, np.array(counts, np.int64).reshape(len(words), -1), strict=True):
        # More than there is room for is refused, and needs no memory before.
        rooms = blocks.rows[: len(count), ROOM]
        out = torch.empty(int(np.minimum(count.clip(0), rooms).sum()), dtype=torch.int64)
        good.append(bool(loops.decode_positions(row[:split], row[split:], count, blocks.rows, out.numpy())))
        positions.append(out if good[-1] else out[:0])
    return Placed(positions=positions, good=good)


def span_statistics(values: Tensor, ends: Tensor) -> Tensor:
    """Do what ``reference_coding.span_statistics`` does."""
    out = torch.zeros(len(ends), 8, dtype=torch.float64)
    loops.span_statistics(values.detach().numpy(), ends.numpy(), out.numpy())
    return out


def quantise_line(values: Tensor, ends: Tensor, numbers: Tensor, *, bits: int, seed: int | None) -> Tensor:
    """Do what ``reference_coding.quantise_line`` does."""
    out = torch.zeros(values.numel(), dtype=torch.uint8)
    given = values.detach().numpy()
    half = given.dtype.type(0.5)
    lines = numbers.to(values.dtype).contiguous().numpy()
    salt = np.empty(0, np.int64) if seed is None else salts(numbers.to(values.dtype), seed).numpy()
    loops.quantise_line(given, ends.numpy(), lines, 2 ** (bits - 1) - 1, salt, half, out.numpy())
    return out


def dequantise(given: Tensor, ends: Tensor, numbers: Tensor, form: Form) -> Tensor:
    """Do what ``reference_coding.dequantise`` does."""
    out = torch.zeros(given.numel(), dtype=numbers.dtype)
    shared = numbers.contiguous().numpy()
    if form.kind == "table":
        loops.dequantise_table(given.numpy(), ends.numpy(), shared, out.numpy())
    else:
        loops.dequantise_line(given.numpy(), ends.numpy(), shared, 2 ** (form.bits - 1), out.numpy())
    return out
