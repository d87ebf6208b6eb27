"""Whole messages: what is packed is unpacked, the size is promised, and bytes from outside are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import DTYPES, numbers, same_bits
from laconic.errors import GroupError, LaconicError, WireError
from laconic.segments import Segments
from laconic.spectrum import SPECTRUM_BYTES, Spectrum
from laconic.types import Payload, Plan
from laconic.wire import HEADER_BYTES, Header, message_bytes, pack, unpack

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
HUGE = 2**31


@dataclass(frozen=True)
class Letter:
    """A message before it is packed."""

    payload: Payload
    plan: Plan
    header: Header
    numel: int
    notes: torch.Tensor
    spectrum: torch.Tensor | None = None

    def packed(self) -> torch.Tensor:
        spectrum = self.spectrum
        return pack(self.payload, self.plan, self.header, numel=self.numel, notes=self.notes, spectrum=spectrum)

    def read(self, rows: torch.Tensor, own: Header | None = None):
        dtype = self.payload.known.dtype
        notes, tells = self.notes.numel(), self.spectrum is not None
        return unpack(
            rows, self.plan, own or self.header, numel=self.numel, notes=notes, dtype=dtype, spectrum=tells
        )


def _letter(
    known: list[float],
    pairs: dict[int, float],
    *,
    spare: int,
    numel: int,
    dtype: torch.dtype,
    notes: Sequence[int] = (),
    counted: bool = False,
) -> Letter:
    """A message with room for ``spare`` pairs more; one that is full wanted three more than it has."""
    at = sorted(pairs)
    wanted = len(at) + (0 if spare else 3)
    payload = Payload(
        known=torch.tensor(known, dtype=dtype),
        positions=torch.tensor(at, dtype=torch.int64),
        values=torch.tensor([pairs[i] for i in at], dtype=dtype),
        wanted=torch.tensor([wanted, 0]),
    )
    header = Header(
        fingerprint=7, step=8, count=len(at), wanted=wanted, finite=True, rates=5, value_bytes=dtype.itemsize
    )
    plan = Plan(
        known=torch.arange(len(known)),
        known_sizes=(len(known),),
        choosing=Segments.of(["a", "b"], [numel, 0]),
        rooms=(len(at) + spare, 0),
        counted=counted,
    )
    return Letter(payload, plan, header, numel, torch.tensor(notes, dtype=torch.uint8))


@st.composite
def letters(draw: st.DrawFn, dtype: torch.dtype) -> Letter:
    numel = draw(st.sampled_from([40, 1000, HUGE - 1, HUGE, HUGE + 10]))
    pairs = draw(st.dictionaries(st.integers(0, numel - 1), numbers(dtype), max_size=9))
    spectrum = draw(st.none() | st.binary(min_size=SPECTRUM_BYTES, max_size=SPECTRUM_BYTES))
    letter = _letter(
        draw(st.lists(numbers(dtype), max_size=5)),
        pairs,
        spare=draw(st.integers(0, 3)),
        numel=numel,
        dtype=dtype,
        notes=draw(st.lists(st.integers(0, 255), max_size=17)),
        counted=draw(st.booleans()),
    )
    return replace(letter, spectrum=spectrum and torch.frombuffer(bytearray(spectrum), dtype=torch.uint8))


SMALL = _letter([1.0, 2.0, 3.0], {4: 5.0, 6: 7.0, 9: -1.0}, spare=1, numel=10, dtype=torch.float32, notes=[1, 0])


def _with_positions(*positions: int) -> torch.Tensor:
    """SMALL, packed, its positions replaced."""
    row = SMALL.packed()
    row[-16:-4] = torch.tensor(positions, dtype=torch.int32).view(torch.uint8)
    return row


@every_dtype
@given(data=st.data(), ranks=st.integers(1, 4))
def test_what_is_packed_is_unpacked_to_the_bit(dtype, data, ranks):
    letter = data.draw(letters(dtype))
    for message in letter.read(torch.stack([letter.packed()] * ranks)):
        assert message.header.count == letter.header.count
        assert message.header.wanted == letter.header.wanted
        assert list(message.header.counts) == (letter.payload.wanted.tolist() if letter.plan.counted else [])
        assert message.notes.tolist() == letter.notes.tolist()
        assert message.spectrum == (None if letter.spectrum is None else Spectrum.read(letter.spectrum))
        assert same_bits(message.payload.known, letter.payload.known)
        assert same_bits(message.payload.values, letter.payload.values)
        assert torch.equal(message.payload.positions, letter.payload.positions)
        assert message.payload.wanted.tolist() == list(message.header.counts)


@every_dtype
@given(data=st.data())
def test_the_size_is_header_counts_spectrum_notes_values_and_positions_each_rounded_up_to_8(dtype, data):
    letter = data.draw(letters(dtype))
    position_bytes = 4 if letter.numel < HUGE else 8
    parts = [
        2 * position_bytes if letter.plan.counted else 0,
        0 if letter.spectrum is None else SPECTRUM_BYTES,
        letter.notes.numel(),
        letter.plan.known_count * dtype.itemsize,
        letter.plan.capacity * dtype.itemsize,
        letter.plan.capacity * position_bytes,
    ]
    expected = HEADER_BYTES + sum((part + 7) // 8 * 8 for part in parts)
    size = message_bytes(
        letter.plan,
        numel=letter.numel,
        notes=letter.notes.numel(),
        spectrum=letter.spectrum is not None,
        value_bytes=dtype.itemsize,
    )
    assert letter.packed().numel() == size == expected


@every_dtype
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_bytes_decode_or_raise_an_error_of_ours(dtype, data):
    letter = data.draw(letters(dtype))
    rows = torch.stack([letter.packed()] * 2)
    for _ in range(data.draw(st.integers(1, 6))):
        # Half of the blows go to the words that steer the reading.
        last = rows.numel() - 1
        at = data.draw(st.one_of(st.integers(0, last), st.integers(24, HEADER_BYTES + 7)))
        rows.view(-1)[at] = data.draw(st.integers(0, 255))
    try:
        messages = letter.read(rows)
    except LaconicError:
        return
    for message in messages:
        positions = message.payload.positions
        assert positions.numel() == message.payload.values.numel() <= letter.plan.capacity
        rooms = letter.plan.rooms if letter.plan.counted else ()
        told = sum(min(n, room) for n, room in zip(message.header.counts, rooms, strict=True))
        assert not letter.plan.counted or told == positions.numel()
        assert bool((positions.diff() > 0).all())
        assert all(0 <= p < letter.numel for p in positions.tolist())


@settings(max_examples=40)
@given(st.binary(min_size=SMALL.packed().numel(), max_size=SMALL.packed().numel()))
def test_foreign_bytes_are_refused(raw):
    with pytest.raises(WireError, match="rank 0 sent bytes that are not a laconic message"):
        SMALL.read(torch.frombuffer(bytearray(raw), dtype=torch.uint8).unsqueeze(0))


@pytest.mark.parametrize("size", [0, 8, HEADER_BYTES - 1, HEADER_BYTES, SMALL.packed().numel() - 1])
def test_a_truncated_or_padded_row_is_refused_with_both_sizes(size):
    whole = SMALL.packed()
    with pytest.raises(WireError, match=f"a message has {size} bytes, the plan says {whole.numel()}"):
        SMALL.read(whole[:size].unsqueeze(0))
    longer = torch.cat([whole, torch.zeros(8, dtype=torch.uint8)])
    with pytest.raises(WireError, match=f"has {longer.numel()} bytes"):
        SMALL.read(longer.unsqueeze(0))


@pytest.mark.parametrize(
    "positions", [(4, 6, 10), (-1, 4, 6), (4, 4, 6), (6, 4, 9), (9, 6, 4), (4, 6, 2**31 - 1)], ids=str
)
def test_positions_out_of_range_or_order_are_refused_with_the_rank(positions):
    rows = torch.stack([SMALL.packed(), _with_positions(*positions)])
    with pytest.raises(WireError, match=r"rank 1 sent positions that do not ascend within 0 \.\. 9"):
        SMALL.read(rows)


@pytest.mark.parametrize("bad", [(0,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_positions_of_every_rank_are_looked_at_and_the_first_bad_one_is_named(bad):
    rows = [_with_positions(6, 4, 9) if rank in bad else SMALL.packed() for rank in range(3)]
    with pytest.raises(WireError, match=f"rank {bad[0]} sent positions"):
        SMALL.read(torch.stack(rows))


def test_the_edges_of_the_range_are_in_range():
    message = SMALL.read(_with_positions(0, 5, 9).unsqueeze(0))[0]
    assert message.payload.positions.tolist() == [0, 5, 9]


def test_unused_room_is_zero_so_that_the_same_payload_is_the_same_bytes():
    row = SMALL.packed()
    assert row[-4:].tolist() == [0, 0, 0, 0]
    assert torch.equal(row, SMALL.packed())


def test_a_message_of_another_step_is_refused_before_its_entries_are_used():
    with pytest.raises(GroupError, match="rank 0 is at step 8 while this rank is at step 9"):
        SMALL.read(SMALL.packed().unsqueeze(0), own=replace(SMALL.header, step=9))


def test_a_payload_with_unused_room_is_the_same_message():
    """On a device the payload has the plan's full room, with zeros behind the last entry."""
    payload = replace(
        SMALL.payload,
        positions=torch.cat([SMALL.payload.positions, torch.zeros(1, dtype=torch.int64)]),
        values=torch.cat([SMALL.payload.values, torch.zeros(1)]),
    )
    assert torch.equal(replace(SMALL, payload=payload).packed(), SMALL.packed())


def test_wrong_counts_behind_the_header_are_refused_with_the_rank():
    letter = _letter([1.0], {4: 5.0, 6: 7.0}, spare=1, numel=10, dtype=torch.float32, counted=True)
    row = letter.packed()
    row[HEADER_BYTES : HEADER_BYTES + 4] = torch.tensor([1], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(WireError, match=r"rank 1 says it sends 2 of 2 entries \(\[1, 0\]\)"):
        letter.read(torch.stack([letter.packed(), row]))


def test_a_message_can_be_empty():
    nothing = _letter([], {}, spare=0, numel=0, dtype=torch.float32)
    assert nothing.plan.capacity == 0
    assert nothing.packed().numel() == HEADER_BYTES
    message = nothing.read(nothing.packed().unsqueeze(0))[0]
    assert message.payload.count == 0
    assert message.notes.numel() == 0


def test_notes_may_be_left_out():
    assert SMALL.notes.numel() == 2
    row = pack(SMALL.payload, SMALL.plan, SMALL.header, numel=10, notes=None)
    assert row.numel() == SMALL.packed().numel() - 8
