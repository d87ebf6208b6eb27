"""Seals: a number that travels with bytes, by which whoever reads them knows that they are those that were written.

Networks notice damage, nearly always; what lies between them and the reader may not. Bytes are taken as 64-bit
words w_0, w_1, ..., and

    S = G + sum of (2 i + 1) w_i  mod 2^64,   G = 0x9E3779B97F4A7C15.

Odd factors have inverses, so a change of one word always changes S. A short seal is the upper bits of S G mod 2^64.
Seals are no signatures: whoever wants to can make one.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache

import torch
from torch import Tensor

from laconic.collectives import AllGather, Among, Reply, Request
from laconic.errors import WireError

_GOLDEN = 0x9E3779B97F4A7C15
_SIGNED = _GOLDEN - (1 << 64)
_WORD = 8
_MASK = (1 << 64) - 1
# Words that are multiplied at once: what that takes is small beside a model.
_CHUNK = 1 << 17


def sums(rows: Tensor, *, first: int = 0) -> Tensor:
    """Return S of each row of bytes, as signed 64-bit numbers; a row's first word counts as word ``first``.

    >>> sums(torch.zeros(2, 16, dtype=torch.uint8)).tolist()
    [-7046029254386353131, -7046029254386353131]
    """
    words = rows.contiguous().view(torch.int64)
    total = torch.full((words.shape[0],), _SIGNED, dtype=torch.int64, device=rows.device)
    for begin in range(0, words.shape[1], _CHUNK):
        part = words[:, begin : begin + _CHUNK]
        total += (part * _odd(rows.device)[: part.shape[1]]).sum(1)
        if first + begin:
            total += part.sum(1) * (2 * (first + begin))
    return total


def part_sums(raw: Tensor, begins: Tensor) -> Tensor:
    """Return S of parts of bytes that lie one behind the other, the words of all of them being counted through.

    Part i is from word ``begins[i]`` up to ``begins[i + 1]``, and none is empty.
    """
    words = raw.view(torch.int64)
    factors = torch.arange(1, 2 * words.numel(), 2, dtype=torch.int64, device=raw.device)
    ends = (words * factors).cumsum(0)[begins[1:] - 1]
    return torch.diff(ends, prepend=ends.new_zeros(1)) + _SIGNED


def short(total: int, bits: int) -> int:
    """Return a short seal of S."""
    return (total * _GOLDEN & _MASK) >> (64 - bits)


def short_of(totals: Tensor, bits: int) -> Tensor:
    """Return short seals of sums, where they lie."""
    return (totals * _SIGNED >> (64 - bits)) & ((1 << bits) - 1)


def seal_upper_half_(message: Tensor, word: int) -> None:
    """Write a seal of 32 bits into the upper half of a word of a message; it must be zero before."""
    words, total = message.view(torch.int64), sums(message.unsqueeze(0))
    words[word : word + 1] += short_of(total, 32) << 32


def upper_half_fits(total: int, value: int, word: int) -> bool:
    """Whether the seal in the upper half of a word is that of a message, whose S with the seal in it is given."""
    plain = value & 0xFFFFFFFF
    return short(total + (plain - value) * (2 * word + 1), 32) == value >> 32 & 0xFFFFFFFF


def gathered(send: Tensor, what: str, *, among: Among = "world") -> Generator[Request, Reply, Tensor]:
    """Return every rank's bytes, a row a rank, which travel with a seal; raise if a row is not what was sent."""
    size, filled = send.numel(), -send.numel() % _WORD
    padded = torch.cat([send, send.new_zeros(filled)]) if filled else send
    sealed = torch.cat([padded, sums(padded.unsqueeze(0)).view(torch.uint8)])
    rows = yield AllGather(send=sealed, among=among)
    told = rows[:, -_WORD:].contiguous().view(torch.int64).flatten()
    damaged = (told != sums(rows[:, :-_WORD])).nonzero().flatten().tolist()
    if damaged:
        raise damage(damaged[0], what)
    return rows[:, :size]


def damage(rank: int, what: str) -> WireError:
    """Return what to raise where bytes are not those that a rank has sealed."""
    return WireError(
        f"rank {rank}'s {what} was damaged on the way: its seal does not fit. Nothing of it was used. Go on from "
        f"the last checkpoint, and see to the network and the memory of that host and of this one."
    )


@lru_cache(maxsize=8)
def _odd(device: torch.device) -> Tensor:
    return torch.arange(1, 2 * _CHUNK, 2, dtype=torch.int64, device=device)
