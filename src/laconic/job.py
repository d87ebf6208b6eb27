"""One exchange of a step, from the gradients that enter it to the gradients it hands back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from laconic.memory import Memory
from laconic.types import Mean, Segment, Segments


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a step ended: whether all ranks skipped it, and the sum of their notes."""

    skipped: bool
    notes: Tensor | None


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

    def hold_(self, place: Segments, held: Collection[str]) -> None:
        """Set the named parameters aside; x is left zero there.

        Nothing can be applied to them this step (learning rate 0): what was sent would be lost.
        """
        for segment in place:
            if segment.name in held:
                view = self.x[segment.offset : segment.offset + segment.size]
                self.held.append((segment, view.clone()))
                view.zero_()

    def round_(self, mean: Mean, factors: Mapping[str, float], dtypes: Mapping[str, torch.dtype]) -> None:
        """Round the mean to what narrower gradients can carry; x keeps what that loses, the same on every rank."""
        for part in self.parts:
            for at in part.place:
                dtype = dtypes.get(at.name, part.grad.dtype)
                if dtype == self.x.dtype:
                    continue
                most = torch.finfo(dtype).max
                value = mean.values[at.offset : at.offset + at.size]
                factor = factors.get(at.name, 1.0)
                carried = (value * factor).clamp_(-most, most).to(dtype).to(value.dtype) / factor
                self.x[at.offset : at.offset + at.size] += value - carried
                value.copy_(carried)

    def commit(self, memory: Memory) -> None:
        """Write what was not sent to memory."""
        for segment, value in self.held:
            self.x[segment.offset : segment.offset + segment.size] = value
        # By part: a parameter that no gradient came for this step keeps what it owes.
        for part in self.parts:
            memory.write("owed", part.place, self.x)

    def held_back(self) -> Tensor:
        """What was set aside, laid out as x; zero elsewhere."""
        out = torch.zeros_like(self.x)
        for segment, value in self.held:
            out[segment.offset : segment.offset + segment.size] = value
        return out

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

    def dense_bytes(self, dtypes: Mapping[str, torch.dtype]) -> int:
        """How many bytes plain DDP would have handed over for the same gradients."""
        return sum(s.size * dtypes.get(s.name, p.grad.dtype).itemsize for p in self.parts for s in p.segments)

    def poison(self) -> None:
        """Show every caller, on every rank alike, that this step has no gradient."""
        for part in self.parts:
            part.grad.fill_(torch.nan)
