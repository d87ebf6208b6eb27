"""Levels of the norm by chance: QSGD (Alistarh et al. 2017), written from its formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_whole
from laconic.coding import Coded, Form

_MOST_LEVELS = 127


@dataclass(frozen=True, kw_only=True)
class Qsgd:
    """Send levels * |v| / norm rounded up or down by chance, with the sign: unbiased. The norm is the span's.

    A value has 2, 4 or 8 bits: the fewest that ``levels`` and a sign fit in (1, 7 and 127 fill them). The paper
    codes levels by Elias' code; our bits are of fixed width. It also takes norms of a few hundred entries each:
    the noise grows with the root of their number, so a whole parameter wants many levels.
    """

    name: ClassVar[str] = "qsgd"
    levels: int = 127
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("levels", self.levels, 1, "They are the paper's s: 7 take four bits a value.")
        check_whole("seed", self.seed, 0, "Give every rank the same one.")
        if self.levels > _MOST_LEVELS:
            raise ValueError(
                f"levels must be at most {_MOST_LEVELS}, got {self.levels!r}. 127 take a byte a value."
            )

    @property
    def form(self) -> Form:
        """How a value is written."""
        return Form(kind="line", bits=next(b for b in (2, 4, 8) if self.levels < 2 ** (b - 1)))

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:
        """Return each value's sign and level, and what a level is of each span."""
        step = kernels.span_statistics(values, ends)[:, kernels.SQUARES].sqrt() / self.levels
        numbers = torch.stack([torch.zeros_like(step), step], 1).to(values.dtype)
        codes = kernels.quantise_line(values, ends, numbers, bits=self.form.bits, seed=seed ^ self.seed)
        return Coded(codes=codes, numbers=numbers)
