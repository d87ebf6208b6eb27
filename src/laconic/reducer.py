"""The one object with state: what is owed, the setting, the step. Everything it calls is a pure function.

A step: ``begin_step``, ``begin`` for each bucket as backward fills it, ``end_step``. Nothing is written to
memory and no gradient is handed back until every bucket of the step has come back and all ranks know that
all of it was finite; a poisoned step is dropped whole, on every rank alike.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.futures import Future

from laconic import kernels
from laconic.arguments import check_whole
from laconic.compressors import Dense
from laconic.errors import LaconicError
from laconic.job import Job, Outcome, Part
from laconic.memory import Memory
from laconic.methods import Method
from laconic.stats import Counters, Stats
from laconic.theory import Probe, Watched
from laconic.tuners import Constant
from laconic.types import Compressor, Envelope, Observation, Segments, Steps, Transport

STATE_VERSION = 1
_STATE_KEYS = {"method", "step", "tuner", "setting", "seen", "counters", "theory", "memory"}


class Reducer:
    """Turns each rank's gradients into what the method makes of their mean.

    ``model`` names and sizes the parameters in the model's own order; ``dtype`` is what memory and wire
    values have, ``dtypes`` what gradients have by name, where that is not what ``begin`` is given.
    """

    def __init__(
        self,
        method: Method,
        model: Segments,
        transport: Transport,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        fingerprint: int = 0,
        dtypes: Mapping[str, torch.dtype] | None = None,
        measure_every: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.method, self.transport, self.step = method, transport, 0
        self.outcome = Outcome(skipped=False, notes=None)
        self._model, self._dtype, self._device = model, dtype, torch.device(device)
        self._fingerprint, self._clock = fingerprint, clock
        self._compressor: Compressor = method.compressor
        self._tuner_state = method.tuner.init(method.compressor)
        self._seen = Observation(step=0, entries=0, sent=0, wanted=0, skipped=False)
        self._sends_all = isinstance(method.compressor, Dense)
        kinds = () if method.memory == "none" else ("owed",)
        self._memory = Memory(model, dtype=dtype, device=self._device, kinds=kinds)
        self._probe = self._make_probe(measure_every)
        self._jobs: list[Job] = []
        self._open = self._closed = False
        self._rates: dict[str, float] = {}
        self._factors: dict[str, float] = {}
        self._grad_scale = 1.0
        self._dtypes = dtypes or {}
        self._counters = Counters()
        self._mark = (0, 0)

    def begin_step(self, *, rates: Mapping[str, float] | None = None, grad_scale: float = 1.0) -> None:
        """Open a step. ``rates`` are learning rates by parameter name, ``grad_scale`` a loss scaler's factor."""
        if self._open:
            raise LaconicError(
                f"step {self.step} was begun and never ended: a backward pass broke off. Detach, wrap the model "
                f"in a new DistributedDataParallel, attach that and load the last checkpoint."
            )
        self._open, self._closed = True, False
        self._mark = (self.transport.wire_bytes, self.transport.collectives)
        # A rate so small that its reciprocal overflows is a rate of 0.
        least = torch.finfo(self._dtype).tiny
        self._rates = {name: rate if rate >= least else 0.0 for name, rate in (rates or {}).items()}
        self._grad_scale = grad_scale
        # What turns memory's units back into the caller's; without memory they are the same.
        remembers = self.method.memory != "none"
        units = {name: self._unit(name) or 1.0 for name in self._model.names} if remembers else {}
        self._factors = {name: grad_scale / unit for name, unit in units.items()}
        tuned = self.method.tuner.update(self._tuner_state, self._seen, self._compressor)
        self._tuner_state, self._compressor = tuned

    def begin(self, grad: Tensor, segments: Segments, *, notes: Tensor | None = None) -> Future[Tensor]:
        """Take a bucket over and start its exchange; the future hands ``grad`` back, holding the mean."""
        if not self._open:
            raise LaconicError("begin was called outside a step. Call begin_step first.")
        began = self._clock()
        if self.method.scope == "model":
            job, place = self._whole_job(), Segments(tuple(self._model[name] for name in segments.names))
            for source, target in zip(segments.views(grad), place.views(job.x), strict=True):
                target.copy_(source)
        else:
            x = grad if self._sends_all else grad.to(self._dtype)
            job, place = Job(x, segments), segments
            self._jobs.append(job)
        job.notes = notes if job.notes is None else job.notes
        part = Part(grad, segments, place, self._future())
        job.parts.append(part)
        self._enter(job, place)
        if self.method.scope == "layer":
            self._start(job)
        self._counters.select_seconds += self._clock() - began
        return part.future

    def end_step(self) -> None:
        """Close the step: wait for every exchange, then hand all gradients back, or skip on all ranks."""
        began = self._clock()
        self._closed = True
        if self.method.scope == "model":
            self._start(self._whole_job())
        self._counters.select_seconds += self._clock() - began
        began = self._clock()
        self.transport.drain()
        if not self._jobs and self._open:
            self._settle()
        self._counters.wait_seconds += self._clock() - began

    @property
    def step_shapes_messages(self) -> bool:
        """Whether the size or number of messages depends on the step: a tuner or a probe is at work."""
        return self._probe is not None or not isinstance(self.method.tuner, Constant)

    def stats(self) -> Stats:
        """Return the numbers so far; the norm of what is owed costs a pass over memory."""
        owed = 0.0 if self.method.memory == "none" else float(torch.linalg.vector_norm(self._memory["owed"]))
        return Stats(
            steps=self.step,
            density=self._seen.sent / self._seen.entries if self._seen.entries else 0.0,
            owed_norm=owed,
            **asdict(self._counters),
            history=tuple(self._probe.history) if self._probe else (),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's whole state as plain containers of numbers and tensors, copied."""
        if self._open:
            raise LaconicError(f"step {self.step} is under way. Save between optimizer steps.")
        return {
            "version": STATE_VERSION,
            "method": repr(self.method),
            "memory_unit": self.method.memory,
            "step": self.step,
            "tuner": dict(self._tuner_state),
            "setting": asdict(cast("Dense", self._compressor)),
            "seen": asdict(self._seen),
            "counters": asdict(self._counters),
            "theory": {"xi": self._probe.largest_xi, "fresh": self._probe.largest_fresh} if self._probe else {},
            "memory": self._memory.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; it fits, or nothing is changed.

        The method may differ from the saved one in its settings (the new ones hold), not in the unit of
        what is owed.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict wants what state_dict returned, got {type(state).__name__}.")
        version, unit = state.get("version"), state.get("memory_unit")
        if version != STATE_VERSION:
            raise ValueError(f"the state has version {version}, this laconic reads {STATE_VERSION}.")
        if unit != self.method.memory:
            raise ValueError(
                f"the state's memory is in '{unit}' units, this method keeps '{self.method.memory}'. "
                f"Attach a method with memory='{unit}' to load it."
            )
        missing = sorted(_STATE_KEYS - set(state))
        if missing:
            raise ValueError(f"the state lacks {', '.join(missing)}: it was not saved by link.state_dict().")
        try:
            seen, counters = Observation(**state["seen"]), Counters(**state["counters"])
        except TypeError as error:
            raise ValueError(f"the state was saved by another laconic: {error}.") from error
        self._memory.load_state_dict(state["memory"])
        self.step, self._seen, self._counters = state["step"], seen, counters
        if state["method"] == repr(self.method):
            self._tuner_state = dict(state["tuner"])
            self._compressor = replace(cast("Dense", self.method.compressor), **state["setting"])
        if self._probe is not None:
            # The identity v - x = mean memory says where the drift stands.
            self._probe.drift.write("drift", self._model, self._memory["owed"])
            self._probe.largest_xi = state["theory"].get("xi", 0.0)
            self._probe.largest_fresh = state["theory"].get("fresh", 0.0)

    def _whole_job(self) -> Job:
        if not self._jobs:
            x = torch.zeros(self._model.numel, dtype=self._dtype, device=self._device)
            self._jobs.append(Job(x, self._model))
        return self._jobs[0]

    def _enter(self, job: Job, place: Segments) -> None:
        """Turn the fresh gradients at ``place`` into what is owed, and note what must not be sent."""
        if self.method.memory == "none":
            # A sum of everything shows by itself whether it was finite; a selection would hide it.
            if not self._sends_all:
                job.finite &= all(kernels.all_finite(view) for view in place.views(job.x))
        else:
            scales = [self._unit(name) / self._grad_scale for name in place.names]
            sums = kernels.accumulate_(job.x, self._memory["owed"], scales, place, self._model)
            job.finite &= sums.finite()
            job.hold_(place, {name for name, rate in self._rates.items() if rate == 0.0})
        if not job.finite:
            job.x.zero_()

    def _start(self, job: Job) -> None:
        what = f"{self.method.exchange.name} of {job.segments.label()} in step {self.step}"
        self.transport.start(self._exchange(job), label=what)

    def _exchange(self, job: Job) -> Steps:
        envelope = Envelope(
            step=self.step,
            world_size=self.transport.world_size,
            fingerprint=self._fingerprint,
            rates=zlib.crc32(repr([self._rates.get(name) for name in self._model.names]).encode()),
            finite=job.finite,
            notes=job.notes,
        )
        segments = job.segments.merged() if self.method.scope == "model" else job.segments
        steps = self._rounded(job, segments, envelope)
        if self._probe is None:
            job.mean = yield from steps
        else:
            watched = Watched(
                x=job.x,
                owed=self._memory.read("owed", job.segments),
                held=job.held_back(),
                home=job.segments,
            )
            job.mean = yield from self._probe.watch(watched, segments, self._compressor, envelope, steps)
        if self._closed and all(j.mean is not None for j in self._jobs):
            self._settle()
        return job.mean

    def _rounded(self, job: Job, segments: Segments, envelope: Envelope) -> Steps:
        mean = yield from self.method.exchange.steps(job.x, segments, self._compressor, envelope)
        if mean.finite and self.method.memory != "none":
            job.round_(mean, self._factors, self._dtypes)
        return mean

    def _settle(self) -> None:
        """Every rank has heard every rank: commit the step, or drop it."""
        means = [job.mean for job in self._jobs if job.mean is not None]
        finite = all(mean.finite for mean in means)
        for job in self._jobs:
            if not finite:
                job.poison()
                continue
            if self.method.memory != "none":
                job.commit(self._memory)
            job.hand_back(self._factors)
        if self._probe is not None:
            self._probe.settle(self.step, finite=finite)
        self._counters.skipped_steps += not finite
        self._counters.dense_bytes += sum(job.dense_bytes(self._dtypes) for job in self._jobs)
        self._counters.wire_bytes += self.transport.wire_bytes - self._mark[0]
        self._counters.collectives += self.transport.collectives - self._mark[1]
        self._seen = Observation(
            step=self.step + 1,
            entries=self._model.numel * self.transport.world_size,
            sent=sum(mean.sent for mean in means),
            wanted=sum(mean.wanted for mean in means),
            skipped=not finite,
        )
        self.outcome = Outcome(skipped=not finite, notes=means[0].notes if means else None)
        parts = [part for job in self._jobs for part in job.parts]
        self.step, self._open, self._jobs = self.step + 1, False, []
        for part in parts:
            part.future.set_result(part.grad)

    def _unit(self, name: str) -> float:
        """What one unit of a parameter's gradient counts for in memory; at learning rate 0, nothing."""
        rate = self._rates.get(name, 1.0)
        return rate if self.method.memory == "update" or rate == 0.0 else 1.0

    def _make_probe(self, every: int) -> Probe | None:
        check_whole("measure_every", every, 0, "Write 0 for never, 100 for every hundredth step.")
        if every and self.method.memory == "none":
            raise ValueError(f"{self.method.name} keeps no memory: nothing to measure. Leave measure_every at 0.")
        drift = Memory(self._model, dtype=self._dtype, device=self._device, kinds=("drift",))
        return Probe(every=every, drift=drift) if every else None

    def _future(self) -> Future[Tensor]:
        return Future(devices=[self._device] if self._device.type == "cuda" else None)
