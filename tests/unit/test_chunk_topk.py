"""The k largest of every chunk: against the obvious loop, at the edges of a parameter, and as a share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import Flat, normal, segments_of, taken_by
from laconic.compressors import ChunkTopK, TopK


def _one_by_one(x: torch.Tensor, sizes: list[int], rule: ChunkTopK) -> list[int]:
    """The positions by definition; no two magnitudes are equal."""
    found, offset = [], 0
    for size in sizes:
        for start in range(0, size, rule.chunk):
            part = x[offset + start : offset + min(size, start + rule.chunk)].abs()
            whole = part.numel() == rule.chunk
            count = rule.k if whole else min(part.numel(), max(1, round(part.numel() * rule.k / rule.chunk)))
            order = sorted(range(part.numel()), key=lambda i, part=part: -float(part[i]))
            found += sorted(offset + start + i for i in order[:count])
        offset += size
    return found


@given(
    sizes=st.lists(st.integers(0, 40), max_size=4),
    chunk=st.integers(1, 12),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 99),
)
def test_it_is_the_definition(sizes, chunk, share, seed):
    rule = ChunkTopK(k=max(1, round(share * chunk)), chunk=chunk, whole_below=0)
    x = normal(sum(sizes), seed, torch.float64)
    sent = taken_by(rule, Flat(x, segments_of(sizes)))
    assert sent.payload.positions.tolist() == _one_by_one(x, sizes, rule)
    assert torch.equal(sent.payload.values, x[sent.payload.positions])
    assert sent.payload.wanted.tolist() == list(sent.plan.rooms)


def test_where_a_parameter_is_one_chunk_it_is_topk():
    flat = Flat(normal(300, 3), segments_of([100, 100, 100]))
    ours = taken_by(ChunkTopK(k=7, chunk=100, whole_below=0), flat)
    theirs = taken_by(TopK(density=0.07, whole_below=0), flat)
    assert torch.equal(ours.payload.positions, theirs.payload.positions)
    assert torch.equal(ours.left, theirs.left)


def test_every_part_of_a_parameter_sends_though_its_entries_are_small():
    x = torch.cat([normal(4096, 1), 1e-6 * normal(4096, 2), normal(100, 3)])
    sent = taken_by(ChunkTopK(), Flat(x, segments_of([x.numel()])))
    at = sent.payload.positions
    # Of the last hundred their share is 1.6.
    assert [int(((at >= a) & (at < b)).sum()) for a, b in ((0, 4096), (4096, 8192), (8192, 8292))] == [64, 64, 2]
    assert sent.plan.rooms == (130,)


@pytest.mark.parametrize(("size", "room"), [(1, 1), (4095, 64), (4096, 64), (4097, 65), (8192, 128), (8320, 130)])
def test_the_last_chunk_sends_its_share_and_at_least_one_entry(size, room):
    assert ChunkTopK(whole_below=0).plan(segments_of([size]), step=0, rooms={}).rooms == (room,)


def test_chunks_begin_with_the_parameter_and_small_ones_go_whole():
    flat = Flat(normal(3 + 8 + 8, 4), segments_of([3, 8, 8]))
    sent = taken_by(ChunkTopK(k=1, chunk=4, whole_below=4), flat)
    assert sent.payload.known.tolist() == flat.x[:3].tolist()
    assert [int(p - 3) // 4 for p in sent.payload.positions] == [0, 1, 2, 3]


def test_a_density_is_k_of_a_chunk():
    assert ChunkTopK().density == 1 / 64
    assert ChunkTopK().at_density(1 / 128) == ChunkTopK(k=32)
    assert ChunkTopK().at_density(1e-9) == ChunkTopK(k=1)
    assert ChunkTopK().at_density(1.0) == ChunkTopK(k=4096)
    with pytest.raises(ValueError, match=r"density must be a number in \(0, 1\], got 0"):
        ChunkTopK().at_density(0)


def test_numbers_that_are_none_are_taken_first_and_seen():
    x = normal(8, 1)
    x[5] = torch.nan
    sent = taken_by(ChunkTopK(k=1, chunk=4, whole_below=0), Flat(x, segments_of([8])))
    assert sent.payload.positions.tolist()[1] == 5
