"""One bit a value that stands for the mean of its side: 1-bit SGD (Seide et al. 2014), from its formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Coded, Form


@dataclass(frozen=True, kw_only=True)
class OneBit:
    """Send of every value its side of zero; it becomes the mean of the values on that side.

    >>> coded = OneBit().encode(torch.tensor([1.0, -3.0, 2.0]), torch.tensor([3]), seed=0)
    >>> coded.codes, coded.numbers
    (tensor([0, 1, 0], dtype=torch.uint8), tensor([[ 1.5000, -3.0000]]))
    """

    name: ClassVar[str] = "one_bit"
    form: ClassVar[Form] = Form(kind="table", bits=1)

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:  # noqa: ARG002
        """Return the sides, and the mean of either."""
        seen = kernels.span_statistics(values, ends)
        below, under = seen[:, kernels.BELOW], seen[:, kernels.BELOW_COUNT]
        over = seen[:, kernels.COUNT] - under
        means = torch.stack([(seen[:, kernels.SUM] - below) / over.clamp(min=1), below / under.clamp(min=1)], 1)
        return Coded(codes=(values < 0).to(torch.uint8), numbers=means.to(values.dtype))
