"""Everything: the parent that every method equals when it sends all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Send every entry; nothing stays owed."""

    name: ClassVar[str] = "dense"
    ranks_choose: ClassVar[bool] = False
    counts_vary: ClassVar[bool] = False
    reads_before: ClassVar[bool] = False

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:  # noqa: ARG002
        """Say that all entries are known to be sent."""
        return Plan(known=slice(0, segments.numel), known_sizes=tuple(s.size for s in segments))

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take every entry; x is left zero."""
        sent = x.clone()
        x.zero_()
        nothing = torch.empty(0, dtype=torch.int64, device=x.device)
        return Payload(known=sent, positions=nothing, values=x[:0], wanted=nothing)
