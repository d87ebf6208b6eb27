"""Everything that is measured for a plan, on every rank at once; the first one returns it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from laconic import kernels
from laconic.exchanges import TwoLevel
from laconic.lab.bench_step import BenchStep
from laconic.lab.machine import kilobytes
from laconic.lab.method_words import make, name_of
from laconic.lab.work import Place
from laconic.method import Method
from laconic.plan.advise import HALF, PLAIN
from laconic.plan.facts import Facts, Host, Job, Profile, Rehearsal, Rehearsed, Round, scaled
from laconic.plan.hosts import gather_crowd, listen
from laconic.plan.measure_link import casting, talking_device
from laconic.plan.predict import Link
from laconic.plan.profile import Seen, invented, profile, within
from laconic.plan.rehearse import Stage, rehearse, rehearse_local
from laconic.plan.work import OfSize, Planned
from laconic.rounds.pace import Pace

# A rehearsal holds some copies of a gradient for each rank.
_BYTES_AN_ENTRY = 40


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured, and with what; so many ranks are ``sharing`` a host, and work at once.

    Where ranks are ``spread`` over hosts, those of every host do; else only that many, and the others just talk.
    ``measured``: the link's bandwidth and latency are measured, not given.
    """

    methods: tuple[str, ...]
    density: float | None
    sharing: int
    steps: int
    warmup: int
    worlds: tuple[int, ...]
    entries: int
    seconds: float
    data_home: str
    device: str = "cpu"
    spread: bool = False
    measured: bool = False
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What came of it: the facts, the link as given or measured, and the seconds of collectives by size."""

    facts: Facts
    link: Link
    measured: dict[str, dict[int, float]]


def observe(work: Planned, effort: Effort, link: Link) -> Observed:
    """Profile the work, measure what talking costs, and rehearse every method. Runs on every rank."""
    device = _device(effort)
    crowd = gather_crowd(sharing=effort.sharing, spread=effort.spread)
    with _Show(2 + len(_chosen(effort, link)), quiet=effort.quiet or dist.get_rank() != 0) as show:
        show.say("talking")
        heard = listen(link, crowd, measured=effort.measured, busy=_busy(effort), device=device)
        host, group = heard.host, crowd.group
        facts = _nothing(host) if group is None else _facts(work, effort, heard.link, host, group, show)
        dist.barrier()
    return Observed(facts=facts, link=heard.link, measured=heard.seconds)


class _Show:
    """What is being done, on the terminal."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        columns = TextColumn("{task.description:>24}"), BarColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> _Show:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, what: str) -> None:
        """Say what comes next."""
        self._bar.update(self._task, description=what, advance=1)


def _facts(work: Planned, effort: Effort, link: Link, host: Host, group: dist.ProcessGroup, show: _Show) -> Facts:
    show.say("a step of the work")
    seen = _profiled(work, effort, group)
    whole = seen.profile.parameters
    part = within(seen, effort.entries)
    scale = whole / sum(b.numel for b in part.buckets)
    stage = Stage(
        buckets=part.buckets,
        gradients=part.gradients,
        warmup=effort.warmup,
        steps=effort.steps,
        seconds=effort.seconds,
        network=link.network(),
        buffers=part.buffers,
        momentum=part.momentum,
    )
    kernels.warm(stage.device, torch.float32, [torch.float32])
    methods = [_plain(part.profile), _half(part, group)]
    for method, word in _chosen(effort, link):
        show.say(word)
        methods.append(scaled(_rehearsed(method, word, stage, effort.worlds, group), scale))
    return Facts(work=work.title, profile=part.profile, host=host, methods=tuple(methods), scale=scale)


def _profiled(work: Planned, effort: Effort, group: dist.ProcessGroup) -> Seen:
    if isinstance(work, OfSize):
        return invented(work, entries=effort.entries, device=_device(effort))
    torch.manual_seed(dist.get_rank())
    place = Place(
        rank=0, ranks=1, device=_device(effort), seed=dist.get_rank(), batch=1,
        data_home=Path(effort.data_home),
    )  # fmt: skip
    subject = work.subject(place)
    assert subject is not None
    return profile(subject, group=group, steps=2 * effort.steps, warmup=effort.warmup, seconds=effort.seconds)


def _chosen(effort: Effort, link: Link) -> list[tuple[Method, str]]:
    """The methods and their names; between nodes, every one that exchanges in each step also node by node."""
    methods = [(_method(word, effort.density), word) for word in effort.methods]
    if link.node_size == 1:
        return methods
    nodes = [
        (replace(method, exchange=TwoLevel(inner=method.exchange, node_size=2)), f"{word} by nodes")
        for method, word in methods
        if method.local is None and not isinstance(method.exchange, TwoLevel)
    ]
    return [*methods, *nodes]


def _method(word: str, density: float | None) -> Method:
    """Return the method of a word; with a density one that has no settings sends that share from the start."""
    if density is None or ":" in word:
        return make(word)
    return BenchStep(density=density, methods=()).method(name_of(word))


