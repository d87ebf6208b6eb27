"""Magnitude selection chunk by chunk: the k entries of largest magnitude of every few thousand.

SparseLoCo (2025), written from its formulas; its chunks are blocks of matrices, ours are consecutive entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from laconic.arguments import check_share, check_whole
from laconic.compressors.selection import fixed_plan, kept, take_known_
from laconic.segments import Segment, Segments
from laconic.types import Fresh, Payload, Plan


@dataclass(frozen=True, kw_only=True)
class ChunkTopK:
    """Send the ``k`` entries of largest magnitude of every ``chunk`` consecutive entries of a segment.

    A segment's last chunk may be shorter and sends its share, at least one entry. No part of a parameter starves,
    and selecting needs no pass over the whole of it. Segments with fewer than ``whole_below`` entries are
    sent whole. Among entries of equal magnitude any may be taken.

    >>> from laconic import kernels
    >>> x, segments = torch.tensor([3.0, -1.0, 0.5, 2.0, -0.25]), Segments.of(["w"], [5])
    >>> rule = ChunkTopK(k=1, chunk=2, whole_below=0)
    >>> plan = rule.plan(segments, step=0, rooms={})
    >>> rule.compress_(x, segments, plan, kernels.fresh_of(x, segments)).positions, x
    (tensor([0, 3, 4]), tensor([ 0.0000, -1.0000,  0.5000,  0.0000,  0.0000]))
    """

    name: ClassVar[str] = "chunk_topk"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = False
    reads_before: ClassVar[bool] = False
    k: int = 64
    chunk: int = 4096
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_whole("k", self.k, 1, "It counts entries of a chunk: 64 of 4096 are 1.6%.")
        check_whole("chunk", self.chunk, 1, "It counts consecutive entries, say 4096.")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")
        if self.k > self.chunk:
            raise ValueError(
                f"k must be a whole number of at most chunk={self.chunk}, got {self.k!r}. With k=chunk all is sent."
            )

    @property
    def density(self) -> float:
        """The share of a chunk that is sent."""
        return self.k / self.chunk

    def at_density(self, density: float) -> ChunkTopK:
        """Return the same selection with the k nearest to another share, at least 1."""
        check_share("density", density, "For 1.6% write 0.016.")
        return replace(self, k=max(1, round(density * self.chunk)))

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:  # noqa: ARG002
        """Say that small segments are sent whole and what all chunks of each other one send together."""
        return fixed_plan(
            segments,
            whole_below=self.whole_below,
            room=lambda size: size // self.chunk * self.k + kept(size % self.chunk, self.density),
        )

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take each chunk's largest entries; leave in x exactly what was not taken."""
        known = take_known_(x, plan)
        found = [torch.empty(0, dtype=torch.int64, device=x.device)]
        for segment in plan.choosing:
            found += self._largest(x, segment)
        positions = torch.cat(found)
        values = x[positions]
        # Assigning a number would make the host wait.
        x.index_fill_(0, positions, 0)
        wanted = torch.tensor(plan.rooms, dtype=torch.int64).to(x.device, non_blocking=True)
        return Payload(known=known, positions=positions, values=values, wanted=wanted)

    def _largest(self, x: Tensor, segment: Segment) -> list[Tensor]:
        """Return the positions of what is sent of the whole chunks, and of the rest, each ascending."""
        rest = segment.size % self.chunk
        magnitude = x[segment.offset : segment.offset + segment.size].abs()
        chunks, last = magnitude[: segment.size - rest].view(-1, self.chunk), magnitude[segment.size - rest :]
        tops = torch.topk(chunks, self.k, sorted=False).indices.sort().values
        starts = segment.offset + self.chunk * torch.arange(len(chunks), device=x.device)
        few = torch.topk(last, kept(rest, self.density), sorted=False).indices.sort().values
        return [(tops + starts.unsqueeze(1)).flatten(), few + (segment.offset + segment.size - rest)]
