"""One exchange of a step, from the gradients that enter it to the gradients it hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from laconic.memory import Memory
from laconic.types import Mean, Segment, Segments


@dataclass
class Part:
    """A gradient to hand the mean back to; ``place`` says where its parameters lie in the job's vector."""

    grad: Tensor
    segments: Segments
    place: Segments
    future: Future[Tensor]


@dataclass
class Job:
    """A bucket, or the whole model: the vector, where it came from, and in the end the mean."""

    x: Tensor
    segments: Segments
    parts: list[Part] = field(default_factory=list)
    held: list[tuple[Segment, Tensor]] = field(default_factory=list)
    finite: bool = True
    notes: Tensor | None = None
    mean: Mean | None = None

    def hold_(self, place: Segments, rates: Mapping[str, float]) -> None:
        """Set segments at learning rate 0 aside; x is left zero there.

        Nothing can be applied to them this step: what was sent would be multiplied by 0 and lost.
        """
        for segment in place:
            if rates.get(segment.name, 1.0) == 0.0:
                view = self.x[segment.offset : segment.offset + segment.size]
                self.held.append((segment, view.clone()))
                view.zero_()

    def commit(self, memory: Memory) -> None:
        """Write what was not sent to memory."""
        for segment, value in self.held:
            self.x[segment.offset : segment.offset + segment.size] = value
        memory.write(self.segments, self.x)

    def hand_back(self, factors: Mapping[str, float]) -> None:
        """Put the mean, times each parameter's factor, into the gradients it came from."""
        assert self.mean is not None
        for part in self.parts:
            for to, at in zip(part.segments, part.place, strict=True):
                value = self.mean.values[at.offset : at.offset + at.size]
                target = part.grad[to.offset : to.offset + to.size]
                factor = factors.get(to.name, 1.0)
                # A dense mean is reduced in place and already where it belongs.
                if value.data_ptr() != target.data_ptr():
                    target.copy_(value if factor == 1.0 else value * factor)

    def poison(self) -> None:
        """Show every caller, on every rank alike, that this step has no gradient."""
        for part in self.parts:
            part.grad.fill_(torch.nan)
