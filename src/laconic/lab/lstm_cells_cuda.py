"""The cells of ``lstm_cells`` as Triton kernels: a program a stream."""

# ruff: noqa: N803 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.cuda_layout import kernel


def forward_(gates: Tensor, before: Tensor, after: Tensor, outputs: Tensor) -> None:
    """Do what ``lstm_cells.forward_`` says; cells and outputs lie alike."""
    groups, columns, width = after.shape
    _forward[(groups * columns,)](
        gates, before, after, outputs, gates.stride(0), gates.stride(1), after.stride(0), width, columns,
        BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip


def backward_(gates: Tensor, before: Tensor, after: Tensor, above: Tensor, carried: Tensor) -> None:
    """Do what ``lstm_cells.backward_`` says; cells lie alike."""
    groups, columns, width = carried.shape
    _backward[(groups * columns,)](
        gates, before, after, above, carried, gates.stride(0), gates.stride(1), after.stride(0), above.stride(0),
        width, columns, BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * x) - 1


@kernel
def _forward(  # type: ignore[no-untyped-def]
    gates, before, after, outputs, gate_group, gate_column, group, width, columns, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    of, at = (row // columns).to(tl.int64), row % columns
    j = tl.arange(0, BLOCK)
    there = j < width
    a, cell = gates + of * gate_group + at * gate_column + j, of * group + at * width + j
    i = tl.sigmoid(tl.load(a, mask=there, other=0.0))
    f = tl.sigmoid(tl.load(a + width, mask=there, other=0.0))
    g = _tanh(tl.load(a + 2 * width, mask=there, other=0.0))
    o = tl.sigmoid(tl.load(a + 3 * width, mask=there, other=0.0))
    now = f * tl.load(before + cell, mask=there, other=0.0) + i * g
    tl.store(a, i, mask=there)
    tl.store(a + width, f, mask=there)
    tl.store(a + 2 * width, g, mask=there)
    tl.store(a + 3 * width, o, mask=there)
    tl.store(after + cell, now, mask=there)
    tl.store(outputs + cell, o * _tanh(now), mask=there)


@kernel
def _backward(  # type: ignore[no-untyped-def]
    gates, before, after, above, carried, gate_group, gate_column, group, above_group, width, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    of, at = (row // columns).to(tl.int64), row % columns
    j = tl.arange(0, BLOCK)
    there = j < width
    a, cell = gates + of * gate_group + at * gate_column + j, of * group + at * width + j
    i = tl.load(a, mask=there, other=0.0)
    f = tl.load(a + width, mask=there, other=0.0)
    g = tl.load(a + 2 * width, mask=there, other=0.0)
    o = tl.load(a + 3 * width, mask=there, other=0.0)
    fell = tl.load(above + of * above_group + at * width + j, mask=there, other=0.0)
    turned = _tanh(tl.load(after + cell, mask=there, other=0.0))
    place = carried + row.to(tl.int64) * width + j
    grad = tl.load(place, mask=there, other=0.0) + fell * o * (1 - turned * turned)
    tl.store(place, grad * f, mask=there)
    tl.store(a, grad * g * i * (1 - i), mask=there)
    tl.store(a + width, grad * tl.load(before + cell, mask=there, other=0.0) * f * (1 - f), mask=there)
    tl.store(a + 2 * width, grad * i * (1 - g * g), mask=there)
    tl.store(a + 3 * width, fell * turned * o * (1 - o), mask=there)
