"""What a plan rests on: a profile of the work, the cost of talking on this host, and each method's rehearsal.

All of it was measured, none of it depends on the link but what a method itself makes of it (``cat``). Plain data:
it goes to JSON and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import inf, log
from typing import Any

from laconic.collectives import Among
from laconic.sim.network import Cable, Call, Kind, Network


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A step of the work alone and within DDP, which exchanged nothing: seconds.

    ``ready`` says when each bucket of gradients was full, counted from the start of backward; ``sizes`` are their
    entries. ``backward`` is over when DDP has handed the last gradient back. ``alone`` is a whole step without DDP.
    """

    forward: float
    ready: tuple[float, ...]
    backward: float
    optimizer: float
    alone: float
    sizes: tuple[int, ...]
    invented: bool = False

    @property
    def parameters(self) -> int:
        """How many entries a gradient has."""
        return sum(self.sizes)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One collective, and the seconds of work that its reply makes; ``half``: numbers of 16 bits are added up."""

    kind: Kind
    size: float
    after: float
    among: Among = "world"
    senders: int = 0
    half: bool = False

    @property
    def call(self) -> Call:
        """The collective as a network sees it."""
        return Call(kind=self.kind, size=self.size, among=self.among, senders=self.senders)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The rounds of one exchange, begun with a bucket (or behind the last), or at the end of another job."""

    bucket: int
    rounds: tuple[Round, ...]
    behind: int = -1


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What a rank did in a step among so many: ``selecting`` seconds a bucket, ``closing`` behind the last."""

    ranks: int
    selecting: tuple[float, ...]
    closing: float
    jobs: tuple[Job, ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """What two rehearsals must have in common so that there is something between them."""
        rounds = [[(r.kind, r.among, r.senders, r.half) for r in job.rounds] for job in self.jobs]
        return len(self.selecting), *(
            (j.bucket, j.behind, tuple(r)) for j, r in zip(self.jobs, rounds, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """A method as rehearsed, by number of ranks; ``every`` steps lie between exchanges, if it takes local ones.

    A local method works ``step`` seconds in each step. With a ``node_size`` over 1 it goes by nodes: those of the
    rehearsal had so many ranks, and its ``ranks`` count nodes.
    """

    name: str
    setting: str
    rehearsals: tuple[Rehearsal, ...]
    local: bool = False
    every: int = 1
    step: float = 0.0
    node_size: int = 1

    def among(self, ranks: float) -> Rehearsal:
        """Return what a rank would do among so many, drawn from the two nearest numbers that were rehearsed.

        Seconds grow by as much with each rank, sizes by a power of their number.
        """
        known = sorted(self.rehearsals, key=lambda r: r.ranks)
        if len(known) == 1:
            return known[0]
        low, high = next((pair for pair in pairwise(known) if pair[1].ranks >= ranks), (known[-2], known[-1]))
        if low.shape != high.shape:
            return low if ranks < high.ranks else high
        return _between(low, high, ranks)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the host itself takes for a collective: seconds a round, and a byte that passes."""

    latency: float
    per_byte: float

    def seconds(self, call: Call, *, ranks: int, node_size: int) -> float:
        """Return what a collective takes of a host."""
        rate = 8.0 / self.per_byte if self.per_byte > 0 else inf
        cable = Cable(bits_per_second=rate, latency=self.latency, headers=0.0)
        return Network(ranks=ranks, cables=(cable,), inside=cable, node_size=node_size).seconds(call)


@dataclass(frozen=True, kw_only=True)
class Host:
    """What talking costs on this host, where no link is in the way, by kind; ``busy``: no core is left for it."""

    gather: Cost
    sum: Cost
    half: Cost
    busy: bool

    def of(self, asked: Round) -> Cost:
        """Return what such a collective costs."""
        if asked.kind == "sum":
            return self.half if asked.half else self.sum
        return self.gather


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that was measured; ``scale``: only one part in so many of the model was rehearsed, and is scaled up."""

    work: str
    profile: Profile
    host: Host
    methods: tuple[Rehearsed, ...]
    scale: float = 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; ``from_dict`` makes the same of it."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Facts:
        """Read what ``as_dict`` wrote."""
        profile = dict(data["profile"])
        profile |= {name: tuple(profile[name]) for name in ("ready", "sizes")}
        costs = {kind: Cost(**data["host"][kind]) for kind in ("gather", "sum", "half")}
        return Facts(
            work=data["work"],
            profile=Profile(**profile),
            host=Host(**costs, busy=data["host"]["busy"]),
            methods=tuple(_rehearsed(method) for method in data["methods"]),
            scale=data["scale"],
        )


def scaled(rehearsed: Rehearsed, factor: float) -> Rehearsed:
    """Return what a model so many times larger would have taken, with buckets that are larger by as much.

    >>> one = Rehearsal(ranks=2, selecting=(0.5,), closing=0.0, jobs=())
    >>> scaled(Rehearsed(name="m", setting="", rehearsals=(one,)), 4.0).rehearsals[0].selecting
    (2.0,)
    """
    if factor == 1.0:
        return rehearsed
    grown = tuple(
        Rehearsal(
            ranks=one.ranks,
            selecting=tuple(factor * s for s in one.selecting),
            closing=factor * one.closing,
            jobs=tuple(
                replace(
                    job,
                    rounds=tuple(replace(r, size=factor * r.size, after=factor * r.after) for r in job.rounds),
                )
                for job in one.jobs
            ),
        )
        for one in rehearsed.rehearsals
    )
    return replace(rehearsed, rehearsals=grown, step=factor * rehearsed.step)


def _between(low: Rehearsal, high: Rehearsal, ranks: float) -> Rehearsal:
    part = (ranks - low.ranks) / (high.ranks - low.ranks)
    ratio = ranks / low.ranks, high.ranks / low.ranks

    def seconds(one: float, other: float) -> float:
        return max(0.0, one + part * (other - one))

    def size(one: float, other: float) -> float:
        return one if one <= 0 or other <= 0 or one == other else one * _power(other / one, *ratio)

    jobs = []
    for job, other in zip(low.jobs, high.jobs, strict=True):
        pairs = zip(job.rounds, other.rounds, strict=True)
        rounds = tuple(replace(a, size=size(a.size, b.size), after=seconds(a.after, b.after)) for a, b in pairs)
        jobs.append(replace(job, rounds=rounds))
    selecting = tuple(seconds(a, b) for a, b in zip(low.selecting, high.selecting, strict=True))
    return Rehearsal(
        ranks=round(ranks), selecting=selecting, closing=seconds(low.closing, high.closing), jobs=tuple(jobs)
    )


def _power(grown: float, ratio: float, whole: float) -> float:
    """Return by what something grows while ranks do by ``ratio``: by ``grown`` while they do by ``whole``."""
    return float(ratio ** (log(grown) / log(whole)))


def _rehearsed(data: Mapping[str, Any]) -> Rehearsed:
    return Rehearsed(**{**data, "rehearsals": tuple(_rehearsal(one) for one in data["rehearsals"])})


def _rehearsal(data: Mapping[str, Any]) -> Rehearsal:
    return Rehearsal(**{**data, "selecting": tuple(data["selecting"]), "jobs": _jobs(data["jobs"])})


def _jobs(jobs: Sequence[Mapping[str, Any]]) -> tuple[Job, ...]:
    return tuple(Job(**{**job, "rounds": tuple(Round(**r) for r in job["rounds"])}) for job in jobs)
