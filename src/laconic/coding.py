"""How entries lie on the wire: positions by Elias-Fano blocks, values in one of four forms.

The positions of a segment ascend: p_0 < p_1 < ... < p_(k-1), counted from its first entry. Then y_i = p_i - i never
falls, and lies in 0 .. size - k. Of y_i the lower ``width`` bits are written as they are, entry after entry; the
rest in unary: bit (y_i >> width) + i of the segment's upper part is one, all others are zero. A segment of so many
entries with room for k takes

    k (width + 1) + ((size - k) >> width)    bits,

and the width, floor(log2((size - k) / k)), makes that least: it follows from size and room, which all ranks know.
Width 0 is a bitmap. The entropy of k positions among n is log2 C(n, k) bits; this stays within a tenth of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.segments import Segments

Kind = Literal["float", "bfloat16", "line", "table"]
OFFSET, SIZE, ROOM, WIDTH, UPPER, LOWER = range(6)


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a value is written.

    ``float``: as memory has it. ``bfloat16``: its upper half. ``line``: a sign and a magnitude of ``bits`` - 1
    bits, which stands for low + step * magnitude; a span of values shares these two numbers. ``table``: a number of
    ``bits`` bits, which stands for one of the 2**bits numbers that a span of values shares.
    """

    kind: Kind
    bits: int = 0

    def value_bits(self, value_bytes: int) -> int:
        """Return how many bits a value has, memory's own having so many bytes."""
        return self.bits or 8 * value_bytes

    @property
    def numbers(self) -> int:
        """How many numbers a span of values shares."""
        shared = {"line": 2, "table": 1 << self.bits}
        return shared.get(self.kind, 0)


@runtime_checkable
class Codec(Protocol):
    """How values are rounded to what the wire carries; what that loses stays owed. Frozen data."""

    name: ClassVar[str]

    @property
    def form(self) -> Form:
        """How a value is written."""

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:
        """Return the values' codes and what each span shares.

        Span s ends before ``ends[s]``, where the next one begins; behind the last there may be room that stands
        for nothing. ``seed`` is another one in every message of every rank, and the same when a run is repeated.
        """


@dataclass(frozen=True, kw_only=True)
class Coded:
    """A code a value (of a form without codes: the value itself), and a row of numbers a span."""

    codes: Tensor
    numbers: Tensor


@dataclass(frozen=True)
class Blocks:
    """Where the positions of each segment lie: one row a segment, bits counted from the start of either part."""

    rows: NDArray[np.int64]
    upper_bytes: int
    lower_bytes: int

    @property
    def bits(self) -> int:
        """How many bits positions take, but for padding."""
        last = self.rows[-1]
        return int(last[UPPER] + last[LOWER])

    def on(self, device: torch.device) -> Tensor:
        """Return the rows on a device."""
        return torch.from_numpy(self.rows).to(device, non_blocking=True)


@lru_cache(maxsize=1024)
def blocks_of(segments: Segments, rooms: tuple[int, ...]) -> Blocks:
    """Return where positions lie that are chosen from these segments; a last row closes the counting."""
    rows = np.zeros((len(segments) + 1, 6), np.int64)
    upper = lower = 0
    for i, (segment, room) in enumerate(zip(segments, rooms, strict=True)):
        width = best_width(segment.size, room)
        rows[i] = segment.offset, segment.size, room, width, upper, lower
        upper += upper_bits(segment.size, room, width)
        lower += room * width
    rows[-1] = 0, 0, 0, 0, upper, lower
    return Blocks(rows, padded(upper), padded(lower))


def best_width(size: int, room: int) -> int:
    """Return how many lower bits of a position are written as they are.

    >>> best_width(1_000_000, 1_000), best_width(10, 5), best_width(10, 0)
    (9, 0, 0)
    """
    if room == 0:
        return 0
    return max(0, ((size - room) // room).bit_length() - 1)


def position_bits(size: int, room: int, width: int) -> int:
    """Return the bits of ``room`` positions among ``size`` entries.

    >>> position_bits(1_000_000, 1_000, 9) / 1_000
    11.951
    """
    return room * width + upper_bits(size, room, width)


def upper_bits(size: int, room: int, width: int) -> int:
    """Return the bits of their unary part."""
    return room + ((size - room) >> width) if room else 0


def padded(bits: int) -> int:
    """Return the bytes of so many bits, rounded up to 8."""
    return -(-bits // 64) * 8
