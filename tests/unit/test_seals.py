"""Seals: the sum is the one that the format says, whatever its size, and no change passes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.plain_decoder import sum_of, upper_bits
from laconic import seals
from laconic.collectives import AllGather
from laconic.errors import WireError

words = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30)


def _bytes(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def _row(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


@given(rows=st.integers(1, 4), numbers=words, first=st.integers(0, 10**9))
def test_the_sum_is_the_one_that_plain_python_makes(rows, numbers, first):
    raw = _bytes(numbers)
    got = seals.sums(torch.stack([_row(raw)] * rows), first=first).tolist()
    assert [total % 2**64 for total in got] == [sum_of(raw, first)] * rows


@pytest.mark.parametrize("size", [1, 4, 5, 8, 11])
def test_what_is_added_up_in_pieces_is_the_same_sum(size, monkeypatch):
    monkeypatch.setattr(seals, "_CHUNK", 4)
    raw = bytes((7 * i * i + 3) % 256 for i in range(8 * size))
    assert int(seals.sums(_row(raw).unsqueeze(0), first=2)) % 2**64 == sum_of(raw, 2)


@given(numbers=words, data=st.data())
def test_parts_are_added_up_apart_and_counted_through(numbers, data):
    inner = data.draw(st.sets(st.integers(1, len(numbers)), max_size=5))
    begins = sorted({0, len(numbers), *inner})
    got = seals.part_sums(_row(_bytes(numbers)), torch.tensor(begins)).tolist()
    assert [total % 2**64 for total in got] == [sum_of(_bytes(numbers[a:b]), a) for a, b in pairwise(begins)]


@given(total=st.integers(-(2**63), 2**63 - 1), bits=st.sampled_from([16, 32]))
def test_a_short_seal_is_the_same_on_the_host_and_where_sums_lie(total, bits):
    assert seals.short(total, bits) == upper_bits(total, bits)
    assert seals.short_of(torch.tensor([total]), bits).tolist() == [seals.short(total, bits)]


@given(numbers=words, at=st.integers(0, 10**6), change=st.integers(1, 2**64 - 1))
def test_a_change_of_one_word_always_changes_the_sum(numbers, at, change):
    other = list(numbers)
    other[at % len(other)] ^= change
    assert int(seals.sums(_row(_bytes(numbers)).unsqueeze(0))) != int(seals.sums(_row(_bytes(other)).unsqueeze(0)))


@given(numbers=words, word=st.integers(0, 10**6))
def test_a_seal_in_the_upper_half_of_a_word_fits(numbers, word):
    word %= len(numbers)
    numbers[word] &= 0xFFFFFFFF
    message = _row(_bytes(numbers))
    seals.seal_upper_half_(message, word)
    total, value = int(seals.sums(message.unsqueeze(0))), int(message.view(torch.int64)[word])
    assert seals.upper_half_fits(total, value, word)
    assert not seals.upper_half_fits(total, value ^ 1 << 40, word)


def _heard(send: bytes, *rows: bytes, damaged: int | None = None) -> list[bytes]:
    """What one rank hears of ranks that say these; a byte of one of them is changed."""
    steps = seals.gathered(_row(send), "word")
    assert isinstance(next(steps), AllGather)
    sent = [next(seals.gathered(_row(row), "word")).send for row in rows]
    if damaged is not None:
        sent[damaged][3] ^= 1
    try:
        steps.send(torch.stack(sent))
    except StopIteration as end:
        return [bytes(row.tolist()) for row in end.value]
    raise AssertionError("it wants more than one reply")


def test_what_is_gathered_is_what_was_sent_whatever_its_size():
    for size in range(1, 20):
        rows = [bytes([rank] * size) for rank in range(3)]
        assert _heard(rows[1], *rows) == rows
    with pytest.raises(WireError, match=r"rank 2's word was damaged on the way.*Go on from the last checkpoint"):
        _heard(b"abcde", b"abcde", b"fghij", b"klmno", damaged=2)


def test_bytes_that_are_all_gone_are_not_sealed():
    steps = seals.gathered(_row(b"abcdefgh"), "word")
    sent = next(steps).send
    with pytest.raises(WireError, match="rank 0's word"):
        steps.send(torch.zeros(1, sent.numel(), dtype=torch.uint8))
