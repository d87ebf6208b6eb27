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
                  owes has run away; bits 8-15: bytes of a value in memory,
                  2, 4 or 8; bits 16-23: form of values (0 float, 1 bfloat16,
                  2 line, 3 table); bits 24-31: bits of a value, 0 for float;
                  bits 32-63: seal of the message (laconic.seals)
6    rates        digest of learning rates and momenta; equal on all ranks
7    loss         this rank's loss, the bits of a float64; NaN: not told
8    pace         seconds of the step before, two float32: waited, all else
9    change       two float32: how much the fresh gradient fell along what
                  others had sent, and how much they had; NaN: not known
==== ============ ============================================================

docs/wire-format.md says what follows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

import torch
from torch import Tensor

from laconic import seals
from laconic.coding import Form
from laconic.errors import GroupError, WireError
from laconic.pace import UNKNOWN_PACE, Pace
from laconic.types import Plan

VERSION = 5
MAGIC = int.from_bytes(b"laconic" + bytes([VERSION]), "little", signed=True)
WORDS = 10
HEADER_BYTES = 8 * WORDS
# The word whose upper half has the seal.
_FLAGS = 5
_NOT_FINITE = 1
_ALARMED = 2
# Two numbers that are not known.
_UNKNOWN = int.from_bytes(struct.pack("<ff", nan, nan), "little", signed=True)
_KINDS = ("float", "bfloat16", "line", "table")


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
    form: Form = Form(kind="float")  # noqa: RUF009
    loss: float = nan
    alarmed: bool = False
    pace: Pace = UNKNOWN_PACE
    change: Tensor | None = None

    def words(self, device: torch.device) -> Tensor:
        """Return the ten words on the device; nothing is copied from it."""
        flags = (_ALARMED if self.alarmed else 0) | self.value_bytes << 8 | self.written << 16
        loss = int.from_bytes(struct.pack("<d", self.loss), "little", signed=True)
        pace = int.from_bytes(struct.pack("<ff", self.pace.waited, self.pace.rest), "little", signed=True)
        here = device.type == "cpu"
        # What is known to the host is written there; to ask a device for the rest would make the host wait.
        count, wanted = (int(n) if here or isinstance(n, int) else 0 for n in (self.count, self.wanted))
        if (here or isinstance(self.finite, bool)) and not self.finite:
            flags |= _NOT_FINITE
        host = [MAGIC, self.fingerprint, self.step, count, wanted, flags, self.rates, loss, pace, _UNKNOWN]
        words = torch.tensor(host, dtype=torch.int64).to(device, non_blocking=True)
        if isinstance(self.count, Tensor) and isinstance(self.wanted, Tensor) and not here:
            words[3:5] = torch.stack([self.count, self.wanted])
        elif not here:
            words[3], words[4] = self.count, self.wanted
        if isinstance(self.finite, Tensor) and not here:
            words[5] += self.finite.to(device).logical_not() * _NOT_FINITE
        if self.change is not None:
            words[9:] = self.change.view(torch.int64)
        return words

    @property
    def written(self) -> int:
        """The form of values as a number."""
        return _KINDS.index(self.form.kind) | self.form.bits << 8


@dataclass(frozen=True, kw_only=True)
class Received:
    """A header read and checked, with the counts that follow it.

    ``chosen`` are the entries to read of each segment: none from a rank whose gradient is not finite.
    """

    count: int
    wanted: int
    finite: bool
    loss: float
    alarmed: bool
    pace: Pace
    change: tuple[float, float]
    counts: tuple[int, ...] = ()
    chosen: tuple[int, ...] = ()


def seal_(message: Tensor) -> Tensor:
    """Write the seal into the header of a message that is else whole, and return it."""
    seals.seal_upper_half_(message, _FLAGS)
    return message


def with_totals(rows: Tensor, size: int, *, first: int = 0) -> tuple[Tensor, Tensor]:
    """Return so many bytes of each row, and the sum of all of it, on the host: in one copy."""
    totals = seals.sums(rows, first=first)
    said = torch.cat([rows[:, :size], totals.view(torch.uint8).view(-1, 8)], 1).cpu()
    return said[:, :size], said[:, size:].contiguous().view(torch.int64).flatten()


