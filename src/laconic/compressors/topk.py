"""Magnitude selection: the K entries of largest magnitude of each segment.

Alistarh et al., "The Convergence of Sparsified Gradient Methods", NeurIPS 2018, take K over the whole vector;
the reducer then hands all parameters over as one segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from laconic import kernels
from laconic.arguments import check_share, check_whole
from laconic.compressors.selection import fixed_plan, kept, take_known_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan


@dataclass(frozen=True, kw_only=True)
class TopK:
    """Send the ``density`` share of largest magnitude of each segment, at least one entry; ties by lowest index.

    Segments with fewer than ``whole_below`` entries are sent whole: their positions need not travel, and
    biases and normalisation weights do not starve.

    >>> import torch
    >>> x = torch.tensor([0.5, -3.0, 1.0, 2.0])
    >>> topk, segments = TopK(density=0.5, whole_below=0), Segments.of(["w"], [4])
    >>> plan = topk.plan(segments, step=0, rooms={})
    >>> topk.compress_(x, segments, plan, kernels.fresh_of(x, segments)).positions, x
    (tensor([1, 3]), tensor([0.5000, 0.0000, 1.0000, 0.0000]))
    """

    name: ClassVar[str] = "topk"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = False
    reads_before: ClassVar[bool] = False
    density: float
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write TopK(density=0.001).")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def at_density(self, density: float) -> TopK:
        """Return the same selection of another share."""
        return replace(self, density=density)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:  # noqa: ARG002
        """Say that small segments are sent whole and that each other one sends its share."""
        return fixed_plan(segments, whole_below=self.whole_below, room=lambda size: kept(size, self.density))

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take the largest entries; leave in x exactly what was not taken."""
        known = take_known_(x, plan)
        taken = kernels.take_top_(x, plan.choosing, plan.rooms)
        return Payload(known=known, positions=taken.positions, values=taken.values, wanted=taken.wanted)
