"""How long it takes to write and read messages, beside the selection that made them, a copy, and other codes."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from laconic import kernels, wire
from laconic.coding import Codec
from laconic.kernels import Inflow, Places
from laconic.lab.rivals import Rival
from laconic.lab.timing import timed
from laconic.lab.wire_bits import chosen, header, packed
from laconic.lab.wire_cases import Vector
from laconic.types import Payload


def speed_rows(
    vector: Vector, density: float, codec: Codec, rivals: list[Rival], *, device: str, repeats: int
) -> dict[str, Any]:
    """Time everything in one run, in seconds, medians."""
    cuda = device == "cuda"

    def seconds(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        return median(timed(work, before=before, repeats=repeats, cuda=cuda))

    plan, payload = chosen(vector, density)
    at = payload.positions.numpy()
    payload = Payload(
        known=payload.known.to(device),
        positions=payload.positions.to(device),
        values=payload.values.to(device),
        wanted=payload.wanted.to(device),
    )
    said = header(plan, payload, codec)
    frame, message = packed(plan, payload, codec)
    rows = message.unsqueeze(0)
    ends = torch.tensor(plan.rooms, dtype=torch.int64).cumsum(0).to(device)
    coded = kernels.encode_positions(payload.positions, ends, frame.blocks).unsqueeze(0)
    copied = torch.empty_like(vector.x, device=device)
    source = vector.x.to(device)
    selection = Selection(vector, density, device)
    return {
        "entries": vector.x.numel(),
        "chosen": plan.capacity,
        "message_bytes": message.numel(),
        "select": seconds(selection.run, selection.restore),
        "copy_of_the_vector": seconds(lambda: copied.copy_(source)),
        "encode_positions": seconds(lambda: kernels.encode_positions(payload.positions, ends, frame.blocks)),
        "decode_positions": seconds(lambda: kernels.decode_positions(coded, [list(plan.rooms)], frame.blocks)),
        "pack": seconds(lambda: wire.pack(frame, payload, said, codec)),
        "unpack": seconds(lambda: wire.unpack(rows, frame, said)),
        "others": {r.name: _rival(r, at, repeats) for r in rivals},
    }


class Selection:
    """The fused selection: accumulate, then take what exceeds a threshold."""

    def __init__(self, vector: Vector, density: float, device: str) -> None:
        self.segments, self.fresh = vector.segments, vector.x.to(device)
        self.x, self.owed = torch.empty_like(self.fresh), torch.zeros_like(self.fresh)
        plan, _ = chosen(vector, density)
        rooms = dict(zip(plan.choosing.names, plan.rooms, strict=True))
        self.rooms = [rooms.get(s.name, s.size) for s in self.segments]
        views = zip(vector.segments.views(vector.x), self.rooms, strict=True)
        each = [view.abs().topk(min(room, view.numel())).values for view, room in views]
        self.thresholds = torch.stack([top[-1] if top.numel() else torch.zeros(()) for top in each]).to(device)
        self.inflow = Inflow.plain(len(self.segments), like=self.x)
        self.restore()

    def restore(self) -> None:
        """Make x the fresh gradient again."""
        self.x.copy_(self.fresh)
        if self.x.is_cuda:
            torch.cuda.synchronize()

    def run(self) -> None:
        """Accumulate and take."""
        places = Places(grad=self.segments, x=self.segments, home=self.segments)
        done = kernels.accumulate_(self.x, self.x, self.inflow, places, owed=self.owed)
        kernels.take_above_(self.x, self.segments, self.thresholds, self.rooms, largest=done.largest)


def _rival(rival: Rival, at: Any, repeats: int) -> dict[str, float]:
    raw = rival.write(at)

    def seconds(work: Callable[[], object]) -> float:
        return median(timed(work, before=lambda: None, repeats=repeats, cuda=False))

    return {
        "write": seconds(lambda: rival.write(at)),
        "read": seconds(lambda: rival.read(raw)),
        "bytes": float(len(raw)),
    }
