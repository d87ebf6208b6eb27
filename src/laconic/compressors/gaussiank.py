"""Gaussian-k: the threshold that would keep a share of a normal distribution, corrected by counting.

Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning", 2019; written from its formulas.
Gradients are not normal, so its share is systematically off: that is the baseline's known flaw, kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from laconic.arguments import check_share, check_whole
from laconic.compressors.selection import density_plan, kept, spread, take_beyond_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan

_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class GaussianK:
    """Send |v| > mean + z * std with z the normal quantile of ``density``; of nothing, the largest entry.

    Up to three times the threshold is halved where fewer than 2/3 of the wanted number pass, and raised by
    half where more than 4/3 do.
    """

    name: ClassVar[str] = "gaussiank"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = False
    density: float
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write GaussianK(density=0.001).")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def at_density(self, density: float) -> GaussianK:
        """Return the same selection of another share."""
        return replace(self, density=density)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Say that small segments are sent whole, and what room the others have."""
        below, density = self.whole_below, self.density
        return density_plan(segments, step=step, rooms=rooms, whole_below=below, density=density)

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:
        """Take what exceeds the threshold; leave in x exactly what was not taken."""
        views = plan.choosing.views(x)
        thresholds = torch.stack([self._threshold(v) for v in views]) if views else x[:0]
        return take_beyond_(x, segments, plan, fresh, thresholds)

    def _threshold(self, view: Tensor) -> Tensor:
        deviation, mean = spread(view)
        threshold = mean - NormalDist().inv_cdf(self.density / 2) * deviation
        aim = kept(view.numel(), self.density)
        for _ in range(_ROUNDS):
            count = torch.count_nonzero(view.abs() > threshold)
            higher = torch.where(count > aim * 4 / 3, threshold * 1.5, threshold)
            threshold = torch.where(count < aim * 2 / 3, threshold * 0.5, higher)
        return threshold
