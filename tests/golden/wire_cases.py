"""Messages whose bytes are kept in wire_v4.json: run this file to write them anew when the version changes."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from laconic.codecs import by_name
from laconic.coding import Codec
from laconic.pace import Pace
from laconic.segments import Segments
from laconic.types import Payload, Plan
from laconic.wire import Frame, Header, pack

FILE = Path(__file__).with_name("wire_v4.json")
_SIZES, _ROOMS = (300, 0, 70, 5000), (4, 0, 30, 9)
_FULL = {0: [0, 7, 150, 299], 2: [*range(0, 58, 2), 69], 3: [3, 4, 5, 700, 701, 2500, 4000, 4998, 4999]}
_SOME = {0: [150, 299], 3: [3, 700, 2500, 4000, 4998]}
_CODECS = ("exact", "bfloat16", "int8", "int4", "stochastic2", "sign", "binned")


def cases() -> list[dict[str, object]]:
    """Return every case: what both sides know, the message as hexadecimal, and what it says."""
    made = [_case(word, torch.float32, counted=counted) for word in _CODECS for counted in (False, True)]
    return [
        *made,
        _case("int4", torch.float64, counted=True),
        _case("exact", torch.float32, counted=True, empty=True),
    ]


def _case(word: str, dtype: torch.dtype, *, counted: bool, empty: bool = False) -> dict[str, object]:
    codec: Codec = by_name(word)
    segments = Segments.of([f"layer {i}" for i in range(len(_SIZES))], list(_SIZES))
    chosen = {} if empty else _SOME if counted else _FULL
    at = [segments.items[s].offset + p for s, places in chosen.items() for p in places]
    # More qualified in the last segment than fits, where counts are told.
    wanted = torch.tensor([len(chosen.get(s, ())) for s in range(len(_SIZES))])
    known = () if empty else (3, 2)
    values = torch.tensor([(-1.0) ** i * (1 + i % 7 / 4) for i in range(len(at))], dtype=dtype)
    payload = Payload(
        known=torch.tensor([0.5, -2.0, 1.25, 3.0, -0.75][: sum(known)], dtype=dtype),
        positions=torch.tensor(at, dtype=torch.int64),
        values=values,
        wanted=wanted,
    )
    plan = Plan(known=torch.arange(sum(known)), known_sizes=known, choosing=segments, rooms=_ROOMS, counted=counted)
    notes = torch.tensor([] if empty else [1, 0, 2], dtype=torch.uint8)
    frame = Frame(plan=plan, form=codec.form, dtype=dtype, notes=notes.numel())
    header = Header(
        fingerprint=-7,
        step=12,
        count=len(at),
        wanted=int(wanted.sum()),
        finite=True,
        rates=99,
        value_bytes=dtype.itemsize,
        form=codec.form,
        loss=2.5,
        alarmed=counted,
        pace=Pace(waited=0.25, rest=0.5),
    )
    packed = pack(frame, payload, header, codec, notes=notes, seed=3)
    return {
        "codec": word,
        "known_before": {
            "segments": [
                {"offset": s.offset, "size": s.size, "room": r} for s, r in zip(segments, _ROOMS, strict=True)
            ],
            "known_sizes": list(known),
            "counted": counted,
            "kind": codec.form.kind,
            "bits": codec.form.bits,
            "dtype": str(dtype).removeprefix("torch."),
            "notes": notes.numel(),
            "spectrum": False,
        },
        "message": bytes(packed.message.tolist()).hex(),
        "says": {
            "step": 12,
            "fingerprint": -7,
            "count": len(at),
            "loss": 2.5,
            "alarmed": counted,
            "notes": notes.tolist(),
            "known": packed.sent.known.tolist(),
            "positions": at,
            "values": packed.sent.values.tolist(),
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(cases(), indent=1) + "\n")
