"""One exchange of a step, from the gradients that enter it to the gradients it hands back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.futures import Future

from laconic import kernels
from laconic.averaging import add_mean_, dense
from laconic.ledger import Entered, observed
from laconic.memory import Memory, lie_alike
from laconic.segments import Segment, Segments
from laconic.types import Gathered, Mean, Observation


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
    finite: Tensor | bool = True
    notes: Tensor | None = None
    mean: Mean | None = None
    entered: Entered | None = None
    velocity: Tensor | None = None
    stored: bool = False

    def add(self, grad: Tensor, segments: Segments, place: Segments) -> Part:
        """Let a gradient take part, whose parameters lie at ``place`` in x."""
        self.parts.append(Part(grad, segments, place, Future(devices=[grad.device] if grad.is_cuda else None)))
        return self.parts[-1]

    def place(self) -> Segments:
        """Where the parameters that gradients came for lie in x."""
        if len(self.parts) == 1:
            return self.parts[0].place
        return Segments(tuple(segment for part in self.parts for segment in part.place))

    def fill_(self) -> None:
        """Copy the gradients to x as they are."""
        for part in self.parts:
            if part.place is part.segments and part.grad.data_ptr() == self.x.data_ptr():
                continue
            for source, target in zip(part.segments.views(part.grad), part.place.views(self.x), strict=True):
                if source.data_ptr() != target.data_ptr():
                    target.copy_(source)

    def clear_rest_(self) -> None:
        """Make x zero where no gradient came."""
        if len(self.parts) == 1 and len(self.parts[0].place) == len(self.segments):
            return
        came = {name for part in self.parts for name in part.place.names}
        for segment in self.segments:
            if segment.name not in came:
                self.x[segment.offset : segment.offset + segment.size] = 0

    def hold_(self, place: Segments, held: Collection[str]) -> None:
        """Set the named parameters aside; x is left zero there.

        Nothing can be applied to them this step (learning rate 0): what was sent would be lost.
        """
        for segment in place if held else ():
            if segment.name in held:
                view = self.x[segment.offset : segment.offset + segment.size]
                self.held.append((segment, view.clone()))
                view.zero_()

    def round_(self, mean: Mean, factors: Mapping[str, float], dtypes: Mapping[str, torch.dtype]) -> Mean:
        """Round the mean to what narrower gradients can carry; x keeps what that loses, the same on every rank."""
        carried_by = {dtypes.get(s.name, part.grad.dtype) for part in self.parts for s in part.place}
        if carried_by <= {self.x.dtype}:
            return mean
        values = dense(mean.values, self.x)
        for part in self.parts:
            for at in part.place:
                dtype = dtypes.get(at.name, part.grad.dtype)
                if dtype == self.x.dtype:
                    continue
                most = torch.finfo(dtype).max
                value = values[at.offset : at.offset + at.size]
                factor = factors.get(at.name, 1.0)
                carried = (value * factor).clamp_(-most, most).to(dtype).to(value.dtype) / factor
                self.x[at.offset : at.offset + at.size] += value - carried
                value.copy_(carried)
        return replace(mean, values=values)

    def commit(self, memory: Memory, *, step: int, masking: bool, decay: float = 1.0) -> None:
        """Write what was not sent, times ``decay``, the velocity and the step of the last sending to memory."""
        if self._unheard() and not bool(self.finite):
            # It is as if no gradient had come.
            if self.entered is not None:
                self.entered = replace(self.entered, deviation=torch.zeros_like(self.entered.deviation))
            return
        for segment, value in self.held:
            self.x[segment.offset : segment.offset + segment.size] = value
        if decay != 1.0:
            self.x.mul_(decay)
        # Only the parameters that gradients came for: another one keeps what it owes.
        place = self.place()
        kernels.store_(self.x, memory["owed"], kernels.Places(grad=place, x=place, home=memory.home(place)))
        self.stored = True
        if self.velocity is not None:
            if masking:
                self.velocity[self.chosen()] = 0
            memory.write("velocity", place, self.velocity)
        sent_at = memory.get("sent_at")
        if sent_at is not None:
            ages = memory.read("sent_at", self.segments)
            ages[self.chosen()] = step + 1
            for segment in self._whole():
                ages[segment.offset : segment.offset + segment.size] = step + 1
            memory.write("sent_at", self.segments, ages)

    def chosen(self) -> Tensor:
        """The positions in x that this rank sent, but for parameters that every rank sends whole."""
        assert self.mean is not None
        own = self.mean.own
        if self._unheard():
            return torch.empty(0, dtype=torch.int64, device=self.x.device)
        if own is None or self._drawn():
            return torch.nonzero(dense(self.mean.values, self.x)).flatten()
        # A zero that was chosen for want of anything else (a parameter that is held) was not sent.
        return own.positions[own.values != 0]

    def _unheard(self) -> bool:
        """Whether this rank was no sender: others do not know if what it has is finite."""
        return self.mean is not None and self.mean.senders is not None and self.mean.own is None

    def _drawn(self) -> bool:
        """Whether every rank sent the same part of the entries, drawn by all."""
        assert self.mean is not None
        own = self.mean.own
        return own is not None and not self.mean.rooms and own.known.numel() < self.segments.numel

    def _whole(self) -> list[Segment]:
        """The segments of which every rank sent every entry."""
        assert self.mean is not None
        merged = not set(self.mean.rooms) <= set(self.segments.names)
        if self.mean.own is None or merged or self._drawn():
            return []
        held = {segment.name for segment, _ in self.held}
        return [s for s in self.segments if s.name not in self.mean.rooms and s.name not in held]

    def held_back(self) -> Tensor:
        """What was set aside, laid out as x; zero elsewhere."""
        out = torch.zeros_like(self.x)
        for segment, value in self.held:
            out[segment.offset : segment.offset + segment.size] = value
        return out

    def hand_back(self, factors: Mapping[str, float]) -> None:
        """Put the mean, times each parameter's factor, into the gradients it came from. x is used up."""
        assert self.mean is not None
        values = self.mean.values
        if isinstance(values, Gathered):
            # What x held is in memory, or lost on purpose.
            if not self.stored:
                self.x.zero_()
            # Where x is the gradient itself, this is all there is to do.
            add_mean_(self.x, values, self.segments, factors)
            values, factors = self.x, {}
        # A codec without a zero makes something of nothing, and what is held must not move.
        for segment, _ in self.held:
            values[segment.offset : segment.offset + segment.size] = 0
        for part in self.parts:
            if not factors and _all_alike(values, part):
                if values.data_ptr() != part.grad.data_ptr():
                    part.grad.copy_(values)
                continue
            for to, at in zip(part.segments, part.place, strict=True):
                value = values[at.offset : at.offset + at.size]
                target = part.grad[to.offset : to.offset + to.size]
                factor = factors.get(to.name, 1.0)
                # A dense mean is reduced in place and already where it belongs.
                if value.data_ptr() != target.data_ptr():
                    target.copy_(value if factor == 1.0 else value * factor)

    def poison(self) -> None:
        """Show every caller, on every rank alike, that this step has no gradient."""
        for part in self.parts:
            part.grad.fill_(torch.nan)


