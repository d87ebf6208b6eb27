"""How a step's gradients become what is owed: the loss scale, local clipping, momentum, the unit of memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from laconic import kernels
from laconic.clipping import LocalClip, clip_factors
from laconic.job import Job
from laconic.ledger import Entered
from laconic.memory import Memory
from laconic.method import Method, Unit
from laconic.segments import Segments
from laconic.types import Momentum


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
    ) -> Intake:
        """Return the intake of a step by this method."""
        # A rate so small that its reciprocal overflows is a rate of 0.
        least = torch.finfo(torch.float32).tiny
        return Intake(
            model=model,
            unit=method.memory,
            rates={name: rate if rate >= least else 0.0 for name, rate in rates.items()},
            momenta=momenta,
            grad_scale=grad_scale,
            clip=method.clip,
            world_size=world_size,
        )

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

    def norms(self, jobs: Sequence[Job]) -> list[Tensor] | None:
        """Return the norms that local clipping looks at, a tensor a job: each parameter's, or the whole model's."""
        if self.clip is None or not jobs:
            return None
        norms = [kernels.segment_norms(job.x, job.place()) / self.grad_scale for job in jobs]
        if self.clip.scope == "model":
            # In the model's order, whatever the buckets: the same bits everywhere.
            row = {name: i for i, name in enumerate(self.model.names)}
            rows = [row[name] for job in jobs for name in job.place().names]
            each = norms[0].new_zeros(len(row))
            each[torch.tensor(rows, dtype=torch.int64).to(each.device, non_blocking=True)] = torch.cat(norms)
            whole = torch.linalg.vector_norm(each)
            norms = [whole.expand(len(n)) for n in norms]
        return norms

    def enter_(self, job: Job, memory: Memory, norms: Tensor | None) -> None:
        """Turn the job's fresh gradients into what is owed with them; set aside what must not be sent."""
        place = job.place()
        factors = None
        if norms is not None and self.clip is not None:
            factors = clip_factors(norms, self.clip.threshold(world_size=self.world_size))
        done = kernels.accumulate_(
            job.x,
            self._inflows(place, factors),
            place,
            self.model,
            owed=memory.get("owed"),
            velocity=memory.get("velocity"),
        )
        roots = torch.tensor([max(1, s.size) for s in place], dtype=job.x.dtype).sqrt()
        job.velocity = done.velocity
        job.finite = done.finite() if norms is None else done.finite() & torch.isfinite(norms).all()
        job.entered = Entered(
            segments=place,
            deviation=done.norms / roots.to(done.norms.device, non_blocking=True),
            largest=done.largest,
            clipped=torch.zeros_like(done.norms) if factors is None else (factors < 1).to(done.norms.dtype),
        )
        if self.unit != "none":
            job.hold_(place, self.held)

    def _inflows(self, place: Segments, factors: Tensor | None) -> list[kernels.Inflow]:
        still = Momentum(factor=0.0)
        flows = []
        for i, name in enumerate(place.names):
            momentum = self.momenta.get(name, still)
            gain: Tensor | float = 1 / self.grad_scale if factors is None else factors[i] / self.grad_scale
            flows.append(
                kernels.Inflow(
                    gain=gain, unit=self.units[name], momentum=momentum.factor, nesterov=momentum.nesterov
                )
            )
        return flows
