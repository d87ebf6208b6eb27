"""Everything that is measured for a plan, on every rank at once; the first one returns it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
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
from laconic.plan.measure_link import Measured, casting, measure, ping_pong
from laconic.plan.predict import Link
from laconic.plan.profile import Seen, invented, profile, within
from laconic.plan.rehearse import Stage, rehearse, rehearse_local
from laconic.plan.work import OfSize, Planned
from laconic.rounds.pace import Pace
from laconic.sim.network import Kind

# A rehearsal holds some copies of a gradient for each rank.
_BYTES_AN_ENTRY = 40


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured, and with what; so many ranks are ``sharing`` a host, and work at once.

    Where ranks are ``spread`` over hosts, those of every host do; else only that many, and the others just talk.
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
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What came of it: the facts, and the link, if it was measured."""

    facts: Facts
    link: Link | None
    measured: dict[str, dict[int, float]]


def observe(work: Planned, effort: Effort, link: Link | None) -> Observed:
    """Profile the work, measure what talking costs, and rehearse every method. Runs on every rank.

    Without a link it is measured between the ranks.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gpu = effort.device == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    with _Show(2 + len(effort.methods), quiet=effort.quiet or rank != 0) as show:
        show.say("talking")
        kinds: dict[str, Kind] = {"gather": "gather", "sum": "sum", "half": "sum"}
        seen = {
            word: measure(kind, ranks=ranks, device=device, half=word == "half") for word, kind in kinds.items()
        }
        found = link or _found(seen, ranks=ranks, node_size=effort.sharing)
        host, group = _host(seen, effort), _group(effort, rank, ranks)
        facts = _nothing(host) if group is None else _facts(work, effort, found, host, group, show)
        dist.barrier()
    times = {word: measured.seconds for word, measured in seen.items()}
    return Observed(facts=facts, link=None if link is not None else found, measured=times)


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


def _group(effort: Effort, rank: int, ranks: int) -> dist.ProcessGroup | None:
    """Return the ranks of this host, which work at once; None: this one only talks."""
    firsts = range(0, ranks, effort.sharing) if effort.spread else [0]
    own = None
    for first in firsts:
        members = list(range(first, min(ranks, first + effort.sharing)))
        made = dist.new_group(members)
        own = made if rank in members else own
    return own


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
        return invented(work, entries=effort.entries)
    torch.manual_seed(dist.get_rank())
    place = Place(
        rank=0, ranks=1, device=torch.device(effort.device), seed=dist.get_rank(), batch=1,
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
    most = max(2, _free_bytes() // dist.get_world_size(group) // (_BYTES_AN_ENTRY * stage.model().numel))
    sizes = [ranks for ranks in worlds if ranks <= most] or [2]
    by_nodes = isinstance(method.exchange, TwoLevel)
    rehearsals, every, own = [], 1, 0.0
    for ranks in sizes:
        if dist.get_world_size(group) > 1:
            dist.barrier(group)
        if method.local is None:
            rehearsals.append(_mean(rehearse(method, stage, ranks=ranks), group))
            continue
        local = rehearse_local(method, stage, ranks=ranks)
        every = 1 if method.local.start is None else Pace(method.local.period).every
        own = local.step
        rehearsals.append(_mean(local.exchange, group))
    return Rehearsed(
        name=word, setting=repr(method), rehearsals=tuple(rehearsals), local=method.local is not None,
        every=every, step=own, node_size=2 if by_nodes else 1,
    )  # fmt: skip


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


def _host(seen: dict[str, Measured], effort: Effort) -> Host:
    cores = os.cpu_count() or 1
    # A GPU leaves the cores to gloo.
    busy = effort.device == "cpu" and effort.sharing * torch.get_num_threads() >= cores
    return Host(gather=seen["gather"].cost, sum=seen["sum"].cost, half=seen["half"].cost, busy=busy)


def _found(seen: dict[str, Measured], *, ranks: int, node_size: int) -> Link:
    """Return the link as gathering and adding up were seen to take."""
    costs = [seen["gather"].cost, seen["sum"].cost]
    per_byte, latency = mean(c.per_byte for c in costs), mean(c.latency for c in costs)
    return Link(
        workers=ranks,
        bandwidth=8e-6 / per_byte if per_byte > 0 else inf,
        latency=1e3 * max(latency, ping_pong(ranks=ranks)),
        node_size=node_size if node_size < ranks and ranks % node_size == 0 else 1,
        measured=True,
    )


def _nothing(host: Host) -> Facts:
    none = Profile(forward=0.0, ready=(0.0,), backward=0.0, optimizer=0.0, alone=0.0, sizes=(0,))
    return Facts(work="", profile=none, host=host, methods=())


def _free_bytes() -> int:
    """Return the memory that is left; on systems that do not tell, as much as is enough."""
    return 1024 * (kilobytes("/proc/meminfo", "MemAvailable") or 1 << 30)
