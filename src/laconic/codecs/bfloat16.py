"""The upper half of a float32: eight bits of exponent, seven of fraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.coding import Coded, Form

_MOST = torch.finfo(torch.bfloat16).max


@dataclass(frozen=True, kw_only=True)
class BFloat16:
    """Send values to three digits, in two bytes; what is too large for them becomes the largest there is."""

    name: ClassVar[str] = "bfloat16"
    form: ClassVar[Form] = Form(kind="bfloat16", bits=16)

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:  # noqa: ARG002
        """Return the values in bfloat16."""
        codes = values.clamp(-_MOST, _MOST).to(torch.bfloat16)
        return Coded(codes=codes, numbers=values.new_empty(len(ends), 0))
