"""Sign times the mean magnitude: one bit a value.

With a dense gradient and memory this is EF-sign (Karimireddy et al. 2019), its scale each parameter's own; with the
largest entries it is the sparsification with quantisation (S+Q) of the CAT paper (Khirirat et al., AAAI 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Coded, Form


@dataclass(frozen=True, kw_only=True)
class SignMean:
    """Send one bit a value, and a span's mean magnitude; where values differ by their sign alone nothing is lost.

    >>> coded = SignMean().encode(torch.tensor([1.0, -3.0, 2.0]), torch.tensor([3]), seed=0)
    >>> coded.codes, coded.numbers
    (tensor([0, 1, 0], dtype=torch.uint8), tensor([[ 2., -2.]]))
    """

    name: ClassVar[str] = "sign_mean"
    form: ClassVar[Form] = Form(kind="table", bits=1)

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:  # noqa: ARG002
        """Return the signs, and the mean magnitude with either."""
        seen = kernels.span_statistics(values, ends)
        mean = seen[:, kernels.MAGNITUDES] / seen[:, kernels.COUNT].clamp(min=1)
        return Coded(codes=(values < 0).to(torch.uint8), numbers=torch.stack([mean, -mean], 1).to(values.dtype))
