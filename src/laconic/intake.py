"""How a step's gradients become what is owed: the loss scale, local clipping, momentum, the unit of memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from laconic import kernels
from laconic.clipping import LocalClip, clip_factors
from laconic.holding import ALONE, Holding
from laconic.job import Job
from laconic.kernels.copies import numbers_on
from laconic.ledger import Entered
from laconic.memory import Memory
from laconic.method import Method, Unit
from laconic.segments import Segments
from laconic.types import Momentum

_STILL = Momentum(factor=0.0)
_LEAST_RATE = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True)
class Intake:
    """One step's rates, momenta and loss scale, by parameter name."""

    model: Segments
    unit: Unit
    rates: Mapping[str, float]
    momenta: Mapping[str, Momentum]
    grad_scale: float
    clip: LocalClip | None
    world_size: int

    @staticmethod
    def of(
        method: Method,
        model: Segments,
        rates: Mapping[str, float],
        momenta: Mapping[str, Momentum],
        *,
        grad_scale: float,
        world_size: int,
        last: Intake | None = None,
    ) -> Intake:
        """Return the intake of a step by this method: the ``last`` one if it is equal, with all it worked out."""
        # A rate so small that its reciprocal overflows is a rate of 0.
        intake = Intake(
            model=model,
            unit=method.memory,
            rates={name: rate if rate >= _LEAST_RATE else 0.0 for name, rate in rates.items()},
            momenta=dict(momenta),
            grad_scale=grad_scale,
            clip=method.clip,
            world_size=world_size,
        )
        return last if last is not None and last == intake else intake

    @cached_property
    def held(self) -> frozenset[str]:
        """Return the parameters to which nothing can be applied: what they sent would be lost."""
        return frozenset(name for name, rate in self.rates.items() if rate == 0.0)

    @cached_property
    def units(self) -> dict[str, float]:
        """Return what one unit of each parameter's gradient counts for in memory; at learning rate 0, nothing."""
        rates = {name: self.rates.get(name, 1.0) for name in self.model.names}
        if self.unit == "none":
            return dict.fromkeys(rates, 1.0)
        return {name: rate if self.unit == "update" or rate == 0.0 else 1.0 for name, rate in rates.items()}

    @cached_property
    def factors(self) -> dict[str, float]:
        """Return what turns memory's units back into the caller's."""
        return {name: self.grad_scale / (self.units[name] or 1.0) for name in self.model.names}

    @cached_property
    def digest(self) -> int:
        """Digest what all ranks must have in common."""
        momenta = [self.momenta.get(name) for name in self.model.names]
        text = repr([self.rates.get(name) for name in self.model.names]) + (repr(momenta) if self.momenta else "")
        return zlib.crc32(text.encode())

    def norms(self, jobs: Sequence[Job], holding: Holding = ALONE) -> list[Tensor] | None:
        """Return the norms that local clipping looks at, a tensor a job: each parameter's, or the whole model's."""
        if self.clip is None or not jobs:
            return None
        norms = [holding.whole(_norms(job)) for job in jobs]
        if self.grad_scale != 1.0:
            norms = [each / self.grad_scale for each in norms]
        if self.clip.scope == "model":
            every = torch.linalg.vector_norm(self._in_order(jobs, norms))
            norms = [every.expand(len(n)) for n in norms]
        return norms

    def _in_order(self, jobs: Sequence[Job], norms: list[Tensor]) -> Tensor:
        """Lay norms out in the model's order, whatever the buckets: the same bits everywhere."""
        names = tuple(name for job in jobs for name in job.place().names)
        if names == self.model.names:
            return torch.cat(norms) if len(norms) > 1 else norms[0]
        row = {name: i for i, name in enumerate(self.model.names)}
        each = norms[0].new_zeros(len(row))
        each[numbers_on(each.device, tuple(row[name] for name in names))] = torch.cat(norms)
        return each

    def enter_(self, job: Job, memory: Memory, norms: Tensor | None) -> None:
        """Turn the job's fresh gradients into what is owed with them; set aside what must not be sent."""
        place = job.place()
        factors = None
        if norms is not None and self.clip is not None:
            factors = clip_factors(norms, self.clip.threshold(world_size=self.world_size))
        learnt = self._accumulate(job, memory, factors)
        seen = [learnt.largest, learnt.norms] if norms is None else [learnt.largest, learnt.norms, norms]
        # A gradient that is not finite, a sum or a norm that overflows shows here: times 0 it is not a number.
        job.finite = (torch.cat(seen) * 0 == 0).all()
        job.entered = Entered(
            segments=place,
            deviation=learnt.norms / _roots(place, job.x.dtype, job.x.device),
            largest=learnt.largest,
            clipped=None if factors is None else (factors < 1).to(job.x.dtype),
        )
        if self.unit != "none":
            job.hold_(place, self.held)

    def _accumulate(self, job: Job, memory: Memory, factors: Tensor | None) -> kernels.Accumulated:
        owed, velocity = memory.get("owed"), memory.get("velocity")
        if velocity is not None:
            job.velocity = memory.spare("velocity", job.x.numel(), dtype=velocity.dtype)
        begin, all_learnt = 0, []
        for part in job.parts:
            end = begin + len(part.place)
            inflow = self._inflow(part.place, None if factors is None else factors[begin:end], like=job.x)
            places = kernels.Places(grad=part.segments, x=part.place, home=memory.home(part.place))
            learnt = kernels.accumulate_(
                job.x, part.grad, inflow, places, owed=owed, velocity=velocity, proposed=job.velocity
            )
            all_learnt.append(learnt)
            begin = end
        if len(all_learnt) == 1:
            return all_learnt[0]
        nothing = job.x.new_zeros(0)
        return kernels.Accumulated(
            norms=torch.cat([nothing, *(each.norms for each in all_learnt)]),
            largest=torch.cat([nothing, *(each.largest for each in all_learnt)]),
        )

    def _inflow(self, place: Segments, factors: Tensor | None, *, like: Tensor) -> kernels.Inflow:
        key = (place, like.dtype, like.device)
        inflow = self._inflows.get(key)
        if inflow is None:
            inflow = self._inflows[key] = self._unclipped(place, like)
        if factors is None:
            return inflow
        return replace(inflow, gain=factors if self.grad_scale == 1.0 else factors / self.grad_scale)

    @cached_property
    def _inflows(self) -> dict[tuple[Segments, torch.dtype, torch.device], kernels.Inflow]:
        # As long as rates stay what they are, every step needs the same numbers.
        return {}

    def _unclipped(self, place: Segments, like: Tensor) -> kernels.Inflow:
        momenta = [self.momenta.get(name, _STILL) for name in place.names]
        numbers = [
            [1 / self.grad_scale] * len(place),
            [self.units[name] for name in place.names],
            [m.factor for m in momenta],
            [float(m.nesterov) for m in momenta],
        ]
        rows = torch.tensor(numbers, dtype=like.dtype).to(like.device, non_blocking=True)
        return kernels.Inflow(gain=rows[0], unit=rows[1], momentum=rows[2], nesterov=rows[3])


def _norms(job: Job) -> Tensor:
    """The norm of each gradient that came, summed up in memory's dtype."""
    norms = [kernels.segment_norms(p.grad, p.segments, dtype=job.x.dtype) for p in job.parts]
    return norms[0] if len(norms) == 1 else torch.cat([job.x.new_zeros(0), *norms])


@lru_cache(maxsize=1024)
def _roots(segments: Segments, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the roots of the segments' sizes."""
    return torch.tensor([max(1, s.size) for s in segments], dtype=dtype).sqrt().to(device, non_blocking=True)
