"""Read the messages of sharded_mean with nothing but Python, as docs/wire-format.md says."""

from __future__ import annotations

import struct
import zlib
from itertools import accumulate, pairwise
from math import isqrt

from golden import plain_decoder as plain
from golden.plain_decoder import Facts, refuse_unless_equal

MARK = 0xA5
Parts = list[tuple[str, int]]


def read_given(part: bytes, known_before: Facts, r: int) -> Facts:
    """Return what a rank gives to the one that adds up range r."""
    known = with_what_follows(known_before)
    here = range_of(known, r)
    raw = cut_up(part, given_parts(known, here), size_of(given_parts(known, here)))
    mark, step, digest, had = struct.unpack("<BBHi", raw["word"])
    refuse_unless_equal("mark", mark, MARK)
    refuse_unless_equal("step", step, known["step"] & 0xFF)
    refuse_unless_equal("digest and seal", digest, digest_of(known) ^ seal_of(part, known, r))
    plain.refuse_unless_within("entries chosen", had, 0, min(known["capacity"], here["entries"]))
    counts = read_counts(raw["counts"], known)
    return {"had": had, "wanted": counts, **read_body(raw, here["part"], known, min(had, here["part"]["room"]))}


def read_told(message: bytes, known_before: Facts, r: int) -> Facts:
    """Return what the rank that has added up range r tells all."""
    known = with_what_follows(known_before)
    here = range_of(known, r)
    raw = cut_up(message, told_parts(known, here), told_bytes(known_before))
    says = plain.read_header(raw["header"], known)
    refuse_unless_equal("seal", plain.seal_in(message), plain.seal_of(message))
    says["demand"], says["survived"] = struct.unpack(f"<2{known['count_letter']}", raw["demand and survived"])
    plain.refuse_unless_within("sums", says["count"], 0, here["result"]["room"])
    plain.refuse_unless_within("wanted", says["wanted"], 0, sum(s["size"] for s in known["segments"]))
    ranks = len(known["shares"])
    plain.refuse_unless_within("demand", says["demand"], 0, ranks * min(known["capacity"], here["entries"]))
    most = min(says["demand"], ranks * here["part"]["room"], ranks * says["count"])
    plain.refuse_unless_within("entries in the sums", says["survived"], says["count"], most)
    says["qualified"] = read_counts(raw["counts"], known)
    if known["spectrum"]:
        says["spectrum"] = plain.read_spectrum(raw["spectrum"])
    says["notes"] = list(raw["notes"])
    return says | read_body(raw, here["result"], known, says["count"])


