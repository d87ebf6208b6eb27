"""Values in a few bins: what another compressor chose, each value rounded to the mean of its bin.

SparseLoCo (2025), written from its formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from laconic.arguments import check_whole
from laconic.compressors.std_threshold import StdThreshold
from laconic.segments import Segments
from laconic.types import Compressor, Fresh, Payload, Plan

_MOST_BITS = 16
# The bins span this many deviations.
_SPAN = 6.0


@dataclass(frozen=True, kw_only=True)
class Binned:
    """Send what ``inner`` chooses with its values rounded to 2**``bits`` of them a segment; the rest stays owed.

    Chosen values of a segment are centred by their mean; bins are 6 * deviation / 2**bits wide, the middle around
    the mean, and the outermost take what lies beyond. A value becomes the mean of the values in its bin. Zeros
    stay zeros and count for nothing; entries that every rank sends are not rounded. Values still travel as
    float32, as everybody's do: this changes what is learnt, and not yet how many bytes are sent.

    >>> from laconic import TopK, kernels
    >>> x, segments = torch.tensor([1.0, 1.25, -8.0, 0.5]), Segments.of(["w"], [4])
    >>> rule = Binned(inner=TopK(density=0.75, whole_below=0))
    >>> plan = rule.plan(segments, step=0, rooms={})
    >>> rule.compress_(x, segments, plan, kernels.fresh_of(x, segments)).values, x
    (tensor([ 1.1250,  1.1250, -8.0000]), tensor([-0.1250,  0.1250,  0.0000,  0.5000]))
    """

    name: ClassVar[str] = "binned"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = False
    reads_before: ClassVar[bool] = False
    inner: Compressor
    bits: int = 2

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, 1, "2 bits are 4 bins.")
        if self.bits > _MOST_BITS:
            raise ValueError(f"bits must be at most {_MOST_BITS}, got {self.bits!r}. 2 bits are 4 bins.")
        inner = self.inner
        # The running deviation of StdThreshold is kept only for a method whose compressor it is.
        fits = isinstance(inner, Compressor) and not isinstance(inner, type | StdThreshold) and inner.ranks_choose
        if not fits:
            raise ValueError(
                f"inner must be a compressor whose ranks choose by magnitude, got {inner!r}. "
                f"Write Binned(inner=ChunkTopK())."
            )
        # Here they are the inner one's, whatever the class says.
        object.__setattr__(self, "counts_vary", inner.counts_vary)
        object.__setattr__(self, "reads_before", inner.reads_before)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Plan as the inner compressor does."""
        return self.inner.plan(segments, step=step, rooms=rooms)

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:
        """Take what the inner compressor takes, rounded; leave the rest in x."""
        payload = self.inner.compress_(x, segments, plan, fresh)
        if not len(plan.choosing):
            return payload
        starts = torch.tensor([s.offset for s in plan.choosing]).to(x.device, non_blocking=True)
        owner = torch.searchsorted(starts, payload.positions, right=True) - 1
        sent = _rounded(payload.values, owner, len(plan.choosing), 2**self.bits)
        x.index_add_(0, payload.positions, payload.values - sent)
        return replace(payload, values=sent)


def _rounded(values: Tensor, owner: Tensor, owners: int, bins: int) -> Tensor:
    """Return each value's bin mean, bins being those of its owner; a zero stays what it is."""
    exact = values.to(torch.float64)
    # Zeros, and with them the unused room of a payload, go to one owner more, which stands for nothing.
    owner = torch.where(values != 0, owner, owners)
    centred = exact - _means(exact, owner, owners + 1)[owner]
    width = _SPAN / bins * _means(centred.square(), owner, owners + 1).sqrt()[owner]
    # Values that are all alike have no width, and what is not finite has none either: any bin will do.
    place = torch.nan_to_num(centred / width + bins / 2, nan=0.0, posinf=bins, neginf=0.0)
    at = owner * bins + place.round().clamp(0, bins - 1).to(torch.int64)
    return _means(exact, at, (owners + 1) * bins)[at].to(values.dtype)


def _means(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Return the mean of each owner's values; 0 for one that has none."""
    total = values.new_zeros(owners).index_add_(0, owner, values)
    count = values.new_zeros(owners).index_add_(0, owner, torch.ones_like(values))
    return total / count.clamp(min=1)
