"""The header of a message: eight 64-bit words that every rank checks and every rank learns from.

==== ============ ============================================================
word name         meaning
==== ============ ============================================================
0    magic        the bytes ``laconic`` and the version of the format
1    fingerprint  digest of method and model; equal on all ranks
2    step         the exchange's step; equal on all ranks
3    count        chosen entries in this message
4    wanted       entries that qualified; the rest stay owed
5    flags        bit 0: this rank's gradient is not finite
6    rates        digest of all learning rates; equal on all ranks
7    value_bytes  size of one value: 4 or 8
==== ============ ============================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.errors import GroupError, WireError

VERSION = 1
MAGIC = int.from_bytes(b"laconic" + bytes([VERSION]), "little", signed=True)
WORDS = 8
HEADER_BYTES = 8 * WORDS
_NOT_FINITE = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """One rank's header, read."""

    fingerprint: int
    step: int
    count: int
    wanted: int
    finite: bool
    rates: int
    value_bytes: int

    def words(self) -> list[int]:
        """Return the eight words as signed integers."""
        flags = 0 if self.finite else _NOT_FINITE
        return [
            MAGIC,
            self.fingerprint,
            self.step,
            self.count,
            self.wanted,
            flags,
            self.rates,
            self.value_bytes,
        ]


def read_headers(rows: Tensor, expected: Header, *, capacity: int) -> list[Header]:
    """Read the header at the start of each row and check it against this rank's own.

    A rank that disagrees raises ``GroupError``; bytes that are no header of ours raise ``WireError``.
    """
    table = rows[:, :HEADER_BYTES].contiguous().cpu().view(torch.int64).tolist()
    return [_read(words, expected, rank=rank, capacity=capacity) for rank, words in enumerate(table)]


def _read(words: list[int], own: Header, *, rank: int, capacity: int) -> Header:
    magic, fingerprint, step, count, wanted, flags, rates, value_bytes = words
    if magic != MAGIC:
        raise WireError(
            f"rank {rank} sent bytes that are not a laconic message of version {VERSION} "
            f"(first word {magic:#x}, expected {MAGIC:#x}). Run the same laconic version on every rank."
        )
    header = Header(
        fingerprint=fingerprint,
        step=step,
        count=count,
        wanted=wanted,
        finite=not flags & _NOT_FINITE,
        rates=rates,
        value_bytes=value_bytes,
    )
    for what in ("fingerprint", "step", "rates", "value_bytes"):
        theirs, ours = getattr(header, what), getattr(own, what)
        if theirs != ours:
            raise GroupError(
                f"rank {rank} is at {what} {theirs} while this rank is at {what} {ours}. {_REMEDY[what]}"
            )
    if not 0 <= count <= capacity or wanted < count:
        raise WireError(
            f"rank {rank} says it sends {count} of {wanted} entries; the agreed capacity is {capacity}."
        )
    return header


_REMEDY = {
    "fingerprint": "Give every rank the same method and the same model.",
    "step": "Every rank must run the same number of steps and load checkpoints of the same step.",
    "rates": "(Digests of the learning rates.) Give every rank the same schedule, or their models drift apart.",
    "value_bytes": "Give every rank parameters of the same dtype.",
}