def read_headers(
    rows: Tensor, own: Header, plan: Plan, counts: Tensor, totals: Tensor, senders: Sequence[int] | None = None
) -> list[Received]:
    """Read the header at the start of each row and check it against this rank's own.

    ``counts`` has a row of counts a rank, or none; ``totals`` are the sums by which messages are sealed; rows are
    of the ``senders``, by default of all ranks. A rank that disagrees raises ``GroupError``; bytes that are no
    message of ours, or were damaged, raise ``WireError``.
    """
    ranks = range(len(rows)) if senders is None else senders
    table = _words(rows, totals, ranks)
    each = zip(ranks, table, counts.tolist(), strict=True)
    return [_read(words, said, own, plan, rank=rank) for rank, words, said in each]


def read_said(rows: Tensor, own: Header, plan: Plan, totals: Tensor, *, most: Sequence[int]) -> list[Received]:
    """Read the header at the start of each row as ``read_headers`` does; rank r may send ``most[r]`` at most."""
    table = _words(rows, totals, range(len(rows)))
    said = [_agreed(words, own, rank=rank) for rank, words in enumerate(table)]
    for rank, (header, limit) in enumerate(zip(said, most, strict=True)):
        if not 0 <= header.count <= limit or not 0 <= header.wanted <= plan.choosing.numel:
            raise WireError(
                f"rank {rank} says it sends {header.count} entries, {header.wanted} having qualified; there is "
                f"room for {limit}."
            )
    return said


def _words(rows: Tensor, totals: Tensor, ranks: Sequence[int]) -> list[list[int]]:
    """Return the words of each header; raise unless it is one of ours, of a message as it was written."""
    table: list[list[int]] = rows[:, :HEADER_BYTES].contiguous().view(torch.int64).tolist()
    for rank, words, total in zip(ranks, table, totals.tolist(), strict=True):
        if words[0] != MAGIC:
            raise WireError(
                f"rank {rank} sent bytes that are not a laconic message of version {VERSION} "
                f"(first word {words[0]:#x}, expected {MAGIC:#x}). Run the same laconic version on every rank."
            )
        if not seals.upper_half_fits(total, words[_FLAGS], _FLAGS):
            raise seals.damage(rank, "message")
    return table


def _read(words: Sequence[int], said: Sequence[int], own: Header, plan: Plan, *, rank: int) -> Received:
    heard = _agreed(words, own, rank=rank)
    count, wanted = heard.count, heard.wanted
    told, total = plan.rooms, sum(said) if plan.counted else wanted
    if plan.counted:
        told = tuple(min(n, room) for n, room in zip(said, plan.rooms, strict=True))
    elif not heard.finite:
        # What is not a number is not chosen; the step is dropped, whatever else came.
        told = (count,)
    # No more can qualify than there are.
    possible = all(0 <= n <= segment.size for n, segment in zip(said, plan.choosing, strict=False))
    wrong = wanted != total or not count <= wanted <= plan.choosing.numel or not possible
    if wrong or not 0 <= count <= plan.capacity or sum(told) != count:
        raise WireError(
            f"rank {rank} says it sends {count} of {wanted} entries ({list(said)}); the agreed rooms are "
            f"{list(plan.rooms)}."
        )
    return replace(heard, counts=tuple(said), chosen=told if heard.finite else (0,) * len(plan.rooms))


def _agreed(words: Sequence[int], own: Header, *, rank: int) -> Received:
    """Read a header; raise unless it agrees with this rank's."""
    _, fingerprint, step, count, wanted, flags, rates, loss, pace, change = words
    theirs = {"fingerprint": fingerprint, "step": step, "rates": rates, "value_bytes": flags >> 8 & 0xFF}
    theirs["written"] = flags >> 16 & 0xFFFF
    for what, value in theirs.items():
        ours = getattr(own, what)
        if value != ours:
            raise GroupError(
                f"rank {rank} is at {what} {value} while this rank is at {what} {ours}. {_REMEDY[what]}"
            )
    return Received(
        count=count,
        wanted=wanted,
        finite=not flags & _NOT_FINITE,
        loss=struct.unpack("<d", loss.to_bytes(8, "little", signed=True))[0],
        alarmed=bool(flags & _ALARMED),
        pace=_pace(pace),
        change=_pair(change),
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
    "written": "(The form of values.) Give every rank the same method.",
}
