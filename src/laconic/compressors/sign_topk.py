"""Signs of the largest entries: the sparsification with quantisation (S+Q) of the CAT paper.

Khirirat et al., "A Flexible Framework for Communication-Efficient Machine Learning", AAAI 2021, send sign times the
gradient's norm; its step size makes of that sign times the mean magnitude of what is sent, which we send at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_share, check_whole
from laconic.compressors.selection import fixed_plan, kept, take_known_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan


@dataclass(frozen=True, kw_only=True)
class SignTopK:
    """Of a segment's entries that ``TopK`` takes send sign times their mean magnitude; the rest stays owed.

    Zeros among them stay zeros and count for nothing. Segments with fewer than ``whole_below`` entries are sent
    whole, as they are. Values still travel as float32: this changes what is learnt, and not yet how many bytes
    are sent.

    >>> x, segments = torch.tensor([0.5, -3.0, 1.0, 2.0]), Segments.of(["w"], [4])
    >>> rule = SignTopK(density=0.5, whole_below=0)
    >>> plan = rule.plan(segments, step=0, rooms={})
    >>> rule.compress_(x, segments, plan, kernels.fresh_of(x, segments)).values, x
    (tensor([-2.5000,  2.5000]), tensor([ 0.5000, -0.5000,  1.0000, -0.5000]))
    """

    name: ClassVar[str] = "sign_topk"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = False
    reads_before: ClassVar[bool] = False
    density: float
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write SignTopK(density=0.001).")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def at_density(self, density: float) -> SignTopK:
        """Return the same selection of another share."""
        return replace(self, density=density)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:  # noqa: ARG002
        """Say that small segments are sent whole and that each other one sends its share."""
        return fixed_plan(segments, whole_below=self.whole_below, room=lambda size: kept(size, self.density))

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take one magnitude out of each of the largest entries; leave the rest in x."""
        known = take_known_(x, plan)
        taken = kernels.take_top_(x, plan.choosing, plan.rooms)
        # Where something is not a number there may be fewer entries than room, which this split does not mind.
        parts = taken.values.tensor_split(tuple(accumulate(plan.rooms)))
        sent = torch.cat([_one_magnitude(part) for part in parts])
        x.index_add_(0, taken.positions, taken.values - sent)
        return Payload(known=known, positions=taken.positions, values=sent, wanted=taken.wanted)


def _one_magnitude(values: Tensor) -> Tensor:
    """Return the signs times the mean magnitude of the values that are not zero."""
    total, count = values.abs().sum(dtype=torch.float64), torch.count_nonzero(values)
    return values.sign() * (total / count.clamp(min=1)).to(values.dtype)
