"""The one object with state: what is owed, the setting, the step. Everything it calls is a pure function.

A step: ``begin_step``, ``begin`` for each bucket as backward fills it, ``end_step``. Nothing is written to
memory and no gradient is handed back until every bucket of the step has come back and all ranks know that
all of it was finite; a poisoned step is dropped whole, on every rank alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, replace
from math import nan
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from laconic.collectives import Reply, Request, Traffic, Transport
from laconic.compressors import Dense
from laconic.diagnosis import let_guard_look, summary
from laconic.errors import LaconicError, broken_off
from laconic.holding import ALONE, Holding
from laconic.intake import Intake
from laconic.job import Job, Jobs, Outcome, Part
from laconic.method import Method
from laconic.nodes import Nodes, Told, raising
from laconic.pace import Stopwatch
from laconic.segments import Segments
from laconic.state import State
from laconic.stats import Stats
from laconic.types import Compressor, Envelope, Exchange, Momentum, Steps


class Reducer:
    """Turns each rank's gradients into what the method makes of their mean.

    ``model`` names and sizes the parameters in the model's own order; ``dtype`` is what memory and wire values
    have, ``dtypes`` what gradients have by name, where that is not what ``begin`` is given.
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
        velocity: bool = False,
        track_age: bool = False,
        measure_every: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        holding: Holding = ALONE,
    ) -> None:
        self.method, self.transport, self._nodes = method, transport, Nodes.of(method, transport)
        self.outcome, self.loss = Outcome(skipped=False, notes=None), nan
        self._model, self._dtype, self._device = model, dtype, torch.device(device)
        self._fingerprint, self._watch = fingerprint, Stopwatch(clock)
        self._dtypes, self._holding = dtypes or {}, holding
        self._sends_all = isinstance(method.compressor, Dense) and method.exchange.lossless
        # Clipping or selecting over the whole model needs all buckets.
        self._waits = method.scope == "model" or (method.clip is not None and method.clip.scope == "model")
        self._state = State.begin(
            method, model, dtype=dtype, device=self._device, rank=transport.rank, velocity=velocity,
            track_age=track_age, measure_every=measure_every,
        )  # fmt: skip
        self._merged = model.merged() if method.scope == "model" else None
        self._jobs = Jobs(model, self._state.memory, dtype, bool(self._merged), self._sends_all, self._dtypes)
        self._open = self._closed = False
        self._senders: tuple[int, ...] | None = None
        self._sending = self._nodes.count
        # By what every entry is sent in this step; None: the method sends, and learns from it.
        self._whole: Exchange | None = None
        # What the ranks of this node have told, and how many gradients wait for their mean.
        self._told, self._averaging = Told(), 0
        self._before = Traffic.of(transport)
        self._intake = Intake.of(method, model, {}, {}, grad_scale=1.0, world_size=self._nodes.count)

    @property
    def step(self) -> int:
        """How many steps were ended."""
        return self._state.step

    def start_velocity(self, velocity: Mapping[str, Tensor]) -> None:
        """Begin with the velocity that an optimizer had, by parameter name."""
        for name, values in velocity.items():
            self._state.memory.write("velocity", Segments.of([name], [values.numel()]), values)

    def begin_step(
        self,
        *,
        rates: Mapping[str, float] | None = None,
        momenta: Mapping[str, Momentum] | None = None,
        grad_scale: float = 1.0,
        senders: tuple[int, ...] | None = None,
        whole: Exchange | None = None,
    ) -> None:
        """Open a step.

        ``rates`` are learning rates by parameter name, ``momenta`` what the method applies in the optimizer's
        stead, ``grad_scale`` a loss scaler's factor, ``senders`` the ranks that send (None: all); all others hear.
        ``whole``: every entry is sent, by this exchange, and neither tuner nor gauge learn of it.
        """
        if self._open:
            raise broken_off(self.step)
        self._open, self._closed = True, False
        self._state.memory.reclaim()
        self._before, self._told = Traffic.of(self.transport), Told()
        state, ranks = self._state, self._nodes.count
        self._senders, self._sending = senders, ranks if senders is None else len(senders)
        self._whole = whole
        self._intake = Intake.of(
            self.method, self._model, rates or {}, momenta or {}, grad_scale=grad_scale, world_size=ranks,
            last=self._intake,
        )  # fmt: skip
        state.ledger.begin(self._intake.units)
        if whole is None:
            state.tuner, state.setting = self.method.tuner.update(state.tuner, state.ledger.seen, state.setting)

    def begin(self, grad: Tensor, segments: Segments, *, notes: Tensor | None = None) -> Future[Tensor]:
        """Take a bucket over and start its exchange; the future hands ``grad`` back, holding the mean."""
        if not self._open:
            raise LaconicError("begin was called outside a step. Call begin_step first.")
        with self._watch.selecting(self._state.counters):
            first = not self._jobs.items
            job, part = self._jobs.take(grad, segments, notes)
            if self._nodes.size > 1:
                self._ask_node(job, part, first=first)
            elif not self._waits:
                self._start([job])
        return part.future

    def end_step(self) -> None:
        """Close the step: wait for every exchange, then hand all gradients back, or skip on all ranks."""
        if self._open and self._closed:
            # Its exchange raised: what was to be sent is used up.
            raise broken_off(self.step)
        self._closed, counters = True, self._state.counters
        with self._watch.selecting(counters):
            if self._waits and not self._averaging:
                self._start(self._jobs.to_start())
        with self._watch.waiting(counters):
            self.transport.drain()
            if self._open and self._jobs.back:
                self._settle()

    @property
    def step_shapes_messages(self) -> bool:
        """Whether the size or number of messages depends on the step."""
        return self._state.step_shapes_messages

    def agreement(self) -> str:
        """Name what shapes the next messages: equal on all ranks that are where this one is."""
        return self._state.agreement()

    @property
    def open(self) -> bool:
        """Whether a step is under way."""
        return self._open

    def owed(self, segments: Segments, *, out: Tensor) -> Tensor:
        """Return what this rank owes of these parameters, to be read: where it lies, or laid out in ``out``."""
        return self._state.memory.look("owed", segments, out=out)

    def take_outcome(self) -> Outcome:
        """Return how the last step ended; who acts on a skipped one takes it off the table."""
        ended, self.outcome = self.outcome, replace(self.outcome, skipped=False)
        return ended

    def stats(self) -> Stats:
        """Return the numbers so far; the norms of what is owed cost a pass over memory."""
        return summary(self._state)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's whole state as plain containers of numbers and tensors, copied."""
        if self._open:
            raise LaconicError(f"step {self.step} is under way. Save between optimizer steps.")
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; it fits, or nothing is changed."""
        self._state.load_state_dict(state)
        self._watch = Stopwatch(self._watch.clock)

    def _ask_node(self, job: Job, part: Part, *, first: bool) -> None:
        """Start to average a gradient over the ranks of this node, who with the first one tell each other more."""
        what = f"of {part.segments.label()} in step {self.step}, among the ranks of a node"
        if first:
            self.transport.start(self._hear_node(job), label=f"what is told {what}")
        self._averaging += 1
        self.transport.start(self._average(job, part), label=f"the mean {what}")

    def _hear_node(self, job: Job) -> Generator[Request, Reply, None]:
        scale, rates = self._intake.grad_scale, self._intake.digest
        state = f"step {self.step}, rates {rates}, loss scale {scale:g}, fingerprint {self._fingerprint}"
        self._told = yield from self._nodes.tell(state, self.loss, job.notes, self._device)
        self.loss, job.notes = self._told.loss, self._told.notes

    def _average(self, job: Job, part: Part) -> Generator[Request, Reply, None]:
        yield from self._nodes.average_(part.grad)
        self._averaging -= 1
        if self._waits and (self._averaging or not self._closed):
            return
        # Others are under way: these are issued behind them, in the same order on all ranks.
        with self._watch.selecting(self._state.counters):
            self._start(self._jobs.to_start() if self._waits else [job])

    def _start(self, jobs: list[Job]) -> None:
        """Turn the fresh gradients of these jobs into what is owed, and start their exchanges."""
        norms = self._intake.norms(jobs, self._holding)
        for i, job in enumerate(jobs):
            job.clear_rest_()
            # Where everything is sent a sum shows by itself whether it was finite; a selection would hide it.
            if self._sends_all:
                job.fill_()
            else:
                self._intake.enter_(job, self._state.memory, None if norms is None else norms[i])
            what = f"{self.method.exchange.name} of {job.segments.label()} in step {self.step}"
            self.transport.start(self._exchange(job), label=what)

    def _exchange(self, job: Job) -> Steps:
        # Of all entries together the small parameters' are smaller than any one scale could say.
        segments = job.segments if self._whole else self._merged or job.segments
        compressor = Dense() if self._whole else self._state.compressor(job)
        envelope = self._envelope(job, segments)
        steps = self._rounded(job, segments, compressor, envelope)
        job.mean = yield from self._state.measured(job, segments, compressor, envelope, steps)
        if self._closed and self._jobs.back:
            self._settle()
        return job.mean

    def _envelope(self, job: Job, segments: Segments) -> Envelope:
        state, rooms = self._state, self._state.ledger.rooms
        return Envelope(
            step=self.step, world_size=self.transport.world_size, fingerprint=self._fingerprint,
            # No digest is below 0: where ranks of this node are unlike, every other node is to notice.
            rates=self._intake.digest if self._told.unlike is None else -1,
            finite=job.finite,
            notes=job.notes, rooms=rooms, fresh=state.fresh(job, merged=self._merged is not None),
            loss=self.loss, alarmed=state.alarm.raised, pace=self._watch.pace,
            spectrum=state.gauge.spectrum(job, segments, state.setting, step=self.step, rooms=rooms),
            change=state.gauge.told, senders=self._senders, rank=self.transport.rank, kept=state.kept,
        )  # fmt: skip

    def _rounded(self, job: Job, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        carrier = self._whole or self.method.exchange
        mean = yield from raising(carrier.steps(job.x, segments, compressor, envelope), self._told)
        remembers = mean.finite and self.method.memory != "none"
        return job.round_(mean, self._intake.factors, self._dtypes) if remembers else mean

    def _settle(self) -> None:
        """Every rank has heard every rank: commit the step, or drop it."""
        jobs, means = self._jobs.items, self._jobs.means
        finite = all(mean.finite for mean in means)
        # A dense gradient never left the caller's units.
        factors = {} if self._sends_all else self._intake.factors
        seen = self._jobs.observed(
            self.step + 1, ranks=self._sending, world_size=self._nodes.count, skipped=not finite
        )
        if self._whole is None:
            self._state.ledger.seen = seen
            self._state.gauge.look(jobs if finite else [], rank=self._nodes.own)
        for job in jobs:
            if finite:
                self._commit(job)
                job.hand_back(factors)
            else:
                job.poison()
        if self._state.probe is not None:
            self._state.probe.settle(self.step, finite=finite)
        self._count(finite=finite)
        self.outcome = Outcome(skipped=not finite, notes=means[0].notes if means else None)
        self._state.step, self._open, self.loss = self.step + 1, False, nan
        self._jobs.end()
        # Last: it may warn, and where warnings are errors the step is whole all the same.
        self._state.alarm.hear(seen)

    def _commit(self, job: Job) -> None:
        if self.method.memory != "none":
            job.commit(self._state.memory, step=self.step, masking=self.method.masking, decay=self.method.decay)
        assert job.mean is not None
        self._state.kept |= job.mean.kept
        if job.entered is not None and self._whole is None:
            self._state.ledger.commit(job.entered, job.mean, world_size=self._sending)

    def _count(self, *, finite: bool) -> None:
        """Add the step up, and let the guard look."""
        counters = self._state.counters
        counters.skipped_steps += not finite
        counters.dense_bytes += self._jobs.dense_bytes()
        for name, count in asdict(Traffic.of(self.transport) - self._before).items():
            setattr(counters, name, getattr(counters, name) + count)
        if finite:
            let_guard_look(self._state)
