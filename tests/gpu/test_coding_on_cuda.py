"""What only a GPU can show of the coding kernels: real sizes, no waiting, and no order of programs in any bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from contracts.spans import chosen, ends_of
from contracts.twins import same
from contracts.vectors import segments_of
from laconic import kernels
from laconic.coding import Form, blocks_of
from laconic.kernels import reference_coding

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# 25 million entries as a network has them, of which a thousandth has room.
SIZES = [2_048_000, *([2_359_296] * 8), *([589_824] * 6), *([65_536] * 8), *([512] * 40), 64, 10, 1]
ROOMS = tuple(-(-size // 1000) for size in SIZES)
LINE, TABLE = Form(kind="line", bits=4), Form(kind="table", bits=4)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the GPU raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_all_five_give_the_definitions_bits_at_25_million_entries():
    """The first call makes tables and compiles, the others neither wait nor differ."""
    segments, ranks = segments_of(SIZES), 4
    blocks = blocks_of(segments, ROOMS)
    counts = [[room - room * rank // 8 for room in ROOMS] for rank in range(ranks)]
    rows = []
    for rank, count in enumerate(counts):
        positions, ends = chosen(segments, count, rank), ends_of(count)
        room = positions.new_zeros(sum(ROOMS) - positions.numel())
        there, ends_there = torch.cat([positions, room]).cuda(), ends.cuda()
        first = kernels.encode_positions(there, ends_there, blocks)
        with _no_waiting():
            again = kernels.encode_positions(there, ends_there, blocks)
        rows.append(reference_coding.encode_positions(positions, ends, blocks))
        assert torch.equal(first.cpu(), rows[-1])
        assert torch.equal(again, first)
        _check_values(sum(ROOMS), ends, rank)
    _check_decoded(torch.stack(rows), counts, blocks)


def _check_decoded(rows, counts, blocks) -> None:
    expected = reference_coding.decode_positions(rows, counts, blocks)
    assert expected.good == [True] * len(rows)
    # A message has other parts before its positions.
    around = torch.full((len(rows), 8 + rows.shape[1]), 255, dtype=torch.uint8, device="cuda")
    around[:, 8:] = rows
    for _ in range(20):
        got = kernels.decode_positions(around[:, 8:], counts, blocks)
        assert got.good == expected.good
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got.positions, expected.positions, strict=True))
    source = torch.Generator().manual_seed(0)
    for _ in range(20):
        rank, at, bit = (int(torch.randint(n, (), generator=source)) for n in (*rows.shape, 8))
        damaged = rows.clone()
        damaged[rank, at] ^= 1 << bit
        expected = reference_coding.decode_positions(damaged, counts, blocks)
        got = kernels.decode_positions(damaged.cuda(), counts, blocks)
        assert got.good == expected.good
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got.positions, expected.positions, strict=True))


def _check_values(room: int, ends, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    for dtype in (torch.float32, torch.float64):
        values = torch.randn(room, generator=source, dtype=dtype)
        numbers = torch.rand(len(ends), 16, generator=source, dtype=dtype) / 4
        there = [t.cuda() for t in (values, ends, numbers)]
        seen = reference_coding.span_statistics(values, ends)
        got = [kernels.span_statistics(*there[:2]) for _ in range(20)]
        assert all(same(g, got[0]) for g in got)
        torch.testing.assert_close(got[0].cpu(), seen, rtol=1e-12, atol=1e-10)
        assert torch.equal(got[0][:, [0, 1, 6, 7]].cpu(), seen[:, [0, 1, 6, 7]])
        for chance in (None, seed + 2**31):
            codes = reference_coding.quantise_line(values, ends, numbers[:, :2], bits=4, seed=chance)
            coded = kernels.quantise_line(*there[:2], there[2][:, :2], bits=4, seed=chance)
            assert torch.equal(coded.cpu(), codes)
        for form, shared in ((LINE, slice(0, 2)), (TABLE, slice(0, 16))):
            stands = reference_coding.dequantise(codes, ends, numbers[:, shared], form)
            given = there[2][:, shared].contiguous()
            assert same(kernels.dequantise(coded, there[1], given, form).cpu(), stands)
            with _no_waiting():
                kernels.quantise_line(*there[:2], there[2][:, :2], bits=4, seed=1)
                kernels.dequantise(coded, there[1], given, form)
                kernels.span_statistics(*there[:2])
