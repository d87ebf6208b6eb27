"""Minus one, zero or one, by chance: TernGrad (Wen et al. 2017), written from its formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_number, check_whole
from laconic.coding import Coded, Form


@dataclass(frozen=True, kw_only=True)
class TernGrad:
    """Clip a span's values at ``deviations``; send +-scale with probability |v| / scale, else 0.

    The scale is the largest of the clipped magnitudes. Unbiased but for the clipping, which the paper sets at 2.5.
    """

    name: ClassVar[str] = "terngrad"
    form: ClassVar[Form] = Form(kind="line", bits=2)
    deviations: float = 2.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("deviations", self.deviations, 0.0, "The paper clips at 2.5 deviations.")
        if self.deviations == 0:
            raise ValueError(f"deviations must be over 0, got {self.deviations!r}. The paper clips at 2.5.")
        check_whole("seed", self.seed, 0, "Give every rank the same one.")

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:
        """Return each value's sign and whether it is sent, and the scale of each span."""
        seen = kernels.span_statistics(values, ends)
        count = seen[:, kernels.COUNT].clamp(min=1)
        variance = seen[:, kernels.SQUARES] / count - (seen[:, kernels.SUM] / count).square()
        limit = self.deviations * variance.clamp(min=0).sqrt()
        # Values that are all alike have no deviation, and need no clipping.
        scale = torch.where(limit > 0, torch.minimum(seen[:, kernels.LARGEST], limit), seen[:, kernels.LARGEST])
        numbers = torch.stack([torch.zeros_like(scale), scale], 1).to(values.dtype)
        codes = kernels.quantise_line(values, ends, numbers, bits=2, seed=seed ^ self.seed)
        return Coded(codes=codes, numbers=numbers)
