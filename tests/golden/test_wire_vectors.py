"""The kept messages of wire format 5, read by plain Python that knows no more than docs/wire-format.md."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from golden.plain_decoder import read, resealed, width_of
from golden.wire_cases import FILE, cases
from laconic.coding import best_width
from laconic.segments import Segments
from laconic.spectrum import Spectrum, measure

KEPT = json.loads(FILE.read_text())
# Those with ranges are of two rounds, and have a reader of their own.
VECTORS = [vector for vector in KEPT if "shares" not in vector["known_before"]]
COUNT, WANTED, FLAGS, COUNTS = 24, 32, 40, 80


def _name(vector):
    return vector["name"]


def _vector(name):
    (found,) = [vector for vector in VECTORS if vector["name"] == name]
    return bytes.fromhex(found["message"]), found["known_before"]


def _bytes_of(floats, dtype):
    # Through the dtype's own bytes: a zero has a sign, and nothing is close to anything.
    return struct.pack(f"<{len(floats)}{'f' if dtype == 'float32' else 'd'}", *floats)


def _moved(message, at, by, letter="<q"):
    (word,) = struct.unpack_from(letter, message, at)
    return resealed(message[:at] + struct.pack(letter, word + by) + message[at + struct.calcsize(letter) :])


def _flipped(message, bit):
    at = bit // 8
    return resealed(_struck(message, at, 1 << bit % 8))


def _struck(message, at, by):
    return message[:at] + bytes([message[at] ^ by]) + message[at + 1 :]


@pytest.mark.parametrize("vector", VECTORS, ids=_name)
def test_a_message_says_what_is_kept_with_it(vector):
    dtype, says = vector["known_before"]["dtype"], dict(vector["says"])
    heard = read(bytes.fromhex(vector["message"]), vector["known_before"])
    for floats in {"known", "values"} & says.keys():
        assert _bytes_of(heard[floats], dtype) == _bytes_of(says.pop(floats), dtype)
    assert {name: heard[name] for name in says} == says


def test_the_library_still_writes_the_kept_messages():
    assert cases() == KEPT


def test_the_kept_messages_have_every_kind_of_form():
    known = [vector["known_before"] for vector in VECTORS]
    assert {k["kind"] for k in known} == {"float", "bfloat16", "line", "table"}
    assert {k["counted"] for k in known} == {False, True}
    assert {k["dtype"] for k in known} == {"float32", "float64"}


def test_the_width_is_the_one_of_the_library_and_no_other_takes_fewer_bits():
    for size in range(140):
        for room in range(size + 1):
            width = width_of(size, room)
            assert width == best_width(size, room)
            if room:
                bits = [room * (w + 1) + (size - room >> w) for w in range(9)]
                assert bits[width] == min(bits)


def test_a_spectrum_lies_behind_the_counts_and_is_read_as_the_library_reads_it():
    message, known = _vector("exact-counted")
    sent = measure(torch.linspace(-3, 5, 1000), Segments.of(["w"], [1000]), turn=0)
    counts = COUNTS + 4 * len(known["segments"])
    longer = resealed(message[:counts] + bytes(sent.tolist()) + message[counts:])
    heard = read(longer, known | {"spectrum": True})
    library = Spectrum.read(sent)
    assert heard["spectrum"] == {"top": library.top, "entries": [int(count) for count in library.counts]}
    assert heard["notes"] == [1, 0, 2]


@pytest.mark.parametrize("name", ["int4-full", "exact-counted"])
def test_any_other_bytes_than_those_that_were_written_are_refused(name):
    message, known = _vector(name)
    for at in range(len(message)):
        with pytest.raises(ValueError, match=r"seal|magic|dtype"):
            read(_struck(message, at, 1 << at % 8), known)


@pytest.mark.parametrize("name", ["int4-full", "int4-counted"])
def test_a_flipped_bit_of_the_upper_parts_is_refused(name):
    message, known = _vector(name)
    # The rooms 4, 30 and 9 have the widths 6, 0 and 9: 8, 70 and 18 bits above, 24 and 81 bits below.
    upper = len(message) - 16 - 16
    for bit in range(8 + 70 + 18):
        with pytest.raises(ValueError, match="entries of a segment"):
            read(_flipped(message, 8 * upper + bit), known)


def test_positions_that_fall_or_lie_outside_are_refused():
    message, known = _vector("int4-full")
    lower = 8 * (len(message) - 16)
    # Positions 0 and 7 are the first two, with no upper bits; 300 - 4 is the most that may stand for the last.
    for bit in (lower + 4, lower + 3 * 6 + 2):
        with pytest.raises(ValueError, match="do not ascend"):
            read(_flipped(message, bit), known)


@pytest.mark.parametrize("name", ["sign-full", "sign-counted"])
@pytest.mark.parametrize(("at", "by"), [(COUNT, 1), (COUNT, -1), (COUNT, 1 << 40), (COUNT, -50), (WANTED, -1)])
def test_counts_of_the_header_that_cannot_be_are_refused(name, at, by):
    message, known = _vector(name)
    with pytest.raises(ValueError, match=r"wanted|count|entries"):
        read(_moved(message, at, by), known)


def test_counts_that_contradict_the_header_are_refused():
    message, known = _vector("sign-counted")
    for segment, by in ((0, 1), (1, 1), (2, -1), (2, 40), (3, -6), (3, 1 << 30)):
        with pytest.raises(ValueError, match=r"wanted|count"):
            read(_moved(message, COUNTS + 4 * segment, by, "<i"), known)
    # Two that sum to the same are told apart by the sign.
    both = _moved(_moved(message, COUNTS + 4, -1, "<i"), COUNTS + 8, 1, "<i")
    with pytest.raises(ValueError, match="below zero"):
        read(both, known)


def test_more_that_qualified_than_there_is_room_for_is_no_contradiction():
    message, known = _vector("sign-full")
    assert read(_moved(message, WANTED, 1000), known)["wanted"] == 1043


def test_more_that_qualified_than_there_are_is_refused():
    message, known = _vector("sign-full")
    assert read(_moved(message, WANTED, 5370 - 43), known)["wanted"] == 5370
    with pytest.raises(ValueError, match="wanted"):
        read(_moved(message, WANTED, 5371 - 43), known)
    message, known = _vector("above-the-room")
    by = 5001 - 40
    with pytest.raises(ValueError, match="above the size"):
        read(_moved(_moved(message, WANTED, by), COUNTS + 12, by, "<i"), known)


def test_of_two_widths_that_take_as_many_bits_the_rule_gives_one():
    message, known = _vector("tie")
    # Places 1 and 4 less their indices are 1 and 3: above 0 and 1, which are bits 0 and 2; below 1 and 1.
    assert message[-16:] == bytes([0b101, *bytes(7), 0b11, *bytes(7)])
    assert read(message, known)["positions"] == [1, 4]


@pytest.mark.parametrize("at", range(8))
def test_another_magic_or_version_is_refused(at):
    message, known = _vector("exact-full")
    with pytest.raises(ValueError, match="magic and version"):
        read(_flipped(message, 8 * at), known)


@pytest.mark.parametrize("bit", [8, 10, 16, 17, 24, 26])
def test_another_dtype_or_form_is_refused(bit):
    message, known = _vector("int4-full")
    with pytest.raises(ValueError, match="dtype and form"):
        read(_flipped(message, 8 * FLAGS + bit), known)


def test_another_run_step_or_rate_is_refused():
    message, known = _vector("exact-full")
    own = {"fingerprint": -7, "step": 12, "rates": 99}
    assert read(message, known | own)["values"] == read(message, known)["values"]
    for name, value in own.items():
        with pytest.raises(ValueError, match=name):
            read(message, known | own | {name: value + 1})


@pytest.mark.parametrize("vector", VECTORS, ids=_name)
def test_a_message_of_another_size_is_refused(vector):
    message, known = bytes.fromhex(vector["message"]), vector["known_before"]
    for other in (
        b"",
        message[:79],
        message[:80],
        message[:-8],
        message[:-1],
        message + bytes(1),
        message + bytes(8),
    ):
        with pytest.raises(ValueError, match="bytes"):
            read(other, known)


def test_what_is_not_finite_is_read_no_further_than_its_counts():
    message, known = _vector("exact-full")
    poisoned = _flipped(message, 8 * FLAGS)
    damaged = resealed(poisoned[:-32] + bytes(32))
    assert read(damaged, known)["not_finite"]
    assert "values" not in read(damaged, known)
    # Its count need not fill the rooms, for what is not a number is not chosen.
    assert read(_moved(damaged, COUNT, -3), known)["count"] == 40
    with pytest.raises(ValueError, match="entries of a segment"):
        read(_flipped(damaged, 8 * FLAGS), known)
    counted, known = _vector("exact-counted")
    with pytest.raises(ValueError, match="count"):
        read(_moved(_flipped(counted, 8 * FLAGS), COUNT, -3), known)


def test_unused_room_and_padding_are_not_looked_at():
    message, known = _vector("bfloat16-counted")
    lower = len(message) - 16
    # 105 bits of lower parts and 23 of padding; a count a segment leaves the first two of four places in use.
    for bit in (8 * lower + 2 * 6, 8 * lower + 105, 8 * len(message) - 1):
        assert read(_flipped(message, bit), known)["positions"] == read(message, known)["positions"]
