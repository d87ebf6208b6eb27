"""DGC's selection: a threshold estimated from a sample, corrected where it is far off.

Lin et al., "Deep Gradient Compression", ICLR 2018; written from its formulas.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_share, check_whole
from laconic.compressors.selection import density_plan, kept, take_known_
from laconic.segments import Segment, Segments
from laconic.types import Fresh, Payload, Plan

_LEAST_SAMPLE = 256
_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class SampledTopK:
    """Send about the ``density`` share of largest magnitude, never more, by a threshold from a sample.

    A random stride over ``sample`` of the entries (256 at least) gives the threshold. If more than 1.3 times
    the wanted number pass, the exact largest among them are taken; while fewer than 0.8 times pass, the
    threshold falls by a fifth, at most ten times.
    """

    name: ClassVar[str] = "sampled_topk"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = False
    density: float
    sample: float = 0.01
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write SampledTopK(density=0.001).")
        check_share("sample", self.sample, "For 1% of the entries write 0.01.")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def at_density(self, density: float) -> SampledTopK:
        """Return the same selection of another share."""
        return replace(self, density=density)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:  # noqa: ARG002
        """Say that small segments are sent whole, and that each other one sends its share at most."""
        below, density = self.whole_below, self.density
        return density_plan(segments, step=step, rooms={}, whole_below=below, density=density)

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take the entries that pass; leave in x exactly what was not taken."""
        known = take_known_(x, plan)
        passed, thresholds = [], x.new_zeros(len(plan.choosing))
        for i, (segment, room) in enumerate(zip(plan.choosing, plan.rooms, strict=True)):
            magnitude = x[segment.offset : segment.offset + segment.size].abs()
            estimate = self._estimate(magnitude, segment, room, plan.step) if segment.size else x.new_zeros(())
            mask, thresholds[i] = _corrected(magnitude, estimate, room)
            passed.append(mask)
        taken = kernels.take_where_(x, plan.choosing, passed, plan.rooms, turn=plan.step)
        # What was cut off above the share is not owed room later: the share is all that is ever wanted.
        wanted = torch.minimum(taken.wanted, torch.tensor(plan.rooms, dtype=torch.int64, device=x.device))
        return Payload(
            known=known, positions=taken.positions, values=taken.values, wanted=wanted, thresholds=thresholds
        )

    def _estimate(self, magnitude: Tensor, segment: Segment, room: int, step: int) -> Tensor:
        size = magnitude.numel()
        stride = size // min(size, max(_LEAST_SAMPLE, ceil(size * self.sample)))
        source = torch.Generator().manual_seed(zlib.crc32(f"{step}/{segment.name}".encode()))
        seen = magnitude[int(torch.randint(stride, (1,), generator=source)) :: stride]
        return torch.topk(seen, kept(seen.numel(), room / size), sorted=False).values.min()


def _corrected(magnitude: Tensor, threshold: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Return which entries pass, and the threshold that they passed."""
    for _ in range(_ROUNDS):
        passed = magnitude >= threshold
        count = int(torch.count_nonzero(passed))
        if count >= 0.8 * room:
            break
        threshold = threshold * 0.8
    if count > 1.3 * room:
        top = torch.where(passed, magnitude, -1.0).topk(room, sorted=False).indices
        passed = torch.zeros_like(passed).index_fill_(0, top, value=True)
        threshold = magnitude[top].min()
    return passed, threshold
