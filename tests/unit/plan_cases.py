"""Facts made by hand, for the tests of the planner."""

from __future__ import annotations

from laconic.plan import Facts, Host, Job, Profile, Rehearsal, Rehearsed, Round
from laconic.plan.facts import Cost

FREE = Cost(latency=0.0, per_byte=0.0)
IDLE = Host(gather=FREE, sum=FREE, half=FREE, busy=False)
# Forward 1 s, two buckets full after 1 and 3 s of backward, which ends after 4, optimizer 0.5 s.
PROFILE = Profile(forward=1.0, ready=(1.0, 3.0), backward=4.0, optimizer=0.5, alone=5.0, sizes=(100, 300))


def asked(size: float, *, after: float = 0.0, kind: str = "gather", **more: object) -> Round:
    return Round(kind=kind, size=size, after=after, **more)


def rehearsal(
    *jobs: Job, ranks: int = 2, selecting: tuple[float, ...] = (0.0, 0.0), closing: float = 0.0
) -> Rehearsal:
    return Rehearsal(ranks=ranks, selecting=selecting, closing=closing, jobs=jobs)


def plain(name: str = "ddp", *, bytes_an_entry: float = 4.0, half: bool = False) -> Rehearsed:
    jobs = [
        Job(bucket=i, rounds=(asked(bytes_an_entry * size, kind="sum", half=half),))
        for i, size in enumerate(PROFILE.sizes)
    ]
    return Rehearsed(name=name, setting="", rehearsals=(rehearsal(*jobs),))


def sparse(name: str = "topk", *, size: float = 4.0, selecting: float = 0.1, after: float = 0.05) -> Rehearsed:
    worlds = []
    for ranks in (2, 4):
        jobs = [Job(bucket=i, rounds=(asked(size, after=after * ranks),)) for i in range(2)]
        worlds.append(rehearsal(*jobs, ranks=ranks, selecting=(selecting, selecting)))
    return Rehearsed(name=name, setting="", rehearsals=tuple(worlds))


def local(name: str = "celgc", *, size: float = 1600.0, every: int = 4) -> Rehearsed:
    job = Job(bucket=0, rounds=(asked(80.0, after=0.1), asked(size, kind="sum", after=0.3)))
    one = rehearsal(job, selecting=(), closing=0.2)
    return Rehearsed(name=name, setting="", rehearsals=(one,), local=True, every=every, step=0.01)


def facts(*methods: Rehearsed, host: Host = IDLE) -> Facts:
    half = plain("ddp-fp16", bytes_an_entry=2.0, half=True)
    return Facts(work="a model made by hand", profile=PROFILE, host=host, methods=(plain(), half, *methods))
