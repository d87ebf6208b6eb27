"""Read a message of wire format 5 with nothing but Python, as docs/wire-format.md says."""

from __future__ import annotations

import struct
from typing import Any

Facts = dict[str, Any]

MAGIC = b"laconic\x05"
GOLDEN = 0x9E3779B97F4A7C15
WORDS = ("fingerprint", "step", "count", "wanted", "flags", "rates", "loss")
KINDS = ("float", "bfloat16", "line", "table")


def read(message: bytes, known_before: Facts) -> Facts:
    """Return what a message says to one who knows this beforehand; raise ValueError for what a reader refuses."""
    known = with_what_follows(known_before)
    parts = parts_of(message, known)
    says = read_header(parts["header"], known)
    refuse_unless_equal("seal", seal_in(message), seal_of(message))
    entries = read_counts(parts["counts"], known, says)
    if says["not_finite"]:
        return says
    if known["spectrum"]:
        says["spectrum"] = read_spectrum(parts["spectrum"])
    says["notes"] = list(parts["notes"])
    letter, each, first = known["letter"], known["numbers"], len(known["known_sizes"])
    flat = struct.unpack(f"<{known['spans'] * each}{letter}", parts["numbers"])
    numbers = [flat[i * each : (i + 1) * each] for i in range(known["spans"])]
    says["known"] = read_values(parts["known values"], known, known["known_sizes"], numbers[:first])
    says["values"] = read_values(parts["chosen values"], known, entries, numbers[first:])
    says["positions"] = read_positions(parts["upper parts"], parts["lower parts"], known["segments"], entries)
    return says


def sum_of(raw: bytes, first: int = 0) -> int:
    """Return S of bytes whose first word counts as that one."""
    words = [word for (word,) in struct.iter_unpack("<Q", raw)]
    return (GOLDEN + sum((2 * (first + i) + 1) * word for i, word in enumerate(words))) % 2**64


def upper_bits(total: int, bits: int) -> int:
    return total * GOLDEN % 2**64 >> 64 - bits


def seal_in(message: bytes) -> int:
    return int.from_bytes(message[44:48], "little")


def seal_of(message: bytes) -> int:
    return upper_bits(sum_of(message[:44] + bytes(4) + message[48:]), 32)


def resealed(message: bytes) -> bytes:
    return message[:44] + seal_of(message).to_bytes(4, "little") + message[48:]


def with_what_follows(known: Facts) -> Facts:
    letter = {"float32": "f", "float64": "d"}[known["dtype"]]
    segments = []
    for segment in known["segments"]:
        size, room, width = segment["size"], segment["room"], width_of(segment["size"], segment["room"])
        upper = room + (size - room >> width) if room else 0
        segments.append(segment | {"width": width, "upper_bits": upper, "lower_bits": room * width})
    return known | {
        "segments": segments,
        "spans": len(known["known_sizes"]) + len(segments),
        "letter": letter,
        "value_bits": known["bits"] or 8 * struct.calcsize(letter),
        "numbers": {"line": 2, "table": 2 ** known["bits"]}.get(known["kind"], 0),
        "count_letter": "q" if any(s["size"] >= 2**31 for s in segments) else "i",
    }


