"""The header: eight words that every rank checks; each wrong one names the rank and both values."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.errors import GroupError, WireError
from laconic.wire import HEADER_BYTES, Header, read_headers

OWN = Header(fingerprint=11, step=22, count=3, wanted=4, finite=True, rates=33, value_bytes=4)
CAPACITY = 10


def _rows(*headers: Header | list[int]) -> torch.Tensor:
    words = [h.words() if isinstance(h, Header) else h for h in headers]
    return torch.tensor(words, dtype=torch.int64).view(torch.uint8)


def _changed(word: int, value: int) -> list[int]:
    words = OWN.words()
    words[word] = value
    return words


@given(
    st.builds(
        Header,
        fingerprint=st.integers(-(2**63), 2**63 - 1),
        step=st.integers(0, 2**63 - 1),
        count=st.integers(0, CAPACITY),
        wanted=st.integers(CAPACITY, 2**63 - 1),
        finite=st.booleans(),
        rates=st.integers(0, 2**32 - 1),
        value_bytes=st.sampled_from([2, 4, 8]),
    )
)
def test_what_is_written_is_read(header):
    assert read_headers(_rows(header, header), header, capacity=CAPACITY) == [header, header]


def test_the_words_stand_where_the_format_says():
    words = replace(OWN, finite=False).words()
    assert len(words) * 8 == HEADER_BYTES
    assert struct.pack("<q", words[0]) == b"laconic\x01"
    assert words[1:] == [11, 22, 3, 4, 1, 33, 4]


@given(st.lists(st.tuples(st.integers(0, CAPACITY), st.booleans()), min_size=1, max_size=5))
def test_each_rank_has_its_own_count_and_flag(ranks):
    headers = [replace(OWN, count=count, wanted=count + 7, finite=finite) for count, finite in ranks]
    assert read_headers(_rows(*headers), OWN, capacity=CAPACITY) == headers


@pytest.mark.parametrize(
    ("field", "theirs", "remedy"),
    [
        ("fingerprint", 99, "same method"),
        ("step", 23, "same number of steps"),
        ("rates", 34, "same schedule"),
        ("value_bytes", 8, "same dtype"),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_differs_is_named_with_both_values_and_what_to_do(field, theirs, remedy, rank):
    headers = [OWN] * 3
    headers[rank] = replace(OWN, **{field: theirs})
    ours = getattr(OWN, field)
    with pytest.raises(GroupError, match=rf"rank {rank} is at {field} {theirs} .*{field} {ours}\. .*{remedy}"):
        read_headers(_rows(*headers), OWN, capacity=CAPACITY)


@pytest.mark.parametrize(
    ("count", "wanted"), [(CAPACITY + 1, 99), (-1, 5), (4, 3), (0, -1), (2**63 - 1, 2**63 - 1), (-(2**63), 0)]
)
def test_an_impossible_count_is_refused_with_rank_count_and_capacity(count, wanted):
    bad = OWN.words()
    bad[3:5] = [count, wanted]
    with pytest.raises(WireError, match=f"rank 1 says it sends {count} of {wanted} .*capacity is {CAPACITY}"):
        read_headers(_rows(OWN, bad), OWN, capacity=CAPACITY)


@pytest.mark.parametrize("magic", [0, -1, int.from_bytes(b"laconic\x02", "little")])
def test_bytes_that_are_no_message_of_this_version_are_refused(magic):
    with pytest.raises(
        WireError, match=rf"rank 1 sent .*not a laconic message of version 1 .*{magic:#x}, expected"
    ):
        read_headers(_rows(OWN, _changed(0, magic)), OWN, capacity=CAPACITY)


def test_a_fingerprint_is_looked_at_before_the_count():
    """Counts of another method mean nothing: the ranks must be told that the methods differ."""
    other = replace(OWN, fingerprint=5, count=CAPACITY + 50, wanted=CAPACITY + 50)
    with pytest.raises(GroupError, match="fingerprint 5"):
        read_headers(_rows(OWN, other), OWN, capacity=CAPACITY)
