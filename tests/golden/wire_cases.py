"""Messages whose bytes are kept in wire_v5.json: run this file to write them anew when the version changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from laconic.codecs import by_name
from laconic.coding import Codec
from laconic.pace import Pace
from laconic.segments import Segment, Segments
from laconic.shards import Cut, shards_of
from laconic.spectrum import Spectrum, measure
from laconic.types import Payload, Plan
from laconic.wire import Deal, Entries, Frame, Header, Numbers, pack, write_parts

FILE = Path(__file__).with_name("wire_v5.json")
_SIZES, _ROOMS = (300, 0, 70, 5000), (4, 0, 30, 9)
_FULL = {0: [0, 7, 150, 299], 2: [*range(0, 58, 2), 69], 3: [3, 4, 5, 700, 701, 2500, 4000, 4998, 4999]}
_SOME = {0: [150, 299], 3: [3, 700, 2500, 4000, 4998]}
_CODECS = ("exact", "bfloat16", "int8", "int4", "stochastic2", "sign", "binned")
_KNOWN = [0.5, -2.0, 1.25, 3.0, -0.75]

# Three parameters that ranks choose from, and two that are sent whole; the bounds cut one of either.
_DEALT = (("first", 0, 600, 8), ("second", 640, 60, 4), ("third", 712, 800, 10))
_WHOLE = [*range(600, 640), *range(700, 712)]
_CUT = Cut(bounds=(0, 620, 1000, 1512), shares=(8, 6, 8))
# Of the eleven in the middle range nine have room.
_GIVEN = [0, 7, 8, 150, 333, 334, 598, 599, 640, 641, 670, 699, 712, 760, 800, 998, 999, 1000, 1299, 1511]
_HAD = [8, 11, 3]
_SUMS = [640, 642, 699, 712, 801, 999]


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A message to be made: ``chosen`` places by segment, and of each segment so many that qualified."""

    name: str
    word: str = "exact"
    dtype: torch.dtype = torch.float32
    counted: bool = True
    sizes: Sequence[int] = _SIZES
    rooms: tuple[int, ...] = _ROOMS
    chosen: Mapping[int, list[int]] = field(default_factory=lambda: _SOME)
    known: tuple[int, ...] = (3, 2)
    notes: Sequence[int] = (1, 0, 2)
    more: int = 0
    divided: float = 1.0
    spectrum: bool = False
    finite: bool = True


def cases() -> list[dict[str, object]]:
    """Return every case: what both sides know, the message as hexadecimal, and what it says."""
    made = [
        *(_Made(name=f"{word}-full", word=word, counted=False, chosen=_FULL) for word in _CODECS),
        *(_Made(name=f"{word}-counted", word=word) for word in _CODECS),
        _Made(name="int4-float64", word="int4", dtype=torch.float64),
        _Made(name="exact-float64", dtype=torch.float64, divided=3.0),
        _Made(name="empty", chosen={}, known=(), notes=()),
        _Made(name="tie", sizes=(6,), rooms=(2,), chosen={0: [1, 4]}, counted=False, known=(), notes=()),
        _Made(name="spectrum", spectrum=True),
        _Made(name="not-finite", counted=False, finite=False),
        _Made(name="above-the-room", word="sign", chosen=_FULL, more=31),
    ]
    dealt = [_dealt(word, counted=counted) for word, counted in (("int4", True), ("exact", False))]
    return [*map(_case, made), *(case for pair in dealt for case in pair)]


def _case(made: _Made) -> dict[str, object]:
    codec, dtype = by_name(made.word), made.dtype
    segments = Segments.of([f"layer {i}" for i in range(len(made.sizes))], made.sizes)
    at = [segments.items[s].offset + p for s, places in made.chosen.items() for p in places]
    wanted = torch.tensor([len(made.chosen.get(s, ())) for s in range(len(segments))])
    wanted[-1] += made.more
    payload = Payload(
        known=torch.tensor(_KNOWN[: sum(made.known)], dtype=dtype),
        positions=torch.tensor(at, dtype=torch.int64),
        values=_values(len(at), dtype) / made.divided,
        wanted=wanted,
    )
    plan = Plan(
        known=torch.arange(sum(made.known)),
        known_sizes=made.known,
        choosing=segments,
        rooms=made.rooms,
        counted=made.counted,
    )
    notes, spectrum = torch.tensor(made.notes, dtype=torch.uint8), _spectrum() if made.spectrum else None
    frame = Frame(plan=plan, form=codec.form, dtype=dtype, notes=len(notes), spectrum=made.spectrum)
    header = _header(codec, dtype, made, count=len(at), wanted=int(wanted.sum()))
    packed = pack(frame, payload, header, codec, notes=notes, spectrum=spectrum, seed=3)
    says: dict[str, object] = {"count": len(at), "wanted": int(wanted.sum()), "not_finite": not made.finite}
    says |= {"step": 12, "fingerprint": -7, "loss": 2.5, "alarmed": made.counted}
    if made.finite:
        says |= {"notes": notes.tolist(), **_entries(packed.sent.known, payload.positions, packed.sent.values)}
    if spectrum is not None:
        says["spectrum"] = _shown(spectrum)
    return {
        "name": made.name,
        "known_before": _known_before(frame, codec),
        "message": _hex(packed.message),
        "says": says,
    }


