"""The tokens of an LSTM layer as kernels, interpreted: what their twins give."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from laconic.lab import lstm_cells, lstm_cells_cuda

# Streams that fill no block, one, and more than one; units that fill no block either.
SIZES = [(1, 3, 5), (3, 5, 20), (2, 40, 17)]


def _layer(groups, columns, width):
    draw = torch.Generator().manual_seed(width)

    def make(*shape):
        return torch.randn(shape, generator=draw)

    # As they lie within a window: a token of every group's.
    gates, cells, outputs = (
        make(groups, 4, columns, 4 * width),
        make(groups, 4, columns, width),
        make(groups, 4, columns, width),
    )
    # A weight that is a part of a longer row.
    recurrent = make(groups, 4 * width + 3, width)[:, : 4 * width] / width**0.5
    return gates, cells, outputs, recurrent


@pytest.mark.parametrize("size", SIZES)
def test_a_token_is_that_of_its_twin(size):
    gates, cells, outputs, recurrent = _layer(*size)
    mine, theirs = ([x.clone() for x in (gates, cells, outputs)] for _ in range(2))
    for kernels, (g, c, o) in ((lstm_cells, mine), (lstm_cells_cuda, theirs)):
        for t in range(2):
            kernels.forward_(g[:, t], o[:, t], recurrent, c[:, t], c[:, t + 1], o[:, t + 1])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(other, one)
    assert not torch.equal(mine[0][:, 1], gates[:, 1])
    torch.testing.assert_close(theirs[0][:, 2:], gates[:, 2:], rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_the_way_back_is_that_of_its_twin(size):
    gates, cells, outputs, recurrent = _layer(*size)
    gates, above = gates.sigmoid(), outputs
    mine, theirs = (gates.clone(), torch.ones_like(cells[:, 0])), (gates.clone(), torch.ones_like(cells[:, 0]))
    for kernels, (g, carried) in ((lstm_cells, mine), (lstm_cells_cuda, theirs)):
        for t in (2, 1, 0):
            later = g[:, t + 1] if t < 2 else None
            kernels.backward_(g[:, t], later, recurrent, cells[:, t], cells[:, t + 1], above[:, t], carried)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(other, one)
