"""The header: ten words that every rank checks; each wrong one names the rank and both values."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import segments_of
from laconic import seals
from laconic.coding import Form
from laconic.errors import GroupError, WireError
from laconic.pace import UNKNOWN_PACE, Pace
from laconic.types import Plan
from laconic.wire import HEADER_BYTES, Header, read_headers
from laconic.wire.header import Received
from letters import resealed

CPU = torch.device("cpu")
CAPACITY = 10
ENTRIES = 50
OWN = Header(fingerprint=11, step=22, count=CAPACITY, wanted=12, finite=True, rates=33, value_bytes=4)
PLAN = Plan(known=slice(0, 0), known_sizes=(), choosing=segments_of([20, 30]), rooms=(4, 6))
COUNTED = replace(PLAN, counted=True)
FORMS = [
    Form(kind="float"),
    Form(kind="bfloat16", bits=16),
    *(Form(kind="line", bits=b) for b in (2, 4, 8)),
    *(Form(kind="table", bits=b) for b in (1, 2, 4, 8)),
]


def _words(header: Header) -> list[int]:
    return header.words(CPU).tolist()


def _read(own: Header, *rows: Header | list[int]) -> list[Received]:
    words = [_words(row) if isinstance(row, Header) else row for row in rows]
    table = torch.stack([resealed(torch.tensor(each).view(torch.uint8)) for each in words])
    return read_headers(table, own, PLAN, torch.empty(len(rows), 0, dtype=torch.int32), seals.sums(table))


def _read_counted(header: Header, *counts: int) -> Received:
    row = resealed(header.words(CPU).view(torch.uint8)).unsqueeze(0)
    return read_headers(row, OWN, COUNTED, torch.tensor([counts], dtype=torch.int32), seals.sums(row))[0]


def _changed(word: int, value: int) -> list[int]:
    words = _words(OWN)
    words[word] = value
    return words


def _same(seen: Received, header: Header) -> bool:
    same = (seen.count, seen.wanted, seen.finite, seen.alarmed) == (
        header.count,
        header.wanted,
        header.finite,
        header.alarmed,
    )
    change = (math.nan, math.nan) if header.change is None else header.change.tolist()
    same = same and repr(seen.pace) == repr(header.pace) and repr(seen.change) == repr(tuple(change))
    return same and struct.pack("<d", seen.loss) == struct.pack("<d", header.loss)


def _pair(first: float, second: float) -> torch.Tensor:
    return torch.tensor([first, second], dtype=torch.float32)


def _as_word(numbers: Sequence[float]) -> int:
    return int.from_bytes(struct.pack("<ff", *numbers), "little", signed=True)


@given(
    st.builds(
        Header,
        fingerprint=st.integers(-(2**63), 2**63 - 1),
        step=st.integers(0, 2**63 - 1),
        count=st.just(CAPACITY),
        wanted=st.integers(CAPACITY, ENTRIES),
        finite=st.booleans(),
        rates=st.integers(0, 2**32 - 1),
        value_bytes=st.sampled_from([2, 4, 8]),
        form=st.sampled_from(FORMS),
        loss=st.floats(),
        alarmed=st.booleans(),
        pace=st.builds(Pace, waited=st.floats(0, 1e6, width=32), rest=st.floats(0, 1e6, width=32)),
        change=st.none() | st.builds(_pair, st.floats(width=32), st.floats(width=32)),
    )
)
def test_what_is_written_is_read(header):
    read = _read(header, header, header)
    assert len(read) == 2
    assert all(_same(seen, header) and seen.counts == () for seen in read)


def test_the_words_stand_where_the_format_says():
    told = replace(OWN, loss=2.5, pace=Pace(waited=0.5, rest=0.25), change=_pair(-1.5, 3.0))
    words = _words(replace(told, finite=False, alarmed=True))
    assert len(words) * 8 == HEADER_BYTES
    assert struct.pack("<q", words[0]) == b"laconic\x05"
    assert words[1:5] == [11, 22, 10, 12]
    assert words[5] == 1 | 2 | 4 << 8
    assert words[6] == 33
    assert struct.pack("<q", words[7]) == struct.pack("<d", 2.5)
    assert struct.pack("<q", words[8]) == struct.pack("<ff", 0.5, 0.25)
    assert struct.pack("<q", words[9]) == struct.pack("<ff", -1.5, 3.0)


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (Form(kind="float"), 0),
        (Form(kind="bfloat16", bits=16), 1 | 16 << 8),
        (Form(kind="line", bits=4), 2 | 4 << 8),
        (Form(kind="table", bits=1), 3 | 1 << 8),
    ],
    ids=str,
)
def test_the_form_of_values_stands_in_the_flags(form, written):
    assert _words(replace(OWN, form=form))[5] == 4 << 8 | written << 16


def test_every_form_is_another_number():
    assert len({replace(OWN, form=form).written for form in FORMS}) == len(FORMS)


def test_counts_and_flag_may_still_lie_on_a_device():
    lazy = replace(OWN, count=torch.tensor(10), wanted=torch.tensor(12), finite=torch.tensor(False))
    assert _words(lazy) == _words(replace(OWN, finite=False))


@given(st.lists(st.tuples(st.integers(0, CAPACITY), st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_each_rank_has_its_own_count_and_flags(ranks):
    """Where nobody counts a rank uses all room; one whose gradient is not finite finds what it finds."""
    headers = [
        replace(OWN, count=count if not finite else CAPACITY, wanted=CAPACITY + 7, finite=finite, alarmed=alarmed)
        for count, finite, alarmed in ranks
    ]
    headers = [replace(header, loss=float(rank)) for rank, header in enumerate(headers)]
    for seen, header in zip(_read(OWN, *headers), headers, strict=True):
        assert _same(seen, header)
        assert seen.chosen == (PLAN.rooms if header.finite else (0, 0))


def test_a_loss_that_was_not_told_is_not_a_number():
    assert math.isnan(_read(OWN, OWN)[0].loss)
    assert _read(OWN, replace(OWN, loss=math.inf))[0].loss == math.inf


def test_a_pace_and_a_change_that_were_not_told_are_not_known():
    (seen,) = _read(OWN, OWN)
    assert seen.pace == UNKNOWN_PACE
    assert all(math.isnan(number) for number in seen.change)


@pytest.mark.parametrize(
    "times", [(-1.0, 1.0), (1.0, -1e-9), (math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)]
)
def test_times_from_outside_that_cannot_be_are_not_known(times):
    assert _read(OWN, _changed(8, _as_word(times)))[0].pace is UNKNOWN_PACE


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_any_bits_are_a_pace_and_a_change(pace, change):
    words = _words(OWN)
    words[8:] = [pace, change]
    (seen,) = _read(OWN, words)
    assert seen.pace is UNKNOWN_PACE or min(seen.pace.waited, seen.pace.rest) >= 0


@given(st.integers(0, 20), st.integers(0, 30))
def test_counts_that_follow_say_how_many_were_sent(a, b):
    header = replace(OWN, count=min(a, 4) + min(b, 6), wanted=a + b)
    seen = _read_counted(header, a, b)
    assert (seen.counts, seen.count, seen.wanted) == ((a, b), min(a, 4) + min(b, 6), a + b)
    assert seen.chosen == (min(a, 4), min(b, 6))
    assert _read_counted(replace(header, finite=False), a, b).chosen == (0, 0)


@pytest.mark.parametrize(
    ("count", "wanted", "counts"),
    [
        (3, 4, (4, 0)),
        (5, 9, (4, 0)),
        (4, 9, (9, -1)),
        (3, 4, (-1, 4)),
        (10, 99, (4, 5)),
        (0, 0, (1, 0)),
        # As many sent as fit, and yet another number wanted than was counted.
        (4, 5, (4, 0)),
        (10, 10, (4, 7)),
        (5, 2**62, (4, 1)),
        # More than there are.
        (4, 21, (21, 0)),
        (10, 51, (20, 31)),
        (4, 2**31 - 1, (2**31 - 1, 0)),
    ],
    ids=str,
)
def test_counts_that_do_not_add_up_to_what_was_sent_are_refused(count, wanted, counts):
    bad = replace(OWN, count=count, wanted=wanted)
    with pytest.raises(
        WireError, match=rf"rank 0 says it sends {count} of {wanted} .*the agreed rooms are \[4, 6\]"
    ):
        _read_counted(bad, *counts)


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
        _read(OWN, *headers)


@pytest.mark.parametrize(("ours", "theirs"), [(a, b) for a in FORMS for b in FORMS if a != b], ids=str)
def test_another_form_of_values_is_refused(ours, theirs):
    own, other = replace(OWN, form=ours), replace(OWN, form=theirs)
    match = rf"rank 1 is at written {other.written} while this rank is at written {own.written}\. .*same method"
    with pytest.raises(GroupError, match=match):
        _read(own, own, other)


@pytest.mark.parametrize(
    ("count", "wanted"),
    [
        (CAPACITY + 1, 50),
        (CAPACITY - 1, 50),
        (-1, 5),
        (CAPACITY, CAPACITY - 1),
        (0, -1),
        (CAPACITY, ENTRIES + 1),
        (CAPACITY, 2**63 - 1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), 0),
    ],
)
def test_an_impossible_count_is_refused_with_rank_count_and_rooms(count, wanted):
    bad = _words(OWN)
    bad[3:5] = [count, wanted]
    with pytest.raises(WireError, match=rf"rank 1 says it sends {count} of {wanted} .*rooms are \[4, 6\]"):
        _read(OWN, OWN, bad)


@pytest.mark.parametrize("magic", [0, -1, int.from_bytes(b"laconic\x04", "little")])
def test_bytes_that_are_no_message_of_this_version_are_refused(magic):
    with pytest.raises(
        WireError, match=rf"rank 1 sent .*not a laconic message of version 5 .*{magic:#x}, expected"
    ):
        _read(OWN, OWN, _changed(0, magic))


def test_a_fingerprint_is_looked_at_before_the_count():
    """Counts of another method mean nothing: the ranks must be told that the methods differ."""
    other = replace(OWN, fingerprint=5, count=CAPACITY + 50, wanted=CAPACITY + 50)
    with pytest.raises(GroupError, match="fingerprint 5"):
        _read(OWN, OWN, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_words_do_not_depend_on_the_default_dtype(dtype):
    before = _words(OWN)
    torch.set_default_dtype(dtype)
    try:
        assert _words(OWN) == before
    finally:
        torch.set_default_dtype(torch.float32)
