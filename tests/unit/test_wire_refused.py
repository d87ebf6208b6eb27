"""Messages that are refused: of another size, run, form or step, with impossible counts or positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.codecs import BFloat16, Exact, Linear, OneBit, SignMean, TernGrad
from laconic.errors import GroupError, WireError
from laconic.wire import HEADER_BYTES
from letters import Letter, Part, resealed

# A bitmap of ten, and of thirty-two entries two: three lower bits each.
SMALL = Letter(
    parts=(Part(size=10, room=4, chosen=(4, 6, 9)), Part(size=0, room=0), Part(size=32, room=2, chosen=(3, 30))),
    known=(3,),
    values=(1.0, 2.0, 3.0, 5.0, 7.0, -1.0, 4.0, 2.0),
    notes=(1, 0),
)
TOTAL = SMALL.frame.total


def _written(upper: int, lower: int = 3 | 5 << 3) -> Tensor:
    """SMALL, packed, the bits of its positions replaced."""
    row = SMALL.row()
    raw = upper.to_bytes(8, "little") + lower.to_bytes(8, "little")
    row[SMALL.frame.layout.positions :] = torch.tensor(list(raw), dtype=torch.uint8)
    return resealed(row)


def _bits(*places: int) -> int:
    return sum(1 << place for place in places)


# Bit p of the first segment is its entry p; behind its ten bits come five of the last: y >> 3, and i.
GOOD = _bits(4, 6, 9, 10 + 0, 10 + 4)


def test_the_bits_of_these_tests_are_those_of_the_message():
    assert torch.equal(_written(GOOD), SMALL.row())


@settings(max_examples=40)
@given(st.binary(min_size=TOTAL, max_size=TOTAL))
def test_foreign_bytes_are_refused(raw):
    with pytest.raises(WireError, match="rank 0 sent bytes that are not a laconic message"):
        SMALL.read(torch.tensor(list(raw), dtype=torch.uint8))


@pytest.mark.parametrize("size", [0, 8, HEADER_BYTES - 1, HEADER_BYTES, TOTAL - 8, TOTAL - 1, TOTAL + 1, TOTAL + 8])
def test_a_truncated_or_padded_row_is_refused_with_both_sizes(size):
    row = torch.cat([SMALL.row(), torch.zeros(8, dtype=torch.uint8)])[:size]
    with pytest.raises(WireError, match=f"a message has {size} bytes, the plan says {TOTAL}"):
        SMALL.read(row)


@pytest.mark.parametrize(
    "bad",
    [
        _written(_bits(4, 6, 10, 14)),  # one too few in the first segment
        _written(_bits(4, 5, 6, 9, 10, 14)),  # one too many
        _written(_bits(4, 6, 9, 10)),  # one too few in the last
        _written(_bits(4, 6, 9, 10, 11, 14)),
        _written(GOOD, lower=3 | 7 << 3),  # y = 31 where 30 is the most
        _written(_bits(4, 6, 9, 10, 11), lower=5 | 3 << 3),  # y falls from 5 to 3
        _written(0),
        _written(2**64 - 1, lower=2**64 - 1),
    ],
    ids=["few", "many", "few at the end", "many at the end", "too far", "falling", "none", "all"],
)
def test_positions_out_of_number_range_or_order_are_refused_with_the_rank(bad):
    with pytest.raises(WireError, match=r"rank 1 sent positions that do not ascend within their segments"):
        SMALL.read(SMALL.row(), bad)


@pytest.mark.parametrize("bad", [(0,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_positions_of_every_rank_are_looked_at_and_the_first_bad_one_is_named(bad):
    rows = [_written(0) if rank in bad else SMALL.row() for rank in range(3)]
    with pytest.raises(WireError, match=f"rank {bad[0]} sent positions"):
        SMALL.read(*rows)


def test_the_edges_of_the_range_are_in_range():
    (message,) = SMALL.read(_written(_bits(0, 5, 9, 10 + 0, 10 + 4), lower=0 | 6 << 3))
    assert message.payload.positions.tolist() == [0, 5, 9, 10 + 0, 10 + 31]


def test_a_message_of_another_step_is_refused_before_its_entries_are_used():
    with pytest.raises(GroupError, match="rank 0 is at step 8 while this rank is at step 9"):
        SMALL.read(_written(0), own=replace(SMALL.header, step=9))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Exact(), BFloat16()), (SignMean(), Linear(bits=2)), (Linear(bits=2), Linear(bits=8)), (TernGrad(), OneBit())],
    ids=str,
)
def test_another_form_of_values_is_refused(ours, theirs):
    """As long as the numbers are, the message of one form may be as long as that of another."""
    letter, other = replace(SMALL, codec=ours), replace(SMALL, codec=theirs)
    row = torch.zeros(letter.frame.total, dtype=torch.uint8)
    row[:HEADER_BYTES] = other.row()[:HEADER_BYTES]
    row = resealed(row)
    match = rf"rank 1 is at written {other.header.written} while this rank is at written {letter.header.written}"
    with pytest.raises(GroupError, match=match):
        letter.read(letter.row(), row)


def test_two_codecs_of_one_form_read_each_other():
    """The form is all that a reader needs to know; that methods are alike is the fingerprint's to say."""
    qsgd_like, ternary = replace(SMALL, codec=Linear(bits=2)), replace(SMALL, codec=TernGrad())
    (message,) = qsgd_like.read(ternary.row())
    assert torch.equal(message.payload.values, ternary.pack().sent.values)


@pytest.mark.parametrize(
    "counts", [(2, 0, 2), (4, 0, 2), (3, 0, 3), (11, 0, 2), (3, 1, 2), (3, -1, 3), (-3, 0, 8), (2**31 - 1, 0, 2)]
)
def test_wrong_counts_behind_the_header_are_refused_with_the_rank(counts):
    row = SMALL.row()
    row[HEADER_BYTES : HEADER_BYTES + 12] = torch.tensor(counts, dtype=torch.int32).view(torch.uint8)
    told = rf"\(\[{', '.join(map(str, counts))}\]\)"
    with pytest.raises(WireError, match=rf"rank 1 says it sends 5 of 5 entries {told}"):
        SMALL.read(SMALL.row(), resealed(row))


def test_where_nobody_counts_all_room_is_used():
    letter = replace(SMALL, counted=False)
    with pytest.raises(WireError, match=r"sends 5 of 5 entries \(\[\]\); the agreed rooms are \[4, 0, 2\]"):
        letter.read(letter.row())


def test_positions_that_are_not_as_promised_are_not_sent():
    for chosen in ((6, 4, 9), (4, 4, 9), (4, 6, 10)):
        parts = (Part(size=10, room=4, chosen=chosen), *SMALL.parts[1:])
        with pytest.raises(ValueError, match="positions must ascend within their segment"):
            replace(SMALL, parts=parts).row()
