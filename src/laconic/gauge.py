"""What a rank tells for tuners that weigh: how large its entries are, and how much of what was sent is used up.

Where what is not sent stays owed, sending less costs no descent, only delay, and that does harm as far as
gradients have changed meanwhile. So the change is measured: along what was sent, by how much has the fresh gradient
fallen? A rank looks along what *others* sent: the noise of its own batch is in what it sent itself and would look
like change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from laconic.job import Job
from laconic.memory import Memory
from laconic.segments import Segments
from laconic.spectrum import SpectrumOf, measure
from laconic.types import Compressor, Gathered, Payload

_MOST_LOOKED_AT = 1 << 12


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """Entries that others sent: where in the model, and what they, the mean and the fresh gradient had there."""

    at: Tensor
    direction: Tensor
    moved: Tensor
    before: Tensor


@dataclass
class Gauge:
    """Looks at the vectors of a step before they are sent, and after; ``of`` says at which."""

    of: SpectrumOf
    memory: Memory
    model: Segments
    told: Tensor | None = None
    _sent: _Sent | None = field(default=None, repr=False)

    def spectrum(
        self, job: Job, segments: Segments, compressor: Compressor, *, step: int, rooms: Mapping[str, int]
    ) -> Tensor | None:
        """Return the spectrum of what a rank may choose from, as bytes."""
        if self.of == "none":
            return None
        choosing, merged = compressor.plan(segments, step=step, rooms=rooms).choosing, segments is not job.segments
        owed, live = self.memory.get("owed") if self.of != "owed" else None, _live(job)
        if owed is None or (merged and len(live) == len(job.segments)):
            # All parameters as one are laid out as memory is.
            return measure(job.x, choosing, turn=step, minus=owed, home=choosing)
        # Nothing fresh came for parameters that are not live, and x is zero there whatever they owe.
        names = set(job.segments.names if merged else choosing.names)
        choosing = job.segments.among(tuple(name for name in live if name in names))
        return measure(job.x, choosing, turn=step, minus=owed, home=self.memory.home(choosing))

    def look(self, jobs: Sequence[Job], *, rank: int) -> None:
        """Compare with the step before and remember this one: all have come back, none is written to memory yet.

        Of a step that is dropped there are no jobs, and nothing to compare the next one with.
        """
        if self.of != "change":
            return
        sent, self.told, self._sent = self._sent, None, None
        if sent is not None and jobs:
            now, came = self._fresh(jobs, sent.at, rank)
            direction = torch.where(came, sent.direction, 0)
            pair = torch.stack([(direction * (sent.before - now)).sum(), (direction * sent.moved).sum()])
            self.told = pair.to(torch.float32)
        self._sent = self._remember(jobs, rank)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what must outlive a restart."""
        sent = {} if self._sent is None else vars(self._sent)
        return {**sent, **({} if self.told is None else {"told": self.told})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        device = self.memory.device
        saved = {key: value.to(device) for key, value in state.items()}
        self.told = saved.pop("told", None)
        self._sent = _Sent(**saved) if saved else None

    def _remember(self, jobs: Sequence[Job], rank: int) -> _Sent | None:
        parts = []
        for job in jobs:
            assert job.mean is not None
            values = job.mean.values
            # A mean that was rounded for narrow gradients is a vector; nobody's part shows in it.
            if not isinstance(values, Gathered):
                return None
            mine = _place_of(job, rank)
            others = [p for i, p in enumerate(values.payloads) if i != mine or len(values.payloads) == 1]
            stride = max(1, -(-sum(p.positions.numel() for p in others) // _MOST_LOOKED_AT))
            at = torch.cat([p.positions[::stride] for p in others]).to(torch.int64)
            direction = torch.cat([p.values[::stride] for p in others]).to(torch.float64)
            moved = sum((_values_at(p, at) for p in values.payloads), torch.zeros_like(direction))
            parts.append((self._home(job, at), direction, moved / len(values.payloads)))
        if not parts:
            return None
        home, direction, moved = (torch.cat(column) for column in zip(*parts, strict=True))
        return _Sent(at=home, direction=direction, moved=moved, before=self._fresh(jobs, home, rank)[0])

    def _home(self, job: Job, at: Tensor) -> Tensor:
        """Return where positions in a job's vector lie in the model."""
        starts, shifts = self._shifts(job.segments, at.device)
        return at + shifts[torch.searchsorted(starts, at, right=True) - 1]

    def _shifts(self, segments: Segments, device: torch.device) -> tuple[Tensor, Tensor]:
        starts = torch.tensor([s.offset for s in segments], dtype=torch.int64)
        homes = torch.tensor([s.offset for s in self.memory.home(segments)], dtype=torch.int64)
        return starts.to(device), (homes - starts).to(device)

    def _fresh(self, jobs: Sequence[Job], home: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """Return what this step added at these places of the model, and where a gradient came; elsewhere zero."""
        out = torch.zeros(home.shape, dtype=torch.float64, device=home.device)
        came = torch.zeros(home.shape, dtype=torch.bool, device=home.device)
        owed = self.memory.get("owed")
        parameter = torch.searchsorted(self._starts(home.device), home, right=True) - 1
        for job in jobs:
            if not job.x.numel():
                continue
            at, here = self._within(job.segments.among(_live(job)), home, parameter)
            value = job.x[at].to(torch.float64)
            own = _own(job, rank)
            if own is not None:
                value = value + _values_at(own, at)
            out = torch.where(here, value if owed is None else value - owed[home], out)
            came = came | here
        return out, came

    def _starts(self, device: torch.device) -> Tensor:
        return torch.tensor([s.offset for s in self.model], dtype=torch.int64).to(device)

    def _within(self, segments: Segments, home: Tensor, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """Return where places of the model lie in a job's vector, and whether they do; elsewhere the first one."""
        row = {name: i for i, name in enumerate(self.model.names)}
        shift = torch.zeros(len(self.model), dtype=torch.int64)
        has = torch.zeros(len(self.model), dtype=torch.bool)
        for segment, own in zip(segments, self.memory.home(segments), strict=True):
            shift[row[segment.name]], has[row[segment.name]] = segment.offset - own.offset, True
        here = has.to(home.device)[parameter]
        return torch.where(here, home + shift.to(home.device)[parameter], 0), here


def _live(job: Job) -> tuple[str, ...]:
    """Return the parameters that a gradient came for and that may send."""
    held = {segment.name for segment, _ in job.held}
    return tuple(name for name in job.place().names if name not in held)


def _own(job: Job, rank: int) -> Payload | None:
    """Return what a rank sent, as it arrived; None if it did not."""
    place = _place_of(job, rank)
    gathered = job.mean is not None and isinstance(job.mean.values, Gathered) and place >= 0
    return job.mean.values.payloads[place] if gathered else None  # type: ignore[union-attr]


def _place_of(job: Job, rank: int) -> int:
    """Return where a rank stands among those that sent; -1 if it did not."""
    assert job.mean is not None
    senders = job.mean.senders
    return rank if senders is None else senders.index(rank) if rank in senders else -1


def _values_at(payload: Payload, at: Tensor) -> Tensor:
    """Return the values that a rank sent for these positions, zero where it sent none."""
    positions = payload.positions.to(torch.int64)
    if not positions.numel():
        return torch.zeros(at.shape, dtype=torch.float64, device=at.device)
    place = torch.searchsorted(positions, at).clamp(max=positions.numel() - 1)
    return torch.where(positions[place] == at, payload.values[place], 0).to(torch.float64)
