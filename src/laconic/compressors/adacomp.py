"""AdaComp: in every bin, the entries that the fresh gradient lifts to the bin's largest.

Chen et al., "AdaComp: Adaptive Residual Gradient Compression for Data-Parallel Distributed Training", AAAI 2018;
written from its formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_whole
from laconic.compressors.selection import counted_plan, take_known_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan


@dataclass(frozen=True, kw_only=True)
class AdaComp:
    """Send the entries with |G + g| at or above the largest |G| of their bin, as sign times the mean bin maximum.

    G is what is owed with the fresh gradient g in it; bins have ``bin_size`` entries of a segment (the paper:
    50 for convolutions, 500 for others). What rounding to one magnitude changes stays owed.
    """

    name: ClassVar[str] = "adacomp"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = True
    bin_size: int = 500
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_whole("bin_size", self.bin_size, 1, "The paper has 50 for convolutions and 500 for other layers.")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Say that small segments are sent whole, and what room the others have."""
        return counted_plan(
            segments,
            step=step,
            rooms=rooms,
            whole_below=self.whole_below,
            first=lambda size: 2 * ceil(size / self.bin_size),
        )

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take a bin's leaders, rounded to one magnitude; leave the rest in x."""
        known = take_known_(x, plan)
        before = torch.zeros_like(x) if fresh.before is None else fresh.before
        passed, scales = [], torch.zeros_like(x)
        for g, old, scale in zip(
            plan.choosing.views(x), plan.choosing.views(before), plan.choosing.views(scales), strict=True
        ):
            largest = self._bin_maxima(g)
            each = largest.repeat_interleave(self.bin_size)[: g.numel()]
            passed.append(((2 * g - old).abs() >= each) & (g != 0))
            scale.fill_(largest.mean() if g.numel() else 0.0)
        taken = kernels.take_where_(x, plan.choosing, passed, plan.rooms, turn=plan.step)
        sent = taken.values.sign() * scales[taken.positions]
        x.index_add_(0, taken.positions, taken.values - sent)
        return Payload(known=known, positions=taken.positions, values=sent, wanted=taken.wanted)

    def _bin_maxima(self, g: Tensor) -> Tensor:
        bins = ceil(g.numel() / self.bin_size)
        padded = torch.nn.functional.pad(g.abs(), (0, bins * self.bin_size - g.numel()))
        return padded.view(bins, self.bin_size).amax(1)
