"""A threshold of c standard deviations: no sorting, and an amount that follows the gradients by itself.

The idea is SDAGC's (Chen et al. 2020), of which only the abstract is public; this form of it is our
reconstruction (docs/sdagc.md). Against the deviation of the *fresh* gradient the density is steady: an entry
passes when it has gathered about c typical gradients. Against the deviation of what is owed, unsent entries
raise the threshold that keeps them from being sent, and from c = 2.5 on the method starves itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, erfc, sqrt
from statistics import NormalDist
from sys import maxsize
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from laconic.arguments import check_choice, check_number, check_whole
from laconic.compressors.selection import counted_plan, picked, spread, take_beyond_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan

Source = Literal["gradient", "residual"]
Over = Literal["layer", "model"]
_LEAST = 1e-300


@dataclass(frozen=True, kw_only=True)
class StdThreshold:
    """Send |v| > c * deviation; of a segment where nothing passes, its largest entry.

    ``std_of`` says whose deviation: the fresh ``gradient``'s about zero, or the ``residual``'s, in full
    |mean| + c * std. With ``running`` = r in (0, 1) the gradient's deviation is the mean over steps before,
    with weights r^age; 0 takes this step's. ``over="model"`` is one threshold for all layers: bucket by bucket
    from the running deviation, while backward goes on; without one, give the method ``scope="model"``.

    The density is emergent. ``density`` is a nominal one: 1 / (1 + c^2), near Chebyshev's bound, which first
    steps cannot exceed and real gradients come near (docs/sdagc.md), or the Gaussian tail for the residual.

    >>> from laconic import kernels
    >>> x = torch.tensor([0.9, -0.1, 0.05, 0.0, -0.02, 0.03, -0.8, 0.01])
    >>> rule, layer = StdThreshold(c=2.0, std_of="residual", whole_below=0), Segments.of(["w"], [8])
    >>> plan, fresh = rule.plan(layer, step=0, rooms={}), kernels.fresh_of(x, layer)
    >>> rule.compress_(x, layer, plan, fresh).positions
    tensor([0])
    """

    name: ClassVar[str] = "std_threshold"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = False
    c: float
    std_of: Source = "gradient"
    over: Over = "layer"
    running: float = 0.0
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_number("c", self.c, 0.0, "It counts deviations; 0 sends everything, 15 about 0.4%.")
        check_choice("std_of", self.std_of, get_args(Source))
        check_choice("over", self.over, get_args(Over))
        check_number(
            "running", self.running, 0.0, "It is a weight a step, in [0, 1); 0 takes this step's deviation."
        )
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")
        if self.running >= 1:
            raise ValueError(f"running must be in [0, 1), got {self.running!r}. 0.9 averages about ten steps.")
        if self.std_of == "residual" and self.running:
            raise ValueError(f"running must be 0 with std_of='residual', got {self.running!r}. Leave it out.")

    @property
    def density(self) -> float:
        """The nominal share sent."""
        # Far in the tail a normal density is too small for a float.
        return max(erfc(self.c / sqrt(2)), _LEAST) if self.std_of == "residual" else 1 / (1 + self.c**2)

    def at_density(self, density: float) -> StdThreshold:
        """Return the same threshold at the coefficient of a nominal density."""
        if density >= 1.0:
            return self.at_c(0.0)
        c = -NormalDist().inv_cdf(max(density, _LEAST) / 2) if self.std_of == "residual" else sqrt(1 / density - 1)
        # There and back again gives the coefficient that was set, not its neighbour.
        return self.at_c(float(f"{c:.12g}"))

    def at_c(self, c: float) -> StdThreshold:
        """Return the same threshold with another coefficient."""
        return replace(self, c=c)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Say that small segments, or at c = 0 all, are sent whole, and what room the others have."""
        if self.c == 0:
            return counted_plan(segments, step=step, rooms=rooms, whole_below=maxsize, first=int)
        share = min(1.0, 1 / self.c**2)
        return counted_plan(
            segments, step=step, rooms=rooms, whole_below=self.whole_below, first=lambda size: ceil(size * share)
        )

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:
        """Take what exceeds the threshold; leave in x exactly what was not taken."""
        if self.std_of == "residual":
            thresholds = self._of_residual(plan.choosing.views(x), like=x)
        else:
            thresholds = self.c * picked(self._of_gradient(fresh), segments, plan.choosing)
        return take_beyond_(x, segments, plan, fresh, thresholds)

    def _of_gradient(self, fresh: Fresh) -> Tensor:
        if not self.running:
            return fresh.deviation
        before = fresh.overall.expand_as(fresh.deviation) if self.over == "model" else fresh.running
        return torch.where(before > 0, before, fresh.deviation)

    def _of_residual(self, views: list[Tensor], *, like: Tensor) -> Tensor:
        both = [spread(view) for view in views]
        return torch.stack([mean.abs() + self.c * deviation for deviation, mean in both]) if both else like[:0]
