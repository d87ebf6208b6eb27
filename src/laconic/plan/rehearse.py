"""A rehearsal: a method's own code on the work's layout and gradients, on a few ranks of one process.

Ranks take turns, so that what one does is timed by itself; what they ask of each other is noted, not modelled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import cast

import torch
from torch import Tensor, nn

from laconic.collectives import Transport
from laconic.exchanges import TwoLevel
from laconic.local import Every
from laconic.local.steps import Buffers
from laconic.method import Method
from laconic.plan.bucketed import now
from laconic.plan.ear import Clock, Ear
from laconic.plan.facts import Job, Rehearsal, Round
from laconic.reducer import Reducer
from laconic.rounds import Rounds
from laconic.segments import Segments
from laconic.sim.network import Call, Network
from laconic.transports import Lockstep
from laconic.types import Momentum

# Local steps between two exchanges of a rehearsal: one that has none, one that has.
_EVERY = 2
_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is rehearsed on, and how often: buckets of parameters in DDP's order, gradients of some steps.

    A rehearsal ends after ``seconds``, with three timed steps at least. ``buffers`` are sizes of BatchNorm's
    running means, which local methods average, too; ``momentum`` is that of an SGD optimizer.
    """

    buckets: tuple[Segments, ...]
    gradients: tuple[tuple[Tensor, ...], ...]
    warmup: int
    steps: int
    seconds: float
    network: Network | None = None
    buffers: tuple[int, ...] = ()
    momentum: float = 0.0

    @property
    def device(self) -> torch.device:
        """Where the gradients lie."""
        return self.gradients[0][0].device

    def gradient(self, step: int, rank: int) -> tuple[Tensor, ...]:
        """Return a rank's gradients of a step."""
        return self.gradients[(step + rank) % len(self.gradients)]

    def model(self) -> Segments:
        """Return the whole model, in its own order: DDP fills buckets from its end."""
        items = [s for bucket in self.buckets for s in bucket][::-1]
        return Segments.of([s.name for s in items], [s.size for s in items], [s.rows for s in items])

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return parameters as large as the model's, by name."""
        shapes = {s.name: (s.rows, s.size // s.rows) for s in self.model()}
        return {name: nn.Parameter(torch.zeros(shape, device=self.device)) for name, shape in shapes.items()}

    def module(self) -> nn.Module:
        """Return a module that has running statistics as large as the model's, and nothing else."""
        return nn.Sequential(*(nn.BatchNorm1d(n, affine=False, device=self.device) for n in self.buffers))


@dataclass(frozen=True, kw_only=True)
class LocalSeen:
    """A local method as rehearsed: the seconds it works in each step, and its exchange."""

    step: float
    exchange: Rehearsal


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What one rank did in one step."""

    selecting: tuple[float, ...]
    closing: float
    jobs: tuple[Job, ...]


def rehearse(method: Method, stage: Stage, *, ranks: int) -> Rehearsal:
    """Have so many workers exchange gradients by a method, bucket by bucket; a worker may be a node."""
    node_size = method.exchange.node_size or 1 if isinstance(method.exchange, TwoLevel) else 1
    seen: list[list[_Step]] = [[] for _ in range(ranks * node_size)]
    world = _World(ranks * node_size, node_size=node_size, stage=stage)

    def rank(ear: Ear) -> None:
        reducer = _reducer(method, stage, ear, world.clock)
        names = stage.model().names
        momenta = {name: Momentum(factor=stage.momentum) for name in names} if _moves(method, stage) else None
        rates = dict.fromkeys(names, _RATE)
        until = time.perf_counter() + stage.seconds
        for step in range(stage.warmup + stage.steps):
            buffers = [g.clone() for g in stage.gradient(step, ear.rank)]
            ear.clear()
            if method.needs_loss:
                reducer.loss = 1.0
            reducer.begin_step(rates=rates, momenta=momenta)
            seen[ear.rank].append(_exchanged(reducer, ear, stage, buffers))
            if world.over(step, stage, until):
                break

    world.run(rank)
    return _summary([steps[-_kept(len(steps), stage) :] for steps in seen], ranks)


def rehearse_local(method: Method, stage: Stage, *, ranks: int) -> LocalSeen:
    """Have ranks take local steps, each with parameters of its own, and exchange how far they walked."""
    assert method.local is not None
    # What comes before local steps begin is not what a run is made of; statistics made anew would want its inputs.
    start = None if method.local.start is None else 0
    care: Buffers = "keep" if method.local.buffers == "keep" else "average"
    local = replace(method.local, period=Every(steps=_EVERY), start=start, buffers=care)
    brief = replace(method, local=local)
    world = _World(ranks, node_size=1, stage=stage)
    plain: list[float] = []
    chains: list[list[list[float | Call]]] = [[] for _ in range(ranks)]

    def rank(ear: Ear) -> None:
        parameters = stage.parameters()
        optimizer = torch.optim.SGD(parameters.values(), lr=_RATE)
        reducer = _reducer(brief, stage, ear, world.clock)
        rounds = Rounds(brief, stage.module(), parameters, optimizer, reducer, cast("Transport", ear))
        rounds.begin()
        until = time.perf_counter() + stage.seconds
        for step in range(_EVERY * (stage.warmup + stage.steps)):
            _set_gradients(parameters, stage, step, ear.rank)
            chain = _local_step(rounds, optimizer, ear)
            if not any(isinstance(part, Call) for part in chain):
                plain.append(sum(part for part in chain if not isinstance(part, Call)))
            else:
                chains[ear.rank].append(chain)
            if step % _EVERY == _EVERY - 1 and world.over(step // _EVERY, stage, until):
                break

    world.run(rank)
    kept = [steps[-_kept(len(steps), stage) :] for steps in chains]
    own = median(plain[len(plain) // 3 :]) if plain else 0.0
    exchange = _summary([[_chained(chain, own) for chain in steps] for steps in kept], ranks)
    return LocalSeen(step=own, exchange=exchange)


class _World:
    """Ranks in threads that take turns."""

    def __init__(self, ranks: int, *, node_size: int, stage: Stage) -> None:
        self._lockstep = Lockstep(ranks, threaded=True, node_size=node_size)
        self._turn, self.clock = threading.Lock(), Clock(stage.network)
        self._ears = [Ear(port, self._turn, self.clock, stage.device) for port in self._lockstep.ports]
        self._ends: dict[int, bool] = {}

    def over(self, step: int, stage: Stage, until: float) -> bool:
        """Whether the rehearsal ends with this step: the first rank to ask decides for all."""
        enough = step >= min(stage.warmup, 3) + 3 and time.perf_counter() > until
        return self._ends.setdefault(step, enough)

    def run(self, rank: Callable[[Ear], None]) -> None:
        """Run a function on every rank; the first error is raised."""
        threads, errors = torch.get_num_threads(), []

        def within(ear: Ear) -> None:
            torch.set_num_threads(threads)
            with self._turn:
                try:
                    rank(ear)
                except BaseException as error:
                    errors.append(error)
                    self._lockstep.abort(error)

        workers = [threading.Thread(target=within, args=(ear,)) for ear in self._ears]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if errors:
            raise errors[0]


def _reducer(method: Method, stage: Stage, ear: Ear, clock: Clock) -> Reducer:
    port, velocity = cast("Transport", ear), _moves(method, stage)
    return Reducer(method, stage.model(), port, device=stage.device, velocity=velocity, clock=clock)


def _moves(method: Method, stage: Stage) -> bool:
    """Whether the method takes momentum over, as attach decides."""
    return method.momentum == "method" and stage.momentum > 0


def _exchanged(reducer: Reducer, ear: Ear, stage: Stage, buffers: Sequence[Tensor]) -> _Step:
    """Exchange the gradients of a step as DDP's hook does."""
    selecting, begun = [], []
    for segments, buffer in zip(stage.buckets, buffers, strict=True):
        began = now(stage.device)
        reducer.begin(buffer, segments)
        selecting.append(now(stage.device) - began)
        begun.append(len(ear.jobs))
    began = now(stage.device)
    reducer.end_step()
    closing = ear.drained_at - began
    jobs = [
        Job(
            bucket=sum(index >= count for count in begun),
            behind=noted.behind,
            rounds=_rounds(noted.calls, noted.work[1:]),
        )
        for index, noted in enumerate(ear.jobs)
    ]
    return _Step(selecting=tuple(selecting), closing=closing, jobs=tuple(jobs))


def _local_step(rounds: Rounds, optimizer: torch.optim.Optimizer, ear: Ear) -> list[float | Call]:
    """Take a local step; return what the method did in it, without the optimizer's own work."""
    ear.clear()
    rounds.observe(1.0)
    takes = rounds.before_step()
    before = ear.end()
    if takes:
        optimizer.step()
    ear.clear()
    rounds.after_attempt()
    return [*before, *ear.end()]


def _chained(chain: Sequence[float | Call], own: float) -> _Step:
    """Turn a sequence into one job: closing is the work up to its first call, less what every local step has."""
    calls = [part for part in chain if isinstance(part, Call)]
    work = [0.0]
    for part in chain:
        if isinstance(part, Call):
            work.append(0.0)
        else:
            work[-1] += part
    job = Job(bucket=0, rounds=_rounds(calls, work[1:]))
    return _Step(selecting=(), closing=max(0.0, work[0] - own), jobs=(job,))


def _rounds(calls: Sequence[Call], after: Sequence[float]) -> tuple[Round, ...]:
    return tuple(
        Round(kind=call.kind, size=float(call.size), after=seconds, among=call.among, senders=call.senders)
        for call, seconds in zip(calls, after, strict=True)
    )


def _summary(ranks: Sequence[Sequence[_Step]], number: int) -> Rehearsal:
    """Return the medians of seconds over steps and ranks, and the mean sizes, of those like the last step."""
    wanted = _shape(ranks[0][-1])
    steps = [step for one in ranks for step in one if _shape(step) == wanted]
    first = steps[0]
    jobs = []
    for j, job in enumerate(first.jobs):
        rounds = []
        for r, asked in enumerate(job.rounds):
            like = [step.jobs[j].rounds[r] for step in steps]
            rounds.append(replace(asked, size=mean(x.size for x in like), after=median(x.after for x in like)))
        jobs.append(replace(job, rounds=tuple(rounds)))
    selecting = tuple(median(step.selecting[i] for step in steps) for i in range(len(first.selecting)))
    closing = median(step.closing for step in steps)
    return Rehearsal(ranks=number, selecting=selecting, closing=closing, jobs=tuple(jobs))


def _shape(step: _Step) -> tuple[object, ...]:
    return Rehearsal(ranks=0, selecting=step.selecting, closing=0.0, jobs=step.jobs).shape


def _kept(number: int, stage: Stage) -> int:
    """How many of the last steps count: all but the warm-up, or half where time ran out."""
    return max(1, min(stage.steps, max(number - stage.warmup, number // 2)))


@torch.no_grad()
def _set_gradients(parameters: dict[str, nn.Parameter], stage: Stage, step: int, rank: int) -> None:
    for segments, flat in zip(stage.buckets, stage.gradient(step, rank), strict=True):
        for segment, view in zip(segments, segments.views(flat), strict=True):
            p = parameters[segment.name]
            p.grad = view.view(p.shape).clone()
