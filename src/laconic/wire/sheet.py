"""Where the bytes of ranges of entries lie: what pieces of parameters share, values, positions of the chosen ones.

Each range has its values by themselves, known ones first, and one block of positions: all start at multiples of 8
bytes. Sizes follow from the parts, the form and the dtype alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.coding import LOWER, UPPER, Blocks, Form, best_width, padded, upper_bits
from laconic.shards import Part


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The bytes of a part: what known pieces share, what the others share, values, and both parts of positions."""

    known_shared: int
    shared: int
    values: int
    upper: int
    lower: int

    @property
    def each(self) -> list[int]:
        """One behind the other."""
        return [self.known_shared, self.shared, self.values, self.upper, self.lower]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Parts that are written or read together: ranges one behind the other, or several ranks' messages of one."""

    parts: tuple[Part, ...]
    form: Form
    dtype: torch.dtype

    @property
    def value_bits(self) -> int:
        """How many bits a value has."""
        return self.form.value_bits(self.dtype.itemsize)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many bytes each part has."""
        return tuple(sum(lengths.each) for lengths in self.lengths)

    @cached_property
    def fixed(self) -> tuple[int, ...]:
        """How many of them are not for chosen entries."""
        known = np.diff(self.slots)[::2] * self.value_bits // 8
        each = zip(self.lengths, known.tolist(), strict=True)
        return tuple(lengths.known_shared + lengths.shared + values for lengths, values in each)

    @cached_property
    def lengths(self) -> tuple[Lengths, ...]:
        """What these bytes are for."""
        row, rows = self.form.numbers * self.dtype.itemsize, np.diff(self.blocks.rows, axis=0) // 8
        values = np.diff(self.slots[::2]) * self.value_bits // 8
        return tuple(
            Lengths(
                known_shared=row * len(part.known_sizes),
                shared=row * len(part.pieces),
                values=int(values[i]),
                upper=int(rows[i, UPPER]),
                lower=int(rows[i, LOWER]),
            )
            for i, part in enumerate(self.parts)
        )

    @cached_property
    def slots(self) -> list[int]:
        """Where the known and the chosen values of each part begin, counted in values, and where the last end."""
        each = 64 // self.value_bits
        counts: Sequence[int] = [n for part in self.parts for n in (part.known, part.room)]
        return list(accumulate((-(-n // each) * each for n in counts), initial=0))

    @cached_property
    def blocks(self) -> Blocks:
        """Where positions lie: one block a part."""
        rows = np.zeros((len(self.parts) + 1, 6), np.int64)
        upper = lower = 0
        for i, part in enumerate(self.parts):
            size, width = len(part.span), best_width(len(part.span), part.room)
            rows[i] = part.span.start, size, part.room, width, upper, lower
            upper += 8 * padded(upper_bits(size, part.room, width))
            lower += 8 * padded(part.room * width)
        rows[-1] = 0, 0, 0, 0, upper, lower
        return Blocks(rows, upper // 8, lower // 8)

    @cached_property
    def known_ends(self) -> list[int]:
        """Where the known entries of each parameter in each part end, counted over all parts."""
        return list(accumulate(size for part in self.parts for size in part.known_sizes))

    @cached_property
    def stride(self) -> int:
        """How far apart the positions of parts are moved, so that they ascend over all of them."""
        return max((part.span.stop for part in self.parts), default=0)

    @cached_property
    def pieces(self) -> NDArray[np.int64]:
        """Where pieces begin, and where they end: two rows, moved apart."""
        found = [
            (piece.start + i * self.stride, piece.stop + i * self.stride)
            for i, part in enumerate(self.parts)
            for piece in part.pieces
        ]
        return np.array(found, np.int64).reshape(-1, 2).T.copy()


@lru_cache(maxsize=256)
def sheet_of(parts: tuple[Part, ...], form: Form, dtype: torch.dtype) -> Sheet:
    """Return the sheet of these parts; the one of the last step where they are as they were."""
    return Sheet(parts=parts, form=form, dtype=dtype)
