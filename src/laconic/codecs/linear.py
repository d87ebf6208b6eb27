"""A sign and a magnitude on an even scale, two to eight bits in all: the scale is each parameter's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_choice, check_whole
from laconic.coding import Coded, Form

Rounding = Literal["nearest", "stochastic"]
_WIDTHS = (2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Send the sign, and of 2**(``bits`` - 1) magnitudes from the span's least to its largest the ``nearest``.

    A span is a parameter. Entries that were selected by magnitude have none near zero, so the scale begins at the
    least of them. With ``stochastic`` rounding the magnitude above or the one below is drawn, the nearer the
    likelier, such that the mean is the value itself; ``seed`` changes the draw.

    >>> coded = Linear(bits=2).encode(torch.tensor([1.0, -3.0, 2.5]), torch.tensor([3]), seed=0)
    >>> kernels.dequantise(coded.codes, torch.tensor([3]), coded.numbers, Form(kind="line", bits=2))
    tensor([ 1., -3.,  3.])
    """

    name: ClassVar[str] = "linear"
    bits: int = 4
    rounding: Rounding = "nearest"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("rounding", self.rounding, get_args(Rounding))
        check_whole("seed", self.seed, 0, "Give every rank the same one.")
        if type(self.bits) is not int or self.bits not in _WIDTHS:
            raise ValueError(f"bits must be 2, 4 or 8, got {self.bits!r}. For one bit a value write SignMean().")

    @property
    def form(self) -> Form:
        """How a value is written."""
        return Form(kind="line", bits=self.bits)

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:
        """Return each value's sign and magnitude, and the scale of each span."""
        seen = kernels.span_statistics(values, ends)
        # Without entries the least is infinite.
        least = torch.where(seen[:, kernels.COUNT] > 0, seen[:, kernels.LEAST], 0.0)
        step = (seen[:, kernels.LARGEST] - least) / (2 ** (self.bits - 1) - 1)
        numbers = torch.stack([least, step], 1).to(values.dtype)
        by = None if self.rounding == "nearest" else seed ^ self.seed
        codes = kernels.quantise_line(values, ends, numbers, bits=self.bits, seed=by)
        return Coded(codes=codes, numbers=numbers)
