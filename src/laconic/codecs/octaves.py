"""Values rounded to the means of octaves of magnitude: for what is owed, most of it small and some large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Coded, Form

# Octaves that are told apart where two classes are made of them; below the last all are one.
_LOOKED_AT = 16
_WIDTHS = (2, 4)


@dataclass(frozen=True, kw_only=True)
class Octaves:
    """Send of every value its sign and the class of its magnitude; it becomes the mean magnitude of that class.

    With four bits there are eight classes: each octave of a span's magnitudes, from the largest down, and one for
    all below. With two bits there are two, parted between the octaves such that the least is lost (in squares).

    >>> coded = Octaves().encode(torch.tensor([9.0, -15.0, 1.0, 0.25]), torch.tensor([4]), seed=0)
    >>> coded.codes, coded.numbers[0, :6]
    (tensor([0, 8, 3, 5], dtype=torch.uint8), tensor([12.0000,  0.0000,  0.0000,  1.0000,  0.0000,  0.2500]))
    """

    name: ClassVar[str] = "octaves"
    bits: int = 4

    def __post_init__(self) -> None:
        if type(self.bits) is not int or self.bits not in _WIDTHS:
            raise ValueError(f"bits must be 2 or 4, got {self.bits!r}. For one bit a value write SignMean().")

    @property
    def form(self) -> Form:
        """How a value is written."""
        return Form(kind="table", bits=self.bits)

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:  # noqa: ARG002
        """Return each value's sign and class, and the mean magnitudes of each span's classes with either sign."""
        classes, size = 2 ** (self.bits - 1), values.to(torch.float64).abs()
        owner = kernels.owners(ends, values.numel())
        largest = kernels.span_statistics(values, ends)[:, kernels.LARGEST]
        # Behind the last span there may be room that stands for nothing.
        top = torch.cat([largest, largest.new_zeros(1)]).frexp().exponent[owner]
        place = torch.where(size > 0, top - size.frexp().exponent, _LOOKED_AT).clamp(0, _LOOKED_AT - 1)
        if classes == 2:
            parting = _parting(size, place, ends)
            place = (place > torch.cat([parting, parting.new_zeros(1)])[owner]).int()
        else:
            place = place.clamp(max=classes - 1)
        total, count = _sums(size, place, ends, classes)
        means = (total / count.clamp(min=1)).to(values.dtype)
        # What stands for nothing has code 0, whatever lies there.
        codes = torch.where(owner < len(ends), place + classes * (values < 0), 0)
        return Coded(codes=codes.to(torch.uint8), numbers=torch.cat([means, -means], 1))


def _parting(size: Tensor, octave: Tensor, ends: Tensor) -> Tensor:
    """Return for each span the last octave that belongs to the upper of two classes.

    Classes with sums S and counts n keep S^2 / n each of the sum of squares; what is lost is the rest.
    """
    total, count = (each.cumsum(1) for each in _sums(size, octave, ends, _LOOKED_AT))
    over = total[:, -1:] - total
    kept = total.square() / count.clamp(min=1) + over.square() / (count[:, -1:] - count).clamp(min=1)
    # What is not a number is in no class.
    return torch.nan_to_num(kept, nan=0.0).argmax(1)


def _sums(size: Tensor, place: Tensor, ends: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Return of each span the sum of the sizes at each place, and how many there are.

    Place after place: to scatter them would add in an order that on a GPU is another one each time.
    """
    totals, counts = [], []
    for i in range(places):
        here = place == i
        totals.append(kernels.span_statistics(torch.where(here, size, 0), ends)[:, kernels.SUM])
        counts.append(kernels.span_statistics(here.to(size.dtype), ends)[:, kernels.SUM])
    return torch.stack(totals, 1), torch.stack(counts, 1)
