"""Take what exceeds a threshold, on CUDA: one pass notes where in bits, a second launch moves what is taken."""

# ruff: noqa: N803 -- constants of a compilation are in capitals, as in all Triton code
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.cuda_layout import BLOCK, GROUP, device_of, kernel, layout_of
from laconic.kernels.cuda_marks import PART, Above, lowest, mark, marked
from laconic.kernels.reference import Taken
from laconic.segments import Segments

# Unused places that are cleared together.
_TILE = 256


def take_above_(
    x: Tensor,
    segments: Segments,
    thresholds: Tensor,
    rooms: Sequence[int],
    *,
    largest: Tensor | None = None,
    turn: int = 0,
) -> Taken:
    """Do what ``reference.take_above_`` does in one pass and a second launch that touches only what is taken."""
    cut, room = layout_of(x.device, segments), sum(rooms)
    positions, values = x.new_empty(room, dtype=torch.int64), x.new_empty(room)
    wanted = x.new_empty(cut.count, dtype=torch.int64)
    if not cut.count:
        return Taken(positions=positions, values=values, wanted=wanted)
    above = Above(
        rooms=_on(x.device, tuple(rooms)),
        largest=None if largest is None else largest.contiguous(),
        begin=reference.share_of(turn),
        plan=x.new_empty(4 * (cut.count + 1), dtype=torch.int64),
        wanted=wanted,
    )
    notes = mark(x, cut, thresholds.contiguous(), above)
    with device_of(x):
        _move[(cut.groups * (GROUP // PART) + -(-room // BLOCK),)](
            x, *notes.all, above.plan, positions, values, cut.group_owner, cut.table, cut.count, cut.groups, room,
            BLOCK=BLOCK, GROUP=GROUP, PART=PART, TILE=_TILE, num_warps=4,
        )  # fmt: skip
    return Taken(positions=positions, values=values, wanted=wanted)


@lru_cache(maxsize=256)
def _on(device: torch.device, rooms: tuple[int, ...]) -> Tensor:
    """Return the rooms on a device, where they are from the last step as a rule."""
    return torch.tensor(rooms, dtype=torch.int64).to(device, non_blocking=True)


@kernel
def _move(  # type: ignore[no-untyped-def]
    x, words, counts, before, plan, positions, values, owner, table, segments, groups, room,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, PART: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Take those of a part's entries whose rank in the segment is taken; further programs clear what is unused."""
    program, row = tl.program_id(0), segments + 1
    parts = groups * (GROUP // PART)
    if program >= parts:
        total = tl.load(plan + 3 * row + segments)
        for i in range(0, BLOCK, TILE):
            to = (program - parts).to(tl.int64) * BLOCK + i + tl.arange(0, TILE)
            unused = (to >= total) & (to < room)
            tl.store(positions + to, tl.zeros([TILE], tl.int64), mask=unused)
            tl.store(values + to, tl.zeros([TILE], x.dtype.element_ty), mask=unused)
    else:
        s, bits, at, rank, most = marked(program, words, counts, before, owner, table, segments, BLOCK, GROUP, PART)
        at += tl.load(table + 3 * row + s)
        for _ in range(most):
            _take(x, at + lowest(bits), rank, bits != 0, plan + s, row, positions, values)
            bits = bits & (bits - 1)
            rank += 1


@triton.jit
def _take(x, at, rank, found, rows, row, positions, values):  # type: ignore[no-untyped-def]
    """Take the first ``lead`` of the ``early`` entries and the first ``late`` of those after them."""
    early, lead, late = tl.load(rows), tl.load(rows + row), tl.load(rows + 2 * row)
    place = tl.load(rows + 3 * row)
    taken = found & ((rank < lead) | ((rank >= early) & (rank - early < late)))
    to = place + tl.where(rank < early, rank, rank - early + lead)
    tl.store(values + to, tl.load(x + at, mask=taken, other=0), mask=taken)
    tl.store(positions + to, at, mask=taken)
    tl.store(x + at, tl.zeros_like(at).to(x.dtype.element_ty), mask=taken)