def _all_alike(values: Tensor, part: Part) -> bool:
    """Whether a part's gradient is all of the values, and laid out as they are."""
    whole = part.segments.numel == values.numel() == part.grad.numel()
    return whole and lie_alike(part.place, part.segments)


@dataclass
class Jobs:
    """The jobs of a step: one a bucket, or one for the ``whole`` model. Vectors have ``dtype``.

    ``dtypes`` are those of gradients by name, where they are not what buckets have.

    With ``sends_all`` nothing is owed, and x may be the gradient itself whatever its dtype.
    """

    model: Segments
    memory: Memory
    dtype: torch.dtype
    whole: bool
    sends_all: bool
    dtypes: Mapping[str, torch.dtype]
    items: list[Job] = field(default_factory=list)
    _dense_bytes: dict[tuple[Segments, torch.dtype], int] = field(default_factory=dict)

    def take(self, grad: Tensor, segments: Segments, notes: Tensor | None) -> tuple[Job, Part]:
        """Take a bucket over; return the job that it belongs to, and its part in it."""
        job = self._whole_of(grad, segments) if self.whole else self._bucket(grad, segments)
        job.notes = notes if job.notes is None else job.notes
        return job, job.add(grad, segments, self.model.among(segments.names) if self.whole else segments)

    def _whole_of(self, grad: Tensor, segments: Segments) -> Job:
        # In place, as a bucket is, where one has all there is.
        close = self._in_place(grad) and grad.numel() == segments.numel
        if not self.items and close and self.memory.is_all(segments):
            self.items.append(Job(grad, self.model))
        return self.whole_job()

    def _in_place(self, grad: Tensor) -> bool:
        return self.sends_all or grad.dtype == self.dtype

    def observed(self, step: int, *, ranks: int, world_size: int, skipped: bool) -> Observation:
        """Return what all ranks agree on of this step, of which ``step`` are over then."""
        numel = sum(job.segments.numel for job in self.items)
        return observed(self.means, step=step, numel=numel, ranks=ranks, world_size=world_size, skipped=skipped)

    def whole_job(self) -> Job:
        """Return the one job of the whole model."""
        if not self.items:
            x = self.memory.spare("x", self.model.numel, dtype=self.dtype)
            self.items.append(Job(x, self.model))
        return self.items[0]

    def to_start(self) -> list[Job]:
        """Return the jobs of a step that waited for all of its buckets; the whole model's also where none came."""
        return [self.whole_job()] if self.whole else self.items

    @property
    def back(self) -> bool:
        """Whether every exchange has returned a mean."""
        return all(job.mean is not None for job in self.items)

    @property
    def means(self) -> list[Mean]:
        """What came back."""
        return [job.mean for job in self.items if job.mean is not None]

    def dense_bytes(self) -> int:
        """How many bytes plain DDP would have handed over for the same gradients."""
        total = 0
        for part in (part for job in self.items for part in job.parts):
            key = (part.segments, part.grad.dtype)
            if key not in self._dense_bytes:
                each = ((s.size, self.dtypes.get(s.name, part.grad.dtype)) for s in part.segments)
                self._dense_bytes[key] = sum(size * dtype.itemsize for size, dtype in each)
            total += self._dense_bytes[key]
        return total

    def end(self) -> None:
        """Give the gradients back to those who wait for them; the next step has jobs of its own."""
        parts, self.items = [part for job in self.items for part in job.parts], []
        for part in parts:
            part.future.set_result(part.grad)

    def _bucket(self, grad: Tensor, segments: Segments) -> Job:
        # In place where it can be: what is owed replaces the gradient, and in the end the mean replaces that.
        x = grad if self._in_place(grad) else self.memory.spare("x", grad.numel(), dtype=self.dtype)
        self.items.append(Job(x, segments))
        return self.items[-1]
