"""How large a message of so many entries is, and how many entries a message of such a size has."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from laconic.arguments import check_number, check_whole


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many bits a message of T entries has: fixed_bits + T * entry_bits, and what T positions take.

    With ``among`` positions among so many entries are coded as on our wire (``laconic.coding``): they take T (width
    + 1) + ((among - T) >> width) bits, with the best width, and ``entry_bits`` are a value's alone. Without it they
    are part of ``entry_bits``, as published. Either way a message grows with T.

    >>> Size.pairs(8), Size.signs(8)
    (Size(fixed_bits=0, entry_bits=35, among=0), Size(fixed_bits=32, entry_bits=4, among=0))
    >>> Size(fixed_bits=0, entry_bits=32, among=1_000_000).bits(torch.tensor([1_000])).tolist()
    [43951.0]
    """

    fixed_bits: float
    entry_bits: float
    among: int = 0

    def __post_init__(self) -> None:
        check_number("fixed_bits", self.fixed_bits, 0.0, "For no header write 0.")
        check_number("entry_bits", self.entry_bits, 0.0, "A float32 has 32.")
        if not self.entry_bits:
            raise ValueError("entry_bits must be over 0, got 0. A float32 has 32.")
        check_whole("among", self.among, 0, "Where entry_bits have the position in them write 0.")

    @staticmethod
    def pairs(d: int, value_bits: int = 32) -> Size:
        """Return the published size of T positions among d with their values: T (ceil(log2 d) + value_bits)."""
        return Size(fixed_bits=0, entry_bits=_position_bits(d) + _checked(value_bits))

    @staticmethod
    def signs(d: int, value_bits: int = 32) -> Size:
        """Return the published size of one value and T signed positions: value_bits + T (ceil(log2 d) + 1)."""
        return Size(fixed_bits=_checked(value_bits), entry_bits=_position_bits(d) + 1)

    def bits(self, counts: Tensor) -> Tensor:
        """Return the bits of messages of so many entries, as float64; a part of an entry has a whole position."""
        bits = self.fixed_bits + self.entry_bits * counts.double()
        return bits + self._coded(counts) if self.among else bits

    def most(self, bits: Tensor) -> Tensor:
        """Return the largest whole counts whose messages have at most so many bits, as float64; 0 where none has.

        With ``among`` they are at most that.

        >>> Size(fixed_bits=0, entry_bits=32, among=1_000_000).most(torch.tensor([43950, 43951, 10**9])).tolist()
        [999.0, 1000.0, 1000000.0]
        """
        bits, last = bits.double(), float(self.among or inf)
        count = self._about(bits - self.fixed_bits).floor().clamp(min=0.0, max=last)
        # A quotient may round over a whole number, or under; the guess itself may be one too few.
        count = (count - (self.bits(count) > bits).double()).clamp(min=0.0)
        return (count + (self.bits(count + 1) <= bits).double()).clamp(max=last)

    def _coded(self, counts: Tensor) -> Tensor:
        """Return what so many positions take."""
        chosen = counts.double().ceil().long()
        some = chosen.clamp(min=1)
        rest = (self.among - some).clamp(min=0)
        # The best width is the logarithm of this quotient, rounded down; frexp has it exactly.
        width = ((rest // some).double().frexp().exponent.long() - 1).clamp(min=0)
        return torch.where(chosen > 0, some * (width + 1) + (rest >> width), 0).double()

    def _about(self, bits: Tensor) -> Tensor:
        """Return the counts that fill so many bits, or one less: a width's remainder is taken unrounded."""
        if not self.among:
            return bits / self.entry_bits
        widths = torch.arange(self.among.bit_length(), dtype=torch.float64, device=bits.device)
        parts = 0.5**widths
        each = self.entry_bits + widths + 1 - parts
        return ((bits.unsqueeze(-1) - self.among * parts) / each).amax(-1)


def _position_bits(d: int) -> int:
    check_whole("d", d, 1, "It is the number of entries of the gradient.")
    return (d - 1).bit_length()


def _checked(value_bits: int) -> int:
    check_whole("value_bits", value_bits, 1, "A float32 has 32.")
    return value_bits
