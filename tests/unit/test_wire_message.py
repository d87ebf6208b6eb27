"""Whole messages: what is packed is unpacked, and the size is promised."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.registry import every_codec
from contracts.vectors import DTYPES, same_bits
from covering import in_turn
from laconic.codecs import Exact, Linear, SignMean
from laconic.coding import Codec, best_width
from laconic.spectrum import SPECTRUM_BYTES, Spectrum
from laconic.wire import HEADER_BYTES, pack
from letters import HUGE, Letter, Part, a_letter, resealed

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_coding = pytest.mark.parametrize(("codec", "dtype"), in_turn(every_codec(), DTYPES))

SMALL = Letter(
    parts=(Part(size=10, room=4, chosen=(4, 6, 9)), Part(size=0, room=0)),
    known=(2, 1),
    values=(1.0, 2.0, 3.0, 5.0, 7.0, -1.0),
    notes=(1, 0),
)


def _up_to_8(count: int) -> int:
    return (count + 7) // 8 * 8


def _position_bits(part: Part) -> tuple[int, int]:
    """Bits of the upper and of the lower part: with these lower bits their sum is least (see test_coding)."""
    width = best_width(part.size, part.room)
    return (part.room + ((part.size - part.room) >> width), part.room * width) if part.room else (0, 0)


def _some(codec: Codec, dtype: torch.dtype) -> list[Letter]:
    return [a_letter(Random(seed), codec, dtype) for seed in range(20)]


@every_dtype
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 4))
def test_what_is_packed_is_unpacked_to_the_bit(dtype, seed, ranks):
    letter = a_letter(Random(seed), Exact(), dtype)
    for message in letter.read(*[letter.row()] * ranks):
        assert message.header.count == letter.header.count
        assert message.header.wanted == letter.header.wanted
        assert list(message.header.counts) == (letter.payload.wanted.tolist() if letter.counted else [])
        assert message.notes.tolist() == list(letter.notes)
        told = letter.spectrum
        assert message.spectrum == (told and Spectrum.read(torch.tensor(list(told), dtype=torch.uint8)))
        assert same_bits(message.payload.known, letter.payload.known)
        assert same_bits(message.payload.values, letter.payload.values)
        assert torch.equal(message.payload.positions, letter.payload.positions)
        assert message.payload.wanted.tolist() == list(message.header.counts)


@every_coding
def test_what_packing_says_was_sent_is_what_is_read(codec, dtype):
    for letter in _some(codec, dtype):
        packed = letter.pack()
        for message in letter.read(packed.message, packed.message):
            assert same_bits(message.payload.known, packed.sent.known)
            assert same_bits(message.payload.values, packed.sent.values)
            assert torch.equal(message.payload.positions, letter.payload.positions)
            assert torch.equal(packed.sent.positions, letter.payload.positions)


@every_coding
def test_the_size_is_the_parts_each_rounded_up_to_8(codec, dtype):
    for letter in _some(codec, dtype):
        assert letter.row().numel() == letter.frame.total == _expected_bytes(letter)


def _expected_bytes(letter: Letter) -> int:
    codec, dtype = letter.codec, letter.dtype
    bits = codec.form.bits or 8 * dtype.itemsize
    shared = {"line": 2, "table": 2**bits}.get(codec.form.kind, 0) * dtype.itemsize
    count_bytes = 4 if all(part.size < HUGE for part in letter.parts) else 8
    upper, lower = (sum(column) for column in zip((0, 0), *map(_position_bits, letter.parts), strict=True))
    in_bytes = [
        count_bytes * len(letter.parts) if letter.counted else 0,
        0 if letter.spectrum is None else SPECTRUM_BYTES,
        len(letter.notes),
        shared * (len(letter.known) + len(letter.parts)),
    ]
    in_bits = [bits * sum(letter.known), bits * sum(part.room for part in letter.parts), upper, lower]
    return HEADER_BYTES + sum(map(_up_to_8, in_bytes)) + sum(_up_to_8((n + 7) // 8) for n in in_bits)


@every_coding
def test_the_same_payload_is_the_same_bytes(codec, dtype):
    letter = replace(SMALL, codec=codec, dtype=dtype)
    assert torch.equal(letter.row(), letter.row())


@every_coding
def test_a_payload_with_unused_room_is_the_same_message(codec, dtype):
    """On a device the payload has the plan's full room, with zeros behind the last entry."""
    letter = replace(SMALL, codec=codec, dtype=dtype)
    nothing = torch.zeros(1, dtype=torch.int64)
    payload = replace(
        letter.payload,
        positions=torch.cat([letter.payload.positions, nothing]),
        values=torch.cat([letter.payload.values, nothing.to(dtype)]),
    )
    packed = letter.pack(payload)
    assert torch.equal(packed.message, letter.row())
    assert packed.sent.values[-1] == 0


