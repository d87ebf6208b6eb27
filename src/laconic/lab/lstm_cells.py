"""One token of an LSTM layer and its gradient, in place: product and cells, on a GPU in one kernel.

Weights come by group, so do streams: [groups, columns, width], gates [groups, columns, 4 width].
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward_(
    gates: Tensor, hidden: Tensor, recurrent: Tensor, before: Tensor, after: Tensor, outputs: Tensor
) -> None:
    """Turn what inputs bring into gates i, f, g, o; write the cells after and the outputs.

    ``hidden`` are the outputs of the token before, ``before`` its cells.
    """
    if gates.is_cuda:
        from laconic.lab import lstm_cells_cuda

        lstm_cells_cuda.forward_(gates, hidden, recurrent, before, after, outputs)
        return
    gates.baddbmm_(hidden, recurrent.transpose(1, 2))
    i, f, g, o = gates.chunk(4, dim=-1)
    for each in (i, f, o):
        each.sigmoid_()
    g.tanh_()
    torch.add(f * before, i * g, out=after)
    torch.mul(o, after.tanh(), out=outputs)


def backward_(
    gates: Tensor,
    later: Tensor | None,
    recurrent: Tensor,
    before: Tensor,
    after: Tensor,
    above: Tensor,
    carried: Tensor,
) -> None:
    """Turn gates into the gradients of their sums; ``carried`` is the cells' gradient, on its way back in time.

    ``above`` is what the layer above asks of the outputs, ``later`` the gates' gradients of the token after; None:
    there is none.
    """
    if gates.is_cuda:
        from laconic.lab import lstm_cells_cuda

        lstm_cells_cuda.backward_(gates, later, recurrent, before, after, above, carried)
        return
    fell = above if later is None else torch.baddbmm(above, later, recurrent)
    i, f, g, o = gates.chunk(4, dim=-1)
    turned = after.tanh()
    cell = carried + fell * o * (1 - turned * turned)
    carried.copy_(cell * f)
    into, kept = cell * g * i * (1 - i), cell * before * f * (1 - f)
    gates.copy_(torch.cat([into, kept, cell * i * (1 - g * g), fell * turned * o * (1 - o)], dim=-1))
