"""The kept messages of sharded_mean, read by plain Python that knows no more than docs/wire-format.md."""

from __future__ import annotations

import json
import struct
from itertools import accumulate, pairwise

import pytest
import torch

from golden import plain_decoder as plain
from golden.plain_dealing import given_bytes, read_given, read_told, resealed, told_bytes
from golden.wire_cases import FILE
from laconic.codecs import by_name
from laconic.segments import Segments
from laconic.shards import first_cut, shards_of
from laconic.types import Plan
from laconic.wire import Deal, Frame

DEALT = {v["name"]: v for v in json.loads(FILE.read_text()) if "shares" in v["known_before"]}
WORDS = ["int4", "exact"]
COUNT, WANTED, DEMAND, SURVIVED = 24, 32, 80, 84


def _parts(word):
    """Return the part for each range, what both sides know, and what the parts say."""
    vector = DEALT[f"given-{word}"]
    message, known = bytes.fromhex(vector["message"]), vector["known_before"]
    edges = list(accumulate(given_bytes(known), initial=0))
    assert edges[-1] == len(message)
    return [message[begin:end] for begin, end in pairwise(edges)], known, vector["says"]["parts"]


def _told(word):
    vector = DEALT[f"told-{word}"]
    return bytes.fromhex(vector["message"]), vector["known_before"]


def _put(message, at, number, letter="<i"):
    return message[:at] + struct.pack(letter, number) + message[at + struct.calcsize(letter) :]


def _same(heard, says):
    # Values through their bytes: a zero has a sign.
    floats = [
        struct.pack(f"<{len(side[name])}f", *side[name]) for side in (heard, says) for name in ("known", "values")
    ]
    return floats[:2] == floats[2:] and {name: heard[name] for name in says} == says


@pytest.mark.parametrize("word", WORDS)
def test_what_a_rank_gives_says_what_is_kept_with_it(word):
    parts, known, says = _parts(word)
    assert all(_same(read_given(part, known, r), says[r]) for r, part in enumerate(parts))
    # Eleven were chosen of the middle range, which has room for nine.
    assert (says[1]["had"], len(says[1]["positions"])) == (11, 9)


@pytest.mark.parametrize("word", WORDS)
def test_what_a_rank_tells_says_what_is_kept_with_it(word):
    message, known = _told(word)
    assert _same(read_told(message, known, known["range"]), DEALT[f"told-{word}"]["says"])


@pytest.mark.parametrize("word", ["exact", "bfloat16", "int4", "sign", "binned"])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 5, 9])
def test_sizes_are_those_of_the_library(word, counted, ranks):
    segments = Segments.of(list("abcde"), [700, 90, 0, 33, 4000])
    known = [*range(700, 790), *range(800, 823, 2)]
    plan = Plan(
        known=torch.tensor(known),
        known_sizes=(90, 12),
        choosing=segments.among(("a", "c", "e")),
        rooms=(5, 0, 61),
        counted=counted,
    )
    form = by_name(word).form
    frame = Frame(plan=plan, form=form, dtype=torch.float32, notes=5, spectrum=counted)
    cut = first_cut(plan, ranks=ranks, numel=segments.numel, value_bits=frame.value_bits)
    deal = Deal(frame=frame, shards=shards_of(plan, cut), rank=0)
    before = {
        "segments": [
            {"offset": 0, "size": 700, "room": 5},
            {"offset": 790, "size": 0, "room": 0},
            {"offset": 823, "size": 4000, "room": 61},
        ],
        "known": known,
        "known_sizes": [90, 12],
        "bounds": list(cut.bounds),
        "shares": list(cut.shares),
        "dtype": "float32",
        "counted": counted,
        "kind": form.kind,
        "bits": form.bits,
        "notes": 5,
        "spectrum": counted,
    }
    assert given_bytes(before) == list(deal.given_bytes)
    assert told_bytes(before) == deal.message_bytes


@pytest.mark.parametrize("word", WORDS)
def test_every_range_has_messages_of_the_size_of_the_longest(word):
    message, known = _told(word)
    assert len(message) == told_bytes(known)
    for other in (b"", message[:80], message[:-8], message + bytes(8)):
        with pytest.raises(ValueError, match="bytes"):
            read_told(other, known, 1)
    part, known, _ = _parts(word)
    with pytest.raises(ValueError, match="bytes"):
        read_given(part[1][:-8], known, 1)


@pytest.mark.parametrize(("at", "what"), [(0, "mark"), (1, "step"), (2, "digest"), (3, "digest")])
def test_another_version_step_or_run_is_refused(at, what):
    (part, *_), known, _ = _parts("int4")
    with pytest.raises(ValueError, match=what):
        read_given(_put(part, at, part[at] ^ 1, "<B"), known, 0)


@pytest.mark.parametrize("name", ["fingerprint", "rates"])
def test_a_digest_of_other_things_is_refused(name):
    (part, *_), known, _ = _parts("int4")
    with pytest.raises(ValueError, match="digest"):
        read_given(part, known | {name: known[name] + 1}, 0)


@pytest.mark.parametrize("word", WORDS)
def test_any_other_bytes_than_those_that_were_given_or_told_are_refused(word):
    parts, known, _ = _parts(word)
    for r, part in enumerate(parts):
        for at in range(2, len(part)):
            with pytest.raises(ValueError, match="seal"):
                read_given(_put(part, at, part[at] ^ 1 << at % 8, "<B"), known, r)
    message, known = _told(word)
    for at in range(8, len(message)):
        with pytest.raises(ValueError, match=r"seal|dtype|fingerprint|step|rates"):
            read_told(_put(message, at, message[at] ^ 1 << at % 8, "<B"), known, known["range"])


@pytest.mark.parametrize(("had", "what"), [(-1, "chosen"), (23, "chosen"), (7, "segment"), (9, "segment")])
def test_a_number_of_entries_that_cannot_be_is_refused(had, what):
    (part, *_), known, _ = _parts("int4")
    with pytest.raises(ValueError, match=what):
        read_given(resealed(_put(part, 4, had), known, 0), known, 0)


def test_counts_below_zero_are_refused():
    (part, *_), known, _ = _parts("int4")
    with pytest.raises(ValueError, match="below zero"):
        read_given(resealed(_put(part, 8, -1), known, 0), known, 0)
    message, known = _told("int4")
    with pytest.raises(ValueError, match="below zero"):
        read_told(plain.resealed(_put(message, 80 + 8 + 72 + 8, -1)), known, 1)


@pytest.mark.parametrize(
    ("at", "number", "letter"),
    [
        (COUNT, -1, "<q"),
        (COUNT, 7, "<q"),
        (WANTED, -1, "<q"),
        (DEMAND, 12, "<i"),
        (SURVIVED, 5, "<i"),
        (SURVIVED, 28, "<i"),
    ],
)
def test_numbers_of_a_told_message_that_cannot_be_are_refused(at, number, letter):
    message, known = _told("exact")
    with pytest.raises(ValueError, match=r"sums|wanted"):
        read_told(plain.resealed(_put(message, at, number, letter)), known, 1)


def test_a_position_that_nothing_is_chosen_from_is_refused():
    (_, middle, _), known, _ = _parts("exact")
    # The first lower bits of the middle range are those of entry 640, 20 behind its beginning; 625 is sent whole.
    lower = len(middle) - 8
    assert read_given(middle, known, 1)["positions"][0] == 640
    with pytest.raises(ValueError, match="pieces"):
        read_given(resealed(_put(middle, lower, middle[lower] & ~0x1F | 5, "<B"), known, 1), known, 1)
