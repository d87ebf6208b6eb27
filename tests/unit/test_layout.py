"""The order of a parameter's entries in memory: flat and back, whatever the format."""

from __future__ import annotations

import pytest
import torch

from laconic.layout import dimension_order, flatten, rows_of, unflatten

SHAPES = {
    "contiguous": torch.arange(24.0).view(2, 3, 4),
    "a scalar": torch.tensor(5.0),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "channels_last": torch.arange(120.0).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels_last, one channel": torch.arange(20.0).view(1, 1, 4, 5).contiguous(memory_format=torch.channels_last),
    "with gaps": torch.arange(24.0).view(4, 6)[:, :3],
    "expanded": torch.arange(3.0).expand(4, 3),
}


@pytest.mark.parametrize("p", SHAPES.values(), ids=list(SHAPES))
def test_flat_and_back_is_the_same(p):
    values = torch.randn(p.shape)
    assert torch.equal(unflatten(flatten(values, p).clone(), p), values)


@pytest.mark.parametrize("name", ["contiguous", "transposed", "channels_last", "channels_last, one channel"])
def test_the_flat_order_is_the_order_in_storage(name):
    p = SHAPES[name]
    assert torch.equal(flatten(p, p), torch.as_strided(p, (p.numel(),), (1,)))


@pytest.mark.parametrize("name", ["with gaps", "expanded"])
def test_what_does_not_fill_its_storage_is_taken_in_logical_order(name):
    p = SHAPES[name]
    assert dimension_order(p) == tuple(range(p.dim()))
    assert torch.equal(flatten(p, p), p.reshape(-1))


@pytest.mark.parametrize(
    ("name", "rows"), [("contiguous", 2), ("a scalar", 1), ("empty", 0), ("transposed", 3), ("channels_last", 2)]
)
def test_rows_are_the_slowest_dimension_in_memory(name, rows):
    assert rows_of(SHAPES[name]) == rows


def test_a_vector_is_one_row_and_dimensions_of_one_are_passed_over():
    assert [rows_of(torch.empty(shape)) for shape in ((7,), (1, 1), (1, 5, 3), (5, 1, 3))] == [1, 1, 5, 5]
