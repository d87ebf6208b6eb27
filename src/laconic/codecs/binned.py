"""Values rounded to the means of a few bins: the quantiser of SparseLoCo (2025), written from its formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Coded, Form

# The bins span this many deviations.
_SPAN = 6.0
_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Binned:
    """Send of every value its bin; it becomes the mean of the values in that bin, 2**``bits`` of them a span.

    A span's values are centred by their mean; bins are 6 deviations / 2**bits wide, and the outermost take what
    lies beyond.

    >>> coded = Binned().encode(torch.tensor([1.0, 1.25, -8.0]), torch.tensor([3]), seed=0)
    >>> coded.codes, coded.numbers
    (tensor([2, 2, 1], dtype=torch.uint8), tensor([[ 0.0000, -8.0000,  1.1250,  0.0000]]))
    """

    name: ClassVar[str] = "binned"
    bits: int = 2

    def __post_init__(self) -> None:
        if type(self.bits) is not int or self.bits not in _WIDTHS:
            raise ValueError(f"bits must be 1, 2, 4 or 8, got {self.bits!r}. 2 bits are 4 bins.")

    @property
    def form(self) -> Form:
        """How a value is written."""
        return Form(kind="table", bits=self.bits)

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:  # noqa: ARG002
        """Return each value's bin, and the means of each span's bins."""
        spans, bins = len(ends), 2**self.bits
        exact, owner = values.to(torch.float64), kernels.owners(ends, values.numel())
        centred = exact - _means(exact, owner, spans + 1)[owner]
        width = _SPAN / bins * _means(centred.square(), owner, spans + 1).sqrt()[owner]
        # Values that are all alike have no width, and what is not finite has none either: any bin will do.
        place = torch.nan_to_num(centred / width + bins / 2, nan=0.0, posinf=bins, neginf=0.0)
        codes = place.round().clamp(0, bins - 1).to(torch.int64)
        numbers = _means(exact, owner * bins + codes, (spans + 1) * bins).view(-1, bins)[:spans]
        return Coded(codes=codes.to(torch.uint8), numbers=numbers.to(values.dtype))


def _means(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Return the mean of each owner's values; 0 for one that has none."""
    total = values.new_zeros(owners).index_add_(0, owner, values)
    count = values.new_zeros(owners).index_add_(0, owner, torch.ones_like(values))
    return total / count.clamp(min=1)
