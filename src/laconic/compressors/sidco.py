"""SIDCo: a threshold from a fitted tail, in stages that each fit what the stage before left above its own.

Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for Distributed Training
Systems", MLSys 2021; written from its formulas. Its gamma fit needs an inverse incomplete gamma function, which
torch lacks; the exponential and the generalised Pareto fit are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from laconic.arguments import check_choice, check_share, check_whole
from laconic.compressors.selection import density_plan, take_beyond_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan

Fit = Literal["exponential", "pareto"]
_FIRST = 0.25


@dataclass(frozen=True, kw_only=True)
class Sidco:
    """Send |v| above the quantile of a fitted tail that a ``density`` share exceeds; of nothing, the largest.

    The first of several ``stages`` aims at a quarter of the entries, each later one at an equal further factor.
    """

    name: ClassVar[str] = "sidco"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = False
    density: float
    stages: int = 1
    fit: Fit = "exponential"
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write Sidco(density=0.001).")
        check_whole("stages", self.stages, 1, "The tuner Stages moves it while training.")
        check_choice("fit", self.fit, get_args(Fit))
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def at_density(self, density: float) -> Sidco:
        """Return the same selection of another share."""
        return replace(self, density=density)

    def at_stages(self, stages: int) -> Sidco:
        """Return the same selection with another number of stages."""
        return replace(self, stages=stages)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Say that small segments are sent whole, and what room the others have."""
        below, density = self.whole_below, self.density
        return density_plan(segments, step=step, rooms=rooms, whole_below=below, density=density)

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:
        """Take what exceeds the threshold; leave in x exactly what was not taken."""
        views = plan.choosing.views(x)
        thresholds = torch.stack([self._threshold(v.abs()) for v in views]) if views else x[:0]
        return take_beyond_(x, segments, plan, fresh, thresholds)

    def _threshold(self, magnitude: Tensor) -> Tensor:
        nothing = magnitude.new_zeros(())
        if self.stages == 1 or self.density >= _FIRST:
            return _tail(magnitude, nothing, self.density, self.fit)
        threshold = _tail(magnitude, nothing, _FIRST, self.fit)
        for _ in range(self.stages - 1):
            threshold = _tail(magnitude, threshold, (self.density / _FIRST) ** (1 / (self.stages - 1)), self.fit)
        return threshold


def _tail(magnitude: Tensor, floor: Tensor, share: float, fit: Fit) -> Tensor:
    """Return what a share of the entries above the floor exceed, if they are distributed as fitted."""
    above = magnitude >= floor
    count = torch.count_nonzero(above).clamp(min=1)
    excess = torch.where(above, magnitude - floor, 0.0)
    mean = excess.sum() / count
    exponential = floor + mean * -log(share)
    if fit == "exponential":
        return exponential
    variance = (torch.where(above, excess - mean, 0.0).square().sum() / count).clamp(min=1e-30)
    shape = 0.5 * (mean.square() / variance - 1)
    scale = 0.5 * mean * (mean.square() / variance + 1)
    pareto = floor + scale * (1 - share**shape) / shape
    # At shape 0 the generalised Pareto is the exponential.
    return torch.where(shape.abs() < 1e-6, exponential, pareto)
