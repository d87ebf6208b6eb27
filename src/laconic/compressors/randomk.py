"""Random selection with a seed all ranks share: the baseline that magnitude selection must beat.

Because every rank draws the same entries, positions never travel and the values can be all-reduced.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from laconic.arguments import check_share, check_whole
from laconic.compressors.selection import kept, take_known_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan


@dataclass(frozen=True, kw_only=True)
class RandomK:
    """Send a fresh random ``density`` share of each segment, at least one entry, the same on every rank.

    The draw depends on the seed, the step and the segment's name alone, so it does not change when
    parameters move between buckets or when a run is resumed.
    """

    name: ClassVar[str] = "randomk"
    ranks_choose: ClassVar[bool] = False
    counts_vary: ClassVar[bool] = False
    reads_before: ClassVar[bool] = False
    density: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write RandomK(density=0.001).")
        check_whole("seed", self.seed, 0, "Give every rank the same one.")

    def at_density(self, density: float) -> RandomK:
        """Return the same selection of another share."""
        return replace(self, density=density)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:  # noqa: ARG002
        """Draw this step's entries; every rank draws the same."""
        drawn = [self._draw(s.name, s.size, step) + s.offset for s in segments]
        known = torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.int64)
        return Plan(known=known, known_sizes=tuple(d.numel() for d in drawn))

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take the drawn entries; leave in x exactly what was not taken."""
        nothing = torch.empty(0, dtype=torch.int64, device=x.device)
        return Payload(known=take_known_(x, plan), positions=nothing, values=x[:0], wanted=nothing)

    def _draw(self, name: str, size: int, step: int) -> Tensor:
        source = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{step}/{name}".encode()))
        return torch.randperm(size, generator=source)[: kept(size, self.density)].sort().values