def _rehearsed(
    method: Method, word: str, stage: Stage, worlds: Sequence[int], group: dist.ProcessGroup
) -> Rehearsed:
    """Rehearse on worlds of several sizes, all ranks of this machine at once."""
    node_size = method.exchange.node_size or 1 if isinstance(method.exchange, TwoLevel) else 1
    at_once = dist.get_world_size(group) * node_size
    sizes = worlds_within(_least(_free_bytes(), group), worlds, entries=stage.model().numel, at_once=at_once)
    rehearsals, every, own = [], 1, [0.0]
    for ranks in sizes:
        if dist.get_world_size(group) > 1:
            dist.barrier(group)
        if method.local is None:
            rehearsals.append(_mean(rehearse(method, stage, ranks=ranks), group))
            continue
        local = rehearse_local(method, stage, ranks=ranks)
        every = 1 if method.local.start is None else Pace(method.local.period).every
        own = [local.step] * dist.get_world_size(group)
        dist.all_gather_object(own, local.step, group=group)
        rehearsals.append(_mean(local.exchange, group))
    return Rehearsed(
        name=word, setting=repr(method), rehearsals=tuple(rehearsals), local=method.local is not None,
        every=every, step=mean(own), node_size=node_size,
    )  # fmt: skip


def worlds_within(free: int, worlds: Sequence[int], *, entries: int, at_once: int) -> list[int]:
    """Return the worlds that so many bytes have room for, or one of 2; ``at_once`` ranks here for each worker.

    >>> [worlds_within(1_000_000, (2, 4), entries=5000, at_once=ranks) for ranks in (1, 2, 9)]
    [[2, 4], [2], [2]]
    """
    most = free // (_BYTES_AN_ENTRY * entries * at_once)
    return [ranks for ranks in worlds if ranks <= most] or [2]


def _mean(own: Rehearsal, group: dist.ProcessGroup) -> Rehearsal:
    """Return the mean of the seconds that this machine's ranks saw."""
    if dist.get_world_size(group) == 1:
        return own
    told: list[Rehearsal] = [own] * dist.get_world_size(group)
    dist.all_gather_object(told, own, group=group)
    like = [one for one in told if one.shape == own.shape]
    jobs = tuple(
        replace(
            job,
            rounds=tuple(
                replace(r, after=mean(one.jobs[j].rounds[i].after for one in like))
                for i, r in enumerate(job.rounds)
            ),
        )
        for j, job in enumerate(own.jobs)
    )
    selecting = tuple(mean(one.selecting[i] for one in like) for i in range(len(own.selecting)))
    return replace(own, selecting=selecting, closing=mean(one.closing for one in like), jobs=jobs)


def _plain(work: Profile) -> Rehearsed:
    """Plain DDP: every bucket is added up as it is; bytes by formula."""
    jobs = tuple(
        Job(bucket=i, rounds=(Round(kind="sum", size=4.0 * size, after=0.0),)) for i, size in enumerate(work.sizes)
    )
    one = Rehearsal(ranks=2, selecting=(0.0,) * len(work.sizes), closing=0.0, jobs=jobs)
    return Rehearsed(name=PLAIN, setting="DistributedDataParallel", rehearsals=(one,))


def _half(seen: Seen, group: dist.ProcessGroup) -> Rehearsed:
    """DDP with its fp16 hook: bytes by formula, the casts measured."""
    if dist.get_world_size(group) > 1:
        dist.barrier(group)
    there, back = casting([g.clone() for g in seen.gradients[0]])
    sizes = seen.profile.sizes
    grown = [size / g.numel() for size, g in zip(sizes, seen.gradients[0], strict=True)]
    jobs = tuple(
        Job(bucket=i, rounds=(Round(kind="sum", size=2.0 * size, after=grown[i] * back[i], half=True),))
        for i, size in enumerate(sizes)
    )
    selecting = tuple(factor * seconds for factor, seconds in zip(grown, there, strict=True))
    one = Rehearsal(ranks=2, selecting=selecting, closing=0.0, jobs=jobs)
    return Rehearsed(name=HALF, setting="fp16_compress_hook", rehearsals=(one,))


def _device(effort: Effort) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if effort.device == "cuda" else torch.device("cpu")


def _busy(effort: Effort) -> bool:
    """Whether the work leaves gloo no core; a GPU leaves it all."""
    return effort.device == "cpu" and effort.sharing * torch.get_num_threads() >= (os.cpu_count() or 1)


def _nothing(host: Host) -> Facts:
    none = Profile(forward=0.0, ready=(0.0,), backward=0.0, optimizer=0.0, alone=0.0, sizes=(0,))
    return Facts(work="", profile=none, host=host, methods=())


def _free_bytes() -> int:
    """Return the memory that is left; on systems that do not tell, as much as is enough."""
    return 1024 * (kilobytes("/proc/meminfo", "MemAvailable") or 1 << 30)


def _least(own: int, group: dist.ProcessGroup) -> int:
    """Return the least that a rank of the group has: all go on with the same number."""
    told = torch.tensor([own], dtype=torch.int64, device=talking_device())
    dist.all_reduce(told, op=dist.ReduceOp.MIN, group=group)
    return int(told)
