"""The tokens of ``lstm_cells`` as Triton kernels: a program has some units of a group, and a block of its streams.

A handful of streams reads a whole matrix at each token: what counts is that its rows come as fast as memory gives
them. Libraries take several times as long for so few columns, and another kernel for the cells.
"""

# ruff: noqa: N803 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.cuda_layout import kernel

# Units of a program: few, so that there are as many programs as a GPU has processors.
_UNITS = 16
# What a program reads of a row at once.
_DEPTH = 64
# The fewest streams that tensor cores take, and the most that fit beside the weights.
_FEWEST, _MOST = 16, 32


def forward_(
    gates: Tensor, hidden: Tensor, recurrent: Tensor, before: Tensor, after: Tensor, outputs: Tensor
) -> None:
    """Do what ``lstm_cells.forward_`` says; cells, outputs and what is hidden lie alike."""
    groups, columns, width = after.shape
    _forward[_grid(groups, columns, width)](
        gates, hidden, recurrent, before, after, outputs, gates.stride(0), gates.stride(1), recurrent.stride(0),
        after.stride(0), columns, WIDTH=width, STREAMS=_streams(columns), UNITS=_UNITS, DEPTH=_DEPTH,
        PRECISION=_precision(), num_warps=4, num_stages=4,
    )  # fmt: skip


def backward_(
    gates: Tensor,
    later: Tensor | None,
    recurrent: Tensor,
    before: Tensor,
    after: Tensor,
    above: Tensor,
    carried: Tensor,
) -> None:
    """Do what ``lstm_cells.backward_`` says; cells lie alike, and so do gates and those of the token after."""
    groups, columns, width = carried.shape
    if later is not None and groups == 1:
        # One matrix has too few columns for programs of this kind: libraries cut it in both directions.
        above, later = torch.baddbmm(above, later, recurrent), None
    _backward[_grid(groups, columns, width)](
        gates, gates if later is None else later, recurrent, before, after, above, carried, gates.stride(0),
        gates.stride(1), recurrent.stride(0), after.stride(0), above.stride(0), columns, WIDTH=width,
        STREAMS=_streams(columns), UNITS=_UNITS, DEPTH=_DEPTH, PRECISION=_precision(), LATER=later is not None,
        num_warps=4, num_stages=4,
    )  # fmt: skip


def _streams(columns: int) -> int:
    return min(_MOST, max(_FEWEST, int(triton.next_power_of_2(columns))))


def _grid(groups: int, columns: int, width: int) -> tuple[int, int, int]:
    return triton.cdiv(width, _UNITS), triton.cdiv(columns, _streams(columns)), groups


def _precision() -> str:
    """Products are as exact as torch's own are asked to be."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * x) - 1


@kernel
def _forward(  # type: ignore[no-untyped-def]
    gates, hidden, recurrent, before, after, outputs, gate_group, gate_column, weight_group, group, columns,
    WIDTH: tl.constexpr, STREAMS: tl.constexpr, UNITS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    of = tl.program_id(2).to(tl.int64)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    stream = tl.program_id(1) * STREAMS + tl.arange(0, STREAMS)
    real = stream < columns
    there = real[:, None] & (unit < WIDTH)[None, :]
    a = gates + of * gate_group + stream[:, None] * gate_column + unit[None, :]
    i = tl.load(a, mask=there, other=0.0)
    f = tl.load(a + WIDTH, mask=there, other=0.0)
    g = tl.load(a + 2 * WIDTH, mask=there, other=0.0)
    o = tl.load(a + 3 * WIDTH, mask=there, other=0.0)
    rows = recurrent + of * weight_group + unit[None, :] * WIDTH
    for start in range(0, WIDTH, DEPTH):
        k = start + tl.arange(0, DEPTH)
        deep = k < WIDTH
        was = hidden + of * group + stream[:, None] * WIDTH + k[None, :]
        h = tl.load(was, mask=real[:, None] & deep[None, :], other=0.0)
        w, known = rows + k[:, None], deep[:, None] & (unit < WIDTH)[None, :]
        i = tl.dot(h, tl.load(w, mask=known, other=0.0), i, input_precision=PRECISION)
        f = tl.dot(h, tl.load(w + WIDTH * WIDTH, mask=known, other=0.0), f, input_precision=PRECISION)
        g = tl.dot(h, tl.load(w + 2 * WIDTH * WIDTH, mask=known, other=0.0), g, input_precision=PRECISION)
        o = tl.dot(h, tl.load(w + 3 * WIDTH * WIDTH, mask=known, other=0.0), o, input_precision=PRECISION)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    cell = of * group + stream[:, None] * WIDTH + unit[None, :]
    now = f * tl.load(before + cell, mask=there, other=0.0) + i * g
    tl.store(a, i, mask=there)
    tl.store(a + WIDTH, f, mask=there)
    tl.store(a + 2 * WIDTH, g, mask=there)
    tl.store(a + 3 * WIDTH, o, mask=there)
    tl.store(after + cell, now, mask=there)
    tl.store(outputs + cell, o * _tanh(now), mask=there)


@kernel
def _backward(  # type: ignore[no-untyped-def]
    gates, later, recurrent, before, after, above, carried, gate_group, gate_column, weight_group, group,
    above_group, columns, WIDTH: tl.constexpr, STREAMS: tl.constexpr, UNITS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, LATER: tl.constexpr,
):  # fmt: skip
    of = tl.program_id(2).to(tl.int64)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    stream = tl.program_id(1) * STREAMS + tl.arange(0, STREAMS)
    real = stream < columns
    there = real[:, None] & (unit < WIDTH)[None, :]
    place = stream[:, None] * WIDTH + unit[None, :]
    fell = tl.load(above + of * above_group + place, mask=there, other=0.0)
    if LATER:
        rows = recurrent + of * weight_group + unit[None, :]
        for start in range(0, 4 * WIDTH, DEPTH):
            k = start + tl.arange(0, DEPTH)
            deep = k < 4 * WIDTH
            came = later + of * gate_group + stream[:, None] * gate_column + k[None, :]
            d = tl.load(came, mask=real[:, None] & deep[None, :], other=0.0)
            w = tl.load(rows + k[:, None] * WIDTH, mask=deep[:, None] & (unit < WIDTH)[None, :], other=0.0)
            fell = tl.dot(d, w, fell, input_precision=PRECISION)
    a = gates + of * gate_group + stream[:, None] * gate_column + unit[None, :]
    i = tl.load(a, mask=there, other=0.0)
    f = tl.load(a + WIDTH, mask=there, other=0.0)
    g = tl.load(a + 2 * WIDTH, mask=there, other=0.0)
    o = tl.load(a + 3 * WIDTH, mask=there, other=0.0)
    cell = of * group + place
    turned = _tanh(tl.load(after + cell, mask=there, other=0.0))
    # What is carried lies close, whatever the cells lie in.
    kept = carried + of * columns * WIDTH + place
    grad = tl.load(kept, mask=there, other=0.0) + fell * o * (1 - turned * turned)
    tl.store(kept, grad * f, mask=there)
    tl.store(a, grad * g * i * (1 - i), mask=there)
    tl.store(a + WIDTH, grad * tl.load(before + cell, mask=there, other=0.0) * f * (1 - f), mask=there)
    tl.store(a + 2 * WIDTH, grad * i * (1 - g * g), mask=there)
    tl.store(a + 3 * WIDTH, fell * turned * o * (1 - o), mask=there)