@every_coding
def test_unused_room_is_zero(codec, dtype):
    letter = replace(SMALL, codec=codec, dtype=dtype, values=[-1.0] * 6)
    row, layout = letter.row(), letter.frame.layout
    bits = letter.frame.value_bits
    values = int.from_bytes(bytes(row[layout.values : layout.positions].tolist()), "little")
    assert values >> 3 * bits == 0
    assert row[layout.notes + 2 : layout.numbers].tolist() == [0] * 6
    # Of ten entries four may be chosen: no lower bits, and a bit for each entry. 4, 6 and 9 are themselves.
    positions = int.from_bytes(bytes(row[layout.positions :].tolist()), "little")
    assert positions == 1 << 4 | 1 << 6 | 1 << 9


def test_positions_lie_where_the_format_says():
    """Of 32 entries two: y = p - i = 3, 29, at most 30; three lower bits each, the rest in unary."""
    letter = Letter(parts=(Part(size=32, room=2, chosen=(3, 30)),), values=(1.0, 2.0))
    row, layout = letter.row(), letter.frame.layout
    raw = bytes(row[layout.positions :].tolist())
    assert int.from_bytes(raw[:8], "little") == 1 << 0 + 0 | 1 << 3 + 1
    assert int.from_bytes(raw[8:], "little") == 3 | 5 << 3
    assert len(raw) == 16


@pytest.mark.parametrize("size", [HUGE - 1, HUGE, 2**40, 2**60])
@pytest.mark.parametrize("codec", [Exact(), Linear(bits=4)], ids=str)
def test_positions_may_lie_far_out(codec, size):
    """Only counts and offsets matter: the vector itself is nowhere."""
    far = Part(size=size, room=3, chosen=(0, size // 2, size - 1))
    letter = Letter(parts=(far, Part(size=0, room=0), far), values=[1.0, -2.0, 3.0] * 2, codec=codec)
    (message,) = letter.read(letter.row())
    assert message.payload.positions.tolist() == [0, size // 2, size - 1, size, size + size // 2, 2 * size - 1]
    assert letter.frame.count_dtype == (torch.int32 if size < HUGE else torch.int64)


def test_counts_may_pass_31_bits():
    letter = Letter(parts=(Part(size=2**33, room=1, chosen=(5,), wanted=2**32 + 1),), values=(1.0,))
    (message,) = letter.read(letter.row())
    assert message.header.counts == (2**32 + 1,)
    assert message.payload.positions.tolist() == [5]


def test_of_a_rank_that_is_not_finite_no_chosen_entry_is_read():
    for counted in (True, False):
        letter = replace(SMALL, counted=counted, finite=False, values=[float("nan")] * 6)
        (message,) = letter.read(letter.row())
        assert (message.header.finite, message.header.chosen) == (False, (0, 0))
        assert message.payload.positions.numel() == message.payload.values.numel() == 0
        # What every rank sends has its place all the same.
        assert message.payload.known.numel() == 3


def test_a_rank_that_is_not_finite_may_send_any_positions():
    """What is not a number is not chosen by its magnitude: what was taken then means nothing."""
    letter = replace(SMALL, finite=False)
    row = letter.row()
    row[letter.frame.layout.positions :] = 255
    assert letter.read(resealed(row))[0].payload.positions.numel() == 0


def test_a_message_can_be_empty():
    for nothing in (Letter(), Letter(parts=(Part(size=0, room=0),), counted=False)):
        assert nothing.row().numel() == HEADER_BYTES
        (message,) = nothing.read(nothing.row())
        assert message.payload.count == message.notes.numel() == 0


def test_notes_may_be_left_out():
    bare = replace(SMALL, notes=())
    assert bare.frame.total == SMALL.frame.total - 8
    assert pack(bare.frame, bare.payload, bare.header, bare.codec).message.numel() == bare.frame.total


def test_one_bit_a_value_where_signs_are_all_there_is():
    """Sixty-four chosen entries of one magnitude: 8 bytes of signs, and nothing is lost."""
    part = Part(size=64, room=64, chosen=tuple(range(64)))
    letter = Letter(parts=(part,), values=[0.5, -0.5] * 32, codec=SignMean())
    packed = letter.pack()
    layout = letter.frame.layout
    assert layout.positions - layout.values == 8
    assert same_bits(packed.sent.values, letter.payload.values)