def seal_of(part: bytes, known: Facts, r: int) -> int:
    """Return the seal of a part, whose first word has the digest alone where that and the seal lie."""
    whole = part[:2] + digest_of(known).to_bytes(2, "little") + part[4:]
    return plain.upper_bits(plain.sum_of(whole, first=sum(given_bytes(known)[:r]) // 8), 16)


def resealed(part: bytes, known_before: Facts, r: int) -> bytes:
    """Return a part with a seal that fits."""
    known = with_what_follows(known_before)
    return part[:2] + (digest_of(known) ^ seal_of(part, known, r)).to_bytes(2, "little") + part[4:]


def given_bytes(known_before: Facts) -> list[int]:
    """Return the size of what a rank gives to each."""
    known = with_what_follows(known_before)
    return [size_of(given_parts(known, range_of(known, r))) for r in range(len(known["shares"]))]


def told_bytes(known_before: Facts) -> int:
    """Return the size of what every rank tells: that of the longest."""
    known = with_what_follows(known_before)
    return max(size_of(told_parts(known, range_of(known, r))) for r in range(len(known["shares"])))


def with_what_follows(known: Facts) -> Facts:
    all_ranks = len(known["shares"]) * max(1, sum(s["size"] for s in known["segments"]))
    return plain.with_what_follows(known) | {
        "capacity": sum(s["room"] for s in known["segments"]),
        "count_letter": "i" if all_ranks < 2**31 else "q",
    }


def range_of(known: Facts, r: int) -> Facts:
    """Return what both sides know of a range: its pieces, known entries and rooms, in both rounds."""
    (begin, end), last = known["bounds"][r : r + 2], r == len(known["shares"]) - 1
    overlaps = [range(max(begin, s["offset"]), min(end, s["offset"] + s["size"])) for s in known["segments"]]
    pieces = [piece for piece in overlaps if len(piece)]
    parameters = pairwise(accumulate(known["known_sizes"], initial=0))
    sizes = [sum(begin <= p < end for p in known["known"][first:stop]) for first, stop in parameters]
    span = {"offset": begin, "size": end - begin, "pieces": pieces, "known_sizes": [n for n in sizes if n]}
    few, room = rooms_of(known, r)
    entries = sum(map(len, pieces))
    told = sum(begin <= s["offset"] and (last or s["offset"] < end) for s in known["segments"])
    return {
        "entries": entries,
        "count_bits": told * 8 * struct.calcsize(known["count_letter"]) if known["counted"] else 0,
        "part": with_room(span, min(entries, room)),
        "result": with_room(span, min(entries, few)),
    }


def rooms_of(known: Facts, r: int) -> tuple[int, int]:
    """Return the room for sums, and the one for what a rank gives."""
    share, total = known["shares"][r] * known["capacity"], max(1, sum(known["shares"]))
    few = max(1, -(-share // total))
    most = (share << 16) // total + isqrt((share << 32) // total)
    return min(known["capacity"], few), min(known["capacity"], max(few, -(-most >> 16)))


def with_room(span: Facts, room: int) -> Facts:
    width = plain.width_of(span["size"], room)
    upper = room + (span["size"] - room >> width) if room else 0
    return span | {"room": room, "width": width, "upper_bits": upper, "lower_bits": room * width}


def given_parts(known: Facts, here: Facts) -> Parts:
    return [("word", 64), ("counts", here["count_bits"]), *body_of(here["part"], known)]


def told_parts(known: Facts, here: Facts) -> Parts:
    both, spectrum = 16 * struct.calcsize(known["count_letter"]), 576 if known["spectrum"] else 0
    first = [("header", 640), ("demand and survived", both), ("spectrum", spectrum), ("notes", 8 * known["notes"])]
    return [*first, ("counts", here["count_bits"]), *body_of(here["result"], known)]


def body_of(span: Facts, known: Facts) -> Parts:
    row, bits = known["numbers"] * 8 * struct.calcsize(known["letter"]), known["value_bits"]
    numbers = [("known numbers", len(span["known_sizes"]) * row), ("chosen numbers", len(span["pieces"]) * row)]
    values = [("known values", sum(span["known_sizes"]) * bits), ("chosen values", span["room"] * bits)]
    return [*numbers, *values, ("upper part", span["upper_bits"]), ("lower part", span["lower_bits"])]


def size_of(parts: Parts) -> int:
    return sum((bits + 63) // 64 * 8 for _, bits in parts)


def cut_up(message: bytes, inside: Parts, size: int) -> dict[str, bytes]:
    refuse_unless_equal("bytes", len(message), size)
    starts = [size_of(inside[:i]) for i in range(len(inside))]
    return {name: message[at : at + (bits + 7) // 8] for at, (name, bits) in zip(starts, inside, strict=True)}


def read_counts(raw: bytes, known: Facts) -> list[int]:
    counts = [count for (count,) in struct.iter_unpack("<" + known["count_letter"], raw)]
    refuse_unless_equal("counts below zero", [n for n in counts if n < 0], [])
    return counts


def read_body(raw: dict[str, bytes], span: Facts, known: Facts, count: int) -> Facts:
    positions = plain.read_positions(raw["upper part"], raw["lower part"], [span], [count])
    owned = [sum(p in piece for p in positions) for piece in span["pieces"]]
    refuse_unless_equal("entries in pieces of parameters", sum(owned), count)
    values = {}
    for name, sizes in (("known", span["known_sizes"]), ("chosen", owned)):
        flat = iter(struct.unpack(f"<{len(sizes) * known['numbers']}{known['letter']}", raw[f"{name} numbers"]))
        rows = [tuple(next(flat) for _ in range(known["numbers"])) for _ in sizes]
        values[name] = plain.read_values(raw[f"{name} values"], known, sizes, rows)
    return {"known": values["known"], "positions": positions, "values": values["chosen"]}


def digest_of(known: Facts) -> int:
    form = plain.KINDS.index(known["kind"]) | known["bits"] << 8
    agreed = f"{known['fingerprint']} {known['rates']} {struct.calcsize(known['letter'])} {form}"
    return zlib.crc32(agreed.encode()) & 0xFFFF
