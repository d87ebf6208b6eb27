"""Learning-rate revision by staleness: what waited long moves the model less (variant B of docs/sdagc.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from laconic.segments import Segments
from laconic.types import Compressor, Fresh, Payload, Plan


@dataclass(frozen=True, eq=False)
class Damped:
    """A compressor whose chosen values are divided by the root of their segment's mean delay, in steps.

    ``delays`` has the steps since each entry of x was last sent. What is cut off is not owed: it is a lower
    learning rate, the segment's own. Entries sent whole are never late.
    """

    name: ClassVar[str] = "damped"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = True
    inner: Compressor
    delays: Tensor

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Plan as the inner compressor does."""
        return self.inner.plan(segments, step=step, rooms=rooms)

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:
        """Take what the inner compressor takes, and send less of it; x is left as the inner one leaves it."""
        payload = self.inner.compress_(x, segments, plan, fresh)
        if not len(plan.choosing):
            return payload
        rooms = torch.tensor(plan.rooms, dtype=torch.int64).to(x.device, non_blocking=True)
        ends = torch.minimum(payload.wanted, rooms).cumsum(0)
        place = torch.arange(payload.positions.numel(), device=x.device)
        # Places behind the last entry belong to one segment more, which stands for nothing.
        owner = torch.searchsorted(ends, place, right=True)
        late = self.delays[payload.positions].to(x.dtype)
        total = x.new_zeros(len(rooms) + 1).index_add_(0, owner, late)
        count = x.new_zeros(len(rooms) + 1).index_add_(0, owner, torch.ones_like(late))
        root = (total / count.clamp(min=1)).clamp(min=1.0).sqrt()
        return replace(payload, values=payload.values / root[owner])
