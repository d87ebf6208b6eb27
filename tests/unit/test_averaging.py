"""Adding up what was gathered: each rank's share divided first, in rank order, times the factor of its segment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import normal
from laconic.averaging import add_mean_, dense
from laconic.segments import Segments
from laconic.types import Gathered, Payload

LAYERS = Segments.of(["a", "b", "empty", "c"], [3, 4, 0, 5])


def _gathered(ranks: int, seed: int, *, known: slice | torch.Tensor, position: torch.dtype) -> Gathered:
    count = LAYERS.numel if isinstance(known, slice) else known.numel()
    payloads = []
    for rank in range(ranks):
        source = torch.Generator().manual_seed(seed + rank)
        at = torch.nonzero(torch.rand(LAYERS.numel, generator=source) < 0.5).flatten().to(position)
        payloads.append(
            Payload(
                known=torch.randn(count, generator=source),
                positions=at,
                values=torch.randn(at.numel(), generator=source),
                wanted=torch.tensor([at.numel()]),
            )
        )
    return Gathered(known=known, payloads=tuple(payloads))


def _one_by_one(gathered: Gathered, factors: dict[str, float]) -> torch.Tensor:
    """The definition, in single precision, entry after entry."""
    ranks, out = len(gathered.payloads), torch.zeros(LAYERS.numel)
    known = torch.arange(LAYERS.numel)[gathered.known]
    for layer in LAYERS:
        weight = torch.tensor(factors.get(layer.name, 1.0) / ranks)
        for at in range(layer.offset, layer.offset + layer.size):
            for positions, values in (
                *((known, p.known) for p in gathered.payloads),
                *((p.positions, p.values) for p in gathered.payloads),
            ):
                for value in values[positions == at]:
                    out[at] += value * weight
    return out


@pytest.mark.parametrize("position", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "known", [slice(None), torch.tensor([], dtype=torch.int64), torch.tensor([0, 5, 11])], ids=str
)
@pytest.mark.parametrize(
    "factors", [{}, {"a": 8.0, "b": 8.0, "empty": 8.0, "c": 8.0}, {"b": 3.0, "c": 0.1}], ids=str
)
@given(ranks=st.integers(1, 4), seed=st.integers(0, 20))
def test_it_is_the_definition_to_the_bit(position, known, factors, ranks, seed):
    gathered = _gathered(ranks, seed, known=known, position=position)
    out = torch.zeros(LAYERS.numel)
    add_mean_(out, gathered, LAYERS, factors)
    assert torch.equal(out, _one_by_one(gathered, factors))
    if not factors:
        assert torch.equal(dense(gathered, out), out)


def test_the_mean_of_numbers_whose_sum_overflows_is_finite():
    most = torch.finfo(torch.float32).max
    payload = Payload(
        known=torch.empty(0),
        positions=torch.tensor([2]),
        values=torch.tensor([most]),
        wanted=torch.tensor([1]),
    )
    gathered = Gathered(known=torch.empty(0, dtype=torch.int64), payloads=(payload,) * 4)
    assert dense(gathered, torch.empty(4)).tolist() == [0.0, 0.0, most, 0.0]


def test_what_is_dense_already_is_left_alone():
    values = normal(5, 1)
    assert dense(values, torch.empty(5)) is values