def width_of(size: int, room: int) -> int:
    return max(0, ((size - room) // room).bit_length() - 1) if room else 0


def parts_of(message: bytes, known: Facts) -> dict[str, bytes]:
    segments, bits = known["segments"], known["value_bits"]
    bits_of_parts = {
        "header": 640,
        "counts": len(segments) * 8 * struct.calcsize(known["count_letter"]) if known["counted"] else 0,
        "spectrum": 576 if known["spectrum"] else 0,
        "notes": 8 * known["notes"],
        "numbers": known["spans"] * known["numbers"] * 8 * struct.calcsize(known["letter"]),
        "known values": sum(known["known_sizes"]) * bits,
        "chosen values": sum(s["room"] for s in segments) * bits,
        "upper parts": sum(s["upper_bits"] for s in segments),
        "lower parts": sum(s["lower_bits"] for s in segments),
    }
    parts, at = {}, 0
    for name, size in bits_of_parts.items():
        parts[name] = message[at : at + (size + 7) // 8]
        at += (size + 63) // 64 * 8
    refuse_unless_equal("bytes", len(message), at)
    return parts


def read_header(header: bytes, known: Facts) -> Facts:
    magic, *words, waited, rest, fell, had = struct.unpack("<8s6qd4f", header)
    refuse_unless_equal("magic and version", magic, MAGIC)
    says: Facts = dict(zip(WORDS, words, strict=True))
    flags = says.pop("flags")
    for name in {"fingerprint", "step", "rates"} & known.keys():
        refuse_unless_equal(name, says[name], known[name])
    form = [struct.calcsize(known["letter"]), KINDS.index(known["kind"]), known["bits"]]
    refuse_unless_equal("dtype and form", [flags >> shift & 0xFF for shift in (8, 16, 24)], form)
    told = {"not_finite": bool(flags & 1), "alarmed": bool(flags & 2)}
    return says | told | {"pace": [waited, rest], "change": [fell, had]}


def read_counts(raw: bytes, known: Facts, says: Facts) -> list[int]:
    """Return how many entries of each segment are in the message."""
    entries, count, wanted = [s["room"] for s in known["segments"]], says["count"], says["wanted"]
    sizes = [s["size"] for s in known["segments"]]
    refuse_unless_within("entries", count, 0, min(wanted, sum(entries)))
    refuse_unless_within("wanted", wanted, count, sum(sizes))
    if known["counted"]:
        counts = struct.unpack(f"<{len(entries)}{known['count_letter']}", raw)
        outside = [n for n, size in zip(counts, sizes, strict=True) if not 0 <= n <= size]
        refuse_unless_equal("counts below zero or above the size", outside, [])
        entries = [min(pair) for pair in zip(counts, entries, strict=True)]
        refuse_unless_equal("wanted", wanted, sum(counts))
    if known["counted"] or not says["not_finite"]:
        refuse_unless_equal("count", count, sum(entries))
    return entries


def read_spectrum(raw: bytes) -> Facts:
    top, *codes = struct.unpack("<q64B", raw)
    return {"top": min(max(top, 0), 1019), "entries": [round(2 ** (code / 8) - 1) for code in codes]}


def read_values(raw: bytes, known: Facts, spans: list[int], numbers: list[tuple[float, ...]]) -> list[float]:
    # Bit i of the part is bit i of this whole number.
    run, bits = int.from_bytes(raw, "little"), known["value_bits"]
    owners = [some for span, some in zip(spans, numbers, strict=True) for _ in range(span)]
    return [value_of(run >> i * bits & (1 << bits) - 1, known, some) for i, some in enumerate(owners)]


def value_of(code: int, known: Facts, numbers: tuple[float, ...]) -> float:
    if known["kind"] == "float":
        return float(struct.unpack("<" + known["letter"], code.to_bytes(known["value_bits"] // 8, "little"))[0])
    if known["kind"] == "bfloat16":
        return float(struct.unpack("<f", struct.pack("<I", code << 16))[0])
    if known["kind"] == "table":
        return numbers[code]
    (low, step), sign = numbers, 1 << known["bits"] - 1
    magnitude = rounded(low + rounded(step * (code & sign - 1), known["letter"]), known["letter"])
    return -magnitude if code & sign else magnitude


def rounded(value: float, letter: str) -> float:
    try:
        return float(struct.unpack("<" + letter, struct.pack("<" + letter, value))[0])
    except OverflowError:  # Python refuses what the dtype calls infinite.
        return value * float("inf")


def read_positions(upper_raw: bytes, lower_raw: bytes, segments: list[Facts], entries: list[int]) -> list[int]:
    upper, lower, positions = int.from_bytes(upper_raw, "little"), int.from_bytes(lower_raw, "little"), []
    for segment, k in zip(segments, entries, strict=True):
        w, ones = segment["width"], [u for u in range(segment["upper_bits"]) if upper >> u & 1]
        refuse_unless_equal("entries of a segment", len(ones), k)
        y = [(u - i << w) + (lower >> i * w & (1 << w) - 1) for i, u in enumerate(ones)]
        if y != sorted(y) or (y and y[-1] > segment["size"] - k):
            raise ValueError(f"positions do not ascend within a segment of {segment['size']} entries: {y}")
        positions += [segment["offset"] + y_i + i for i, y_i in enumerate(y)]
        upper, lower = upper >> segment["upper_bits"], lower >> segment["lower_bits"]
    return positions


def refuse_unless_equal(name: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise ValueError(f"{name}: the message has {got!r}, this reader knows {wanted!r}")


def refuse_unless_within(name: str, got: int, least: int, most: int) -> None:
    if not least <= got <= most:
        raise ValueError(f"{name}: the message has {got}, which is not within {least} and {most}")
