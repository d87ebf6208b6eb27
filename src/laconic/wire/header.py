"""The header of a message: ten 64-bit words that every rank checks and every rank learns from.

==== ============ ============================================================
word name         meaning
==== ============ ============================================================
0    magic        the bytes ``laconic`` and the version of the format
1    fingerprint  digest of method and model; equal on all ranks
2    step         the exchange's step; equal on all ranks
3    count        chosen entries in this message
4    wanted       entries that qualified; the rest stay owed
5    flags        bit 0: this rank's gradient is not finite; bit 1: what it
                  owes has run away; bits 8-15: bytes of one value, 4 or 8
6    rates        digest of learning rates and momenta; equal on all ranks
7    loss         this rank's loss, the bits of a float64; NaN: not told
8    pace         seconds of the step before, two float32: waited, all else
9    change       two float32: how much the fresh gradient fell along what
                  others had sent, and how much they had; NaN: not known
==== ============ ============================================================

In a counted message the header is followed by one count a choosing segment: how many entries qualified in it.
Where a tuner asks for it a spectrum comes next, 72 bytes: how many entries there are of each magnitude.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan

import torch
from torch import Tensor

from laconic.errors import GroupError, WireError
from laconic.pace import UNKNOWN_PACE, Pace
from laconic.types import Plan

VERSION = 3
MAGIC = int.from_bytes(b"laconic" + bytes([VERSION]), "little", signed=True)
WORDS = 10
HEADER_BYTES = 8 * WORDS
_NOT_FINITE = 1
_ALARMED = 2


@dataclass(frozen=True, kw_only=True)
class Header:
    """One rank's header. ``count``, ``wanted`` and ``finite`` of an own one may still lie on the device."""

    fingerprint: int
    step: int
    count: int | Tensor
    wanted: int | Tensor
    finite: bool | Tensor
    rates: int
    value_bytes: int
    loss: float = nan
    alarmed: bool = False
    pace: Pace = UNKNOWN_PACE
    change: Tensor | None = None

    def words(self, device: torch.device) -> Tensor:
        """Return the ten words on the device; nothing is copied from it."""
        flags = (_ALARMED if self.alarmed else 0) | self.value_bytes << 8
        loss = int.from_bytes(struct.pack("<d", self.loss), "little", signed=True)
        pace = int.from_bytes(struct.pack("<ff", self.pace.waited, self.pace.rest), "little", signed=True)
        host = [MAGIC, self.fingerprint, self.step, 0, 0, flags, self.rates, loss, pace, 0]
        words = torch.tensor(host, dtype=torch.int64).to(device, non_blocking=True)
        words[3], words[4] = self.count, self.wanted
        unknown = torch.full((2,), nan, dtype=torch.float32, device=device)
        words[9:] = (unknown if self.change is None else self.change).view(torch.int64)
        words[5] += (~torch.as_tensor(self.finite, device=device)).to(torch.int64) * _NOT_FINITE
        return words


@dataclass(frozen=True, kw_only=True)
class Received:
    """A header read and checked, with the counts that follow it."""

    count: int
    wanted: int
    finite: bool
    loss: float
    alarmed: bool
    pace: Pace
    change: tuple[float, float]
    counts: tuple[int, ...]


def read_headers(rows: Tensor, own: Header, plan: Plan, counts: Tensor) -> list[Received]:
    """Read the header at the start of each row and check it against this rank's own.

    ``counts`` has a row of counts a rank, or none. A rank that disagrees raises ``GroupError``; bytes that
    are no header of ours raise ``WireError``.
    """
    table = rows[:, :HEADER_BYTES].contiguous().view(torch.int64).tolist()
    each = zip(table, counts.tolist(), strict=True)
    return [_read(words, said, own, plan, rank=rank) for rank, (words, said) in enumerate(each)]


def _read(words: Sequence[int], said: Sequence[int], own: Header, plan: Plan, *, rank: int) -> Received:
    magic, fingerprint, step, count, wanted, flags, rates, loss, pace, change = words
    if magic != MAGIC:
        raise WireError(
            f"rank {rank} sent bytes that are not a laconic message of version {VERSION} "
            f"(first word {magic:#x}, expected {MAGIC:#x}). Run the same laconic version on every rank."
        )
    theirs = {"fingerprint": fingerprint, "step": step, "rates": rates, "value_bytes": flags >> 8 & 0xFF}
    for what, value in theirs.items():
        ours = getattr(own, what)
        if value != ours:
            raise GroupError(
                f"rank {rank} is at {what} {value} while this rank is at {what} {ours}. {_REMEDY[what]}"
            )
    told = [min(n, room) for n, room in zip(said, plan.rooms, strict=True)] if plan.counted else [count]
    total = sum(said) if plan.counted else wanted
    wrong = wanted != total or wanted < count or min(said, default=0) < 0
    if wrong or not 0 <= count <= plan.capacity or sum(told) != count:
        raise WireError(
            f"rank {rank} says it sends {count} of {wanted} entries ({list(said)}); the agreed rooms are "
            f"{list(plan.rooms)}."
        )
    return Received(
        count=count,
        wanted=wanted,
        finite=not flags & _NOT_FINITE,
        loss=struct.unpack("<d", loss.to_bytes(8, "little", signed=True))[0],
        alarmed=bool(flags & _ALARMED),
        pace=_pace(pace),
        change=_pair(change),
        counts=tuple(said),
    )


def _pace(word: int) -> Pace:
    waited, rest = _pair(word)
    # Bytes from outside: a time is a number that is not below zero, or not known.
    return Pace(waited=waited, rest=rest) if waited >= 0 and rest >= 0 and isfinite(waited + rest) else UNKNOWN_PACE


def _pair(word: int) -> tuple[float, float]:
    first, second = struct.unpack("<ff", word.to_bytes(8, "little", signed=True))
    return first, second


_REMEDY = {
    "fingerprint": "Give every rank the same method and the same model.",
    "step": "Every rank must run the same number of steps and load checkpoints of the same step.",
    "rates": "(Digests of learning rates and momenta.) Give every rank the same schedule, or models drift apart.",
    "value_bytes": "Give every rank parameters of the same dtype.",
}
