"""The prediction: a step as a pipeline, from measured seconds and the alpha-beta time of each collective.

A step that exchanges gradients, as DDP runs it::

    now = forward
    for every bucket i:                       backward fills it
        now += ready[i] - ready[i - 1] + selecting[i]
        put the first round of its jobs on the line
        now += host(round)                    if no core is free, and i is not the last
    now += closing; put what waited for the last bucket on the line
    for every round on the line, in order:    drain
        now = max(now, done(round)) + after
        put the job's next round on the line, or the jobs behind it
    now += (backward - ready[-1]) + optimizer

The line carries one collective at a time, in the order they were put on it: ``done = max(put, done of the one
before) + rounds * (latency of the link + of the host) + bytes * max(time a byte of the link, of the host)``, as
``sim.network`` counts rounds and bytes. The host's part is what it takes for such a collective where no link is in
the way: it copies and adds up some bytes while the link carries others, so the slower of the two counts. Where
ranks keep all cores busy, that work also delays the rest of backward. A measured link has the host's part in it.

A step of a local method is ``alone + step``; once in ``every`` steps ``closing`` and all rounds follow, in turn.
A method that goes by nodes is rehearsed among nodes, and predicted for as many as the link has. ``formula.js`` has
the same formula.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from laconic.arguments import check_number, check_whole
from laconic.plan.facts import Cost, Facts, Host, Profile, Rehearsal, Rehearsed, Round
from laconic.sim.network import HEADERS, Cable, Network


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between ``workers`` ranks, ``node_size`` of which share a node: megabits a second, milliseconds.

    ``measured``: the numbers are what collectives were seen to take, with headers and the host's part in them.
    """

    workers: int
    bandwidth: float = inf
    latency: float = 0.0
    node_size: int = 1
    inside_bandwidth: float = inf
    inside_latency: float = 0.0
    measured: bool = False

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 2, "One worker has nobody to talk to: write --workers 2.")
        for name in ("bandwidth", "inside_bandwidth"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be over 0 megabits a second, got {getattr(self, name)!r}.")
        check_number("latency", self.latency, 0.0, "It is in milliseconds: write --latency 0.1.")
        check_number("inside_latency", self.inside_latency, 0.0, "It is in milliseconds.")
        self.network()

    def network(self) -> Network:
        """Return the network of such links."""
        headers = 0.0 if self.measured else HEADERS
        cable = Cable(bits_per_second=1e6 * self.bandwidth, latency=self.latency / 1e3, headers=headers)
        inside = Cable(
            bits_per_second=1e6 * self.inside_bandwidth, latency=self.inside_latency / 1e3, headers=headers
        )
        return Network(ranks=self.workers, cables=(cable,), inside=inside, node_size=self.node_size)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A method's step: its seconds, the share of it that is not computing, the bytes that leave a rank."""

    name: str
    seconds: float
    communicating: float
    link_bytes: float
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What a round keeps the line for, and what of that is the host's work."""

    line: Callable[[Round], float]
    host: Callable[[Round], float]
    busy: bool

    @staticmethod
    def over(link: Link, host: Host) -> Talk:
        """Return what talking takes over a link."""
        network = link.network()

        def own(asked: Round) -> float:
            return host.of(asked).seconds(asked.call, ranks=link.workers, node_size=link.node_size)

        def line(asked: Round) -> float:
            if link.measured:
                return network.seconds(asked.call)
            cost = host.of(asked)
            cables = tuple(_with_host(cable, cost) for cable in network.cables)
            return replace(network, cables=cables, inside=_with_host(network.inside, cost)).seconds(asked.call)

        return Talk(line=line, host=own, busy=host.busy)


def predict(facts: Facts, method: Rehearsed, link: Link) -> Prediction:
    """Return what a step of a method takes over a link."""
    talk, profile = Talk.over(link, facts.host), facts.profile
    nodes = link.workers // link.node_size
    rehearsal = method.among(nodes if method.node_size > 1 else link.workers)
    if method.local:
        seconds = local_seconds(profile, rehearsal, talk, every=method.every, step=method.step)
    else:
        seconds = step_seconds(profile, rehearsal, talk)
    rounds = [r for job in rehearsal.jobs for r in job.rounds]
    sent = sum(link_bytes(r, ranks=link.workers, nodes=nodes) for r in rounds)
    return Prediction(
        name=method.name,
        seconds=seconds,
        communicating=max(0.0, 1.0 - profile.alone / seconds),
        link_bytes=sent / method.every,
        every=method.every,
    )


def step_seconds(profile: Profile, rehearsal: Rehearsal, talk: Talk) -> float:
    """Return the seconds of a step that exchanges gradients while backward goes on."""
    jobs, last = rehearsal.jobs, len(profile.ready) - 1
    line: deque[tuple[int, int, float]] = deque()
    now, before, free = profile.forward, 0.0, 0.0

    def put(job: int, number: int) -> None:
        nonlocal free
        free = max(now, free) + talk.line(jobs[job].rounds[number])
        line.append((job, number, free))

    for bucket, (ready, selecting) in enumerate(zip(profile.ready, rehearsal.selecting, strict=True)):
        now, before = now + ready - before + selecting, ready
        for job in _begun(rehearsal, bucket=bucket):
            put(job, 0)
            now += talk.host(jobs[job].rounds[0]) if talk.busy and bucket < last else 0.0
    now += rehearsal.closing
    for job in _begun(rehearsal, bucket=last + 1):
        put(job, 0)
    while line:
        job, number, done = line.popleft()
        now = max(now, done) + jobs[job].rounds[number].after
        if number + 1 < len(jobs[job].rounds):
            put(job, number + 1)
            continue
        for behind in [i for i, other in enumerate(jobs) if other.behind == job and other.rounds]:
            put(behind, 0)
    return now + profile.backward - before + profile.optimizer


def local_seconds(profile: Profile, rehearsal: Rehearsal, talk: Talk, *, every: int, step: float) -> float:
    """Return the seconds of a local step, with its part of an exchange."""
    rounds = [r for job in rehearsal.jobs for r in job.rounds]
    exchange = rehearsal.closing + sum(talk.line(r) + r.after for r in rounds)
    return profile.alone + step + exchange / every


def link_bytes(asked: Round, *, ranks: int, nodes: int) -> float:
    """Return the bytes that a rank sends to others for a round; none leave a node for what stays inside.

    >>> asked = Round(kind="sum", size=1000.0, after=0.0)
    >>> link_bytes(asked, ranks=4, nodes=4)
    1500.0
    """
    count = {"world": ranks, "node": 1, "leaders": nodes}[asked.among]
    if asked.kind == "sum":
        return 2 * (count - 1) * asked.size / count
    if asked.kind == "deal":
        return (count - 1) * asked.size / count
    # One that sends alone has it passed on: each rank but the last few sends it once or so.
    return (count - 1) * asked.size / (count if asked.senders == 1 or asked.kind == "broadcast" else 1)


def _with_host(cable: Cable, cost: Cost) -> Cable:
    """Return a cable that is as slow as the slower of the two, with the latencies of both."""
    per_byte = max(cable.per_byte, cost.per_byte)
    rate = 8.0 / per_byte if per_byte > 0 else inf
    return Cable(bits_per_second=rate, latency=cable.latency + cost.latency, headers=0.0)


def _begun(rehearsal: Rehearsal, *, bucket: int) -> list[int]:
    """The jobs that begin with a bucket."""
    return [i for i, job in enumerate(rehearsal.jobs) if job.bucket == bucket and job.behind < 0 and job.rounds]
