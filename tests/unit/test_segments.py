"""Segments: where each parameter lies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import segments_of
from laconic.segments import Segment, Segments


@given(st.lists(st.integers(0, 9), max_size=6))
def test_segments_lie_one_behind_the_other(sizes):
    segments = segments_of(sizes)
    flat = torch.arange(segments.numel)
    assert segments.numel == sum(sizes)
    assert [v.numel() for v in segments.views(flat)] == sizes
    assert torch.cat([torch.empty(0, dtype=torch.int64), *segments.views(flat)]).tolist() == flat.tolist()
    assert [segments[name].size for name in segments.names] == sizes
    assert len(segments) == len(list(segments)) == len(sizes)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_merged_segments_are_one_over_the_same_entries(sizes):
    merged = segments_of(sizes).merged()
    assert [(s.offset, s.size) for s in merged] == [(0, sum(sizes))]


def test_views_share_memory():
    flat = torch.zeros(5)
    segments_of([2, 3]).views(flat)[1].fill_(1.0)
    assert flat.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_equal_segments_are_the_same_key():
    assert {segments_of([2, 3]): 1}[segments_of([2, 3])] == 1
    assert segments_of([2, 3]) != segments_of([3, 2])


def test_a_label_names_first_last_and_count():
    assert segments_of([1]).label() == "p0"
    assert segments_of([1, 2, 3]).label() == "p0 .. p2 (3 parameters)"


def test_names_and_sizes_must_pair_up():
    with pytest.raises(ValueError, match="zip"):
        Segments.of(["a", "b"], [1])


def test_an_unknown_name_is_a_key_error():
    assert segments_of([4])["p0"] == Segment(name="p0", offset=0, size=4)
    with pytest.raises(KeyError):
        segments_of([4])["p1"]
