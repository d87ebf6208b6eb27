"""What only a GPU can show of the kernels: no order of programs changes a bit, and offsets go beyond 32 bits."""

from __future__ import annotations

import pytest
import torch

from contracts.vectors import segments_of
from laconic import kernels
from laconic.kernels import Inflow, Places

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BORDER = 1 << 31
POSITIONS = [5, BORDER - 1, BORDER, BORDER + 9, BORDER + 10, BORDER + 999]
VALUES = [1.0, -2.0, 3.0, -4.0, 5.0, 6.0]


def _large() -> torch.Tensor:
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    x = torch.zeros(BORDER + 1000, dtype=torch.bfloat16, device="cuda")
    x[POSITIONS] = torch.tensor(VALUES, dtype=x.dtype, device="cuda")
    return x


def test_a_call_gives_the_same_bits_each_time():
    """Programs end in another order each time; whoever is last must find what all the others wrote."""
    from laconic.kernels import cuda_layout

    sizes = [1, 64, 3_000_001, 0, 147_456, 777, 1_000_000, *([9_000] * 60)]
    layout = segments_of(sizes)
    source = torch.Generator("cuda").manual_seed(0)
    grad, owed = (torch.randn(layout.numel, generator=source, device="cuda") for _ in range(2))
    places, flow = Places(grad=layout, x=layout, home=layout), Inflow.plain(len(sizes), like=grad)
    rooms, levels = [n // 500 for n in sizes], torch.full((len(sizes),), 4.0, device="cuda")

    def call() -> list[torch.Tensor]:
        x = torch.empty_like(grad)
        done = kernels.accumulate_(x, grad, flow, places, owed=owed)
        above = kernels.take_above_(x, layout, levels, rooms, largest=done.largest, turn=3)
        top = kernels.take_top_(x, layout, rooms)
        taken = [v for t in (above, top) for v in (t.positions, t.values, t.wanted)]
        return [done.norms, done.largest, *taken, x]

    first = call()
    for _ in range(200):
        assert all(map(torch.equal, first, call()))
    assert cuda_layout._counters
    assert not any(counters.any() for counters in cuda_layout._counters.values())


def test_entries_beyond_two_to_the_31_are_found_where_they_are():
    x, layout = _large(), segments_of([BORDER + 10, 990])
    levels = torch.tensor([0.5, 0.5], dtype=x.dtype, device="cuda")
    left = x.clone()
    above = kernels.take_above_(left, layout, levels, [9, 9])
    assert above.wanted.tolist() == [4, 2]
    assert not left.any()
    top = kernels.take_top_(x, layout, [3, 1])
    assert top.positions.tolist() == [POSITIONS[i] for i in (1, 2, 3, 5)]
    assert top.values.tolist() == [VALUES[i] for i in (1, 2, 3, 5)]
    assert (above.positions[:6].tolist(), above.values[:6].tolist()) == (POSITIONS, VALUES)
    kernels.add_payloads_(x, [top.positions], [top.values], scale=0.5)
    assert x[POSITIONS].tolist() == [1.0, -1.0, 1.5, -2.0, 5.0, 3.0]


def test_sums_go_beyond_two_to_the_31_entries():
    grad, layout = _large(), segments_of([BORDER + 10, 990])
    x = torch.empty(grad.numel(), device="cuda")
    flow = Inflow.plain(2, like=x)
    done = kernels.accumulate_(x, grad, flow, Places(grad=layout, x=layout, home=layout), owed=None)
    assert done.largest.tolist() == [4.0, 6.0]
    assert done.norms.tolist() == pytest.approx([30**0.5, 61**0.5])
    assert x[POSITIONS].tolist() == VALUES