def _dealt(word: str, *, counted: bool) -> list[dict[str, object]]:
    """Return what rank 1 of three gives to all, and what it tells all of its range."""
    codec, dtype, wanted = by_name(word), torch.float32, torch.tensor([9, 4, 25] if counted else [8, 4, 10])
    plan = Plan(
        known=torch.tensor(_WHOLE),
        known_sizes=(40, 12),
        choosing=Segments(tuple(Segment(name=name, offset=at, size=size) for name, at, size, _ in _DEALT)),
        rooms=tuple(room for *_, room in _DEALT),
        counted=counted,
    )
    frame = Frame(plan=plan, form=codec.form, dtype=dtype, notes=3, spectrum=counted)
    deal = Deal(frame=frame, shards=shards_of(plan, _CUT), rank=1)
    made = _Made(name=word, counted=counted)
    header = _header(codec, dtype, made, count=len(_GIVEN), wanted=int(wanted.sum()), step=780)
    known_before = _known_before(frame, codec) | {
        "known": _WHOLE,
        "bounds": list(_CUT.bounds),
        "shares": list(_CUT.shares),
        "fingerprint": -7,
        "step": 780,
        "rates": 99,
    }

    bodies = write_parts(deal.given, _at(len(_WHOLE), _GIVEN, dtype), codec, seed=3)
    given = deal.give(bodies, torch.tensor(_HAD), wanted, header)
    parts = []
    for shard, had in zip(deal.shards, _HAD, strict=True):
        here = (bodies.sent.positions >= shard.part.span.start) & (bodies.sent.positions < shard.part.span.stop)
        part = _entries(bodies.sent.known[shard.known], bodies.sent.positions[here], bodies.sent.values[here])
        parts.append({"had": had, "wanted": wanted[shard.told].tolist() if counted else [], **part})

    shard = deal.shards[1]
    told = write_parts(deal.own, _at(shard.part.known, _SUMS, dtype), codec, seed=4)
    numbers = Numbers(demand=30, survived=13, wanted=[12, 60] if counted else [])
    notes, spectrum = torch.tensor([1, 0, 2], dtype=torch.uint8), _spectrum() if counted else None
    header = replace(header, count=len(_SUMS))
    message = deal.tell(header, told, numbers, spectrum, notes)
    says = {"count": len(_SUMS), "wanted": int(wanted.sum()), "not_finite": False, "alarmed": counted, "loss": 2.5}
    says |= {"demand": 30, "survived": 13, "qualified": numbers.wanted, "notes": notes.tolist()}
    says |= _entries(told.sent.known, told.sent.positions, told.sent.values)
    if spectrum is not None:
        says["spectrum"] = _shown(spectrum)
    return [
        {"name": f"given-{word}", "known_before": known_before, "message": _hex(given), "says": {"parts": parts}},
        {
            "name": f"told-{word}",
            "known_before": known_before | {"range": 1},
            "message": _hex(message),
            "says": says,
        },
    ]


def _header(codec: Codec, dtype: torch.dtype, made: _Made, *, count: int, wanted: int, step: int = 12) -> Header:
    return Header(
        fingerprint=-7,
        step=step,
        count=count,
        wanted=wanted,
        finite=made.finite,
        rates=99,
        value_bytes=dtype.itemsize,
        form=codec.form,
        loss=2.5,
        alarmed=made.counted,
        pace=Pace(waited=0.25, rest=0.5),
    )


def _known_before(frame: Frame, codec: Codec) -> dict[str, object]:
    plan = frame.plan
    return {
        "segments": [
            {"offset": s.offset, "size": s.size, "room": r} for s, r in zip(plan.choosing, plan.rooms, strict=True)
        ],
        "known_sizes": list(plan.known_sizes),
        "counted": plan.counted,
        "kind": codec.form.kind,
        "bits": codec.form.bits,
        "dtype": str(frame.dtype).removeprefix("torch."),
        "notes": frame.notes,
        "spectrum": frame.spectrum,
    }


def _values(count: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor([(-1.0) ** i * (1 + i % 7 / 4) for i in range(count)], dtype=dtype)


def _at(known: int, positions: list[int], dtype: torch.dtype) -> Entries:
    values = _values(known + len(positions), dtype)
    return Entries(known=values[:known], positions=torch.tensor(positions), values=values[known:])


def _entries(known: Tensor, positions: Tensor, values: Tensor) -> dict[str, object]:
    return {"known": known.tolist(), "positions": positions.tolist(), "values": values.tolist()}


def _spectrum() -> Tensor:
    return measure(torch.linspace(-3, 5, 1000), Segments.of(["w"], [1000]), turn=0)


def _shown(spectrum: Tensor) -> dict[str, object]:
    read = Spectrum.read(spectrum)
    return {"top": read.top, "entries": [int(count) for count in read.counts]}


def _hex(message: Tensor) -> str:
    return bytes(message.tolist()).hex()


if __name__ == "__main__":
    FILE.write_text(json.dumps(cases(), indent=1) + "\n")
