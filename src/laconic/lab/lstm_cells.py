"""One step of time of LSTM cells and its gradient, in place: on a GPU each in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor


def forward_(gates: Tensor, before: Tensor, after: Tensor, outputs: Tensor) -> None:
    """Turn sums [groups, columns, 4 width] into gates i, f, g, o; write the cells after and the outputs."""
    if gates.is_cuda:
        from laconic.lab import lstm_cells_cuda

        lstm_cells_cuda.forward_(gates, before, after, outputs)
        return
    i, f, g, o = gates.chunk(4, dim=-1)
    for each in (i, f, o):
        each.sigmoid_()
    g.tanh_()
    torch.add(f * before, i * g, out=after)
    torch.mul(o, after.tanh(), out=outputs)


def backward_(gates: Tensor, before: Tensor, after: Tensor, above: Tensor, carried: Tensor) -> None:
    """Turn gates into the gradients of their sums; ``carried`` is the cells' gradient, on its way back in time."""
    if gates.is_cuda:
        from laconic.lab import lstm_cells_cuda

        lstm_cells_cuda.backward_(gates, before, after, above, carried)
        return
    i, f, g, o = gates.chunk(4, dim=-1)
    turned = after.tanh()
    cell = carried + above * o * (1 - turned * turned)
    carried.copy_(cell * f)
    into, kept = cell * g * i * (1 - i), cell * before * f * (1 - f)
    gates.copy_(torch.cat([into, kept, cell * i * (1 - g * g), above * turned * o * (1 - o)], dim=-1))
