"""The two stages of a race: find every competitor's rate on an equal budget, then run each over the slow link."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from laconic.lab.method_words import name_of
from laconic.lab.network.hosts import Hosts, shaped_hosts
from laconic.lab.network.race import CPU, Entry
from laconic.lab.network.race_files import (
    Chosen,
    Tried,
    Tuned,
    best_of,
    choose,
    metric_of,
    points_of,
    read_raced,
    read_tuned,
    write_rows,
    write_tuned,
)
from laconic.lab.network.race_jobs import Done, run_many, run_one
from laconic.lab.network.race_work import Racing, bounded
from laconic.lab.peers import peer_of
from laconic.lab.training import Training
from laconic.lab.work import Metric, Place
from laconic.methods import METHODS

DDP, FP16 = "ddp", "ddp-fp16"
# A race is given more steps than tuning: elsewhere numbers round otherwise, and the target may come a bit later.
_MORE_STEPS = 1.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who races with what; the two stages have it in common."""

    task: Racing
    training: Training
    data_home: Path
    ranks: int
    competitors: tuple[str, ...]
    grid: tuple[float, ...]
    steps: int
    eval_every: int
    valid_examples: int | None
    give_up_seconds: float

    def settings(self) -> dict[str, Any]:
        """Return what curves depend on: files of other settings are refused."""
        names = ("batch", "optimizer", "momentum", "decay", "clip", "seed")
        return {
            "task": {"kind": self.task.name, **asdict(self.task.settled())},
            "ranks": self.ranks,
            **{name: getattr(self.training, name) for name in names},
            "steps": self.steps,
            "eval_every": self.eval_every,
            "valid_examples": self.valid_examples,
        }

    def entry(self, competitor: str, rate: float, **more: Any) -> Entry:
        """Return one run; ``more`` are other fields of an entry."""
        return Entry(
            **{
                "competitor": competitor, "rate": rate, "task": self.task, "training": self.training,
                "data_home": self.data_home, "steps": self.steps, "eval_every": self.eval_every,
                "valid_examples": self.valid_examples, **more,
            }
        )  # fmt: skip

    def check_task(self) -> None:
        """Make the task ready once, here: what it lacks is told in its own words, not as the end of a rank."""
        batch = self.training.batch or 1
        place = Place(
            rank=0, ranks=self.ranks, device=CPU, seed=self.training.seed, batch=batch, data_home=self.data_home
        )
        bounded(self.task, place, self.valid_examples)

    def able(self, console: Console) -> list[str]:
        """Return the competitors that can run here, and say why the others cannot."""
        reasons = {word: peer_of(word).missing() for word in self.competitors}
        for word, reason in reasons.items():
            if reason:
                console.print(f"{word} is left out: {reason}", highlight=False, markup=False)
        return [word for word, reason in reasons.items() if not reason]


def tune(plan: Plan, path: Path, about: Mapping[str, Any], *, jobs: int, console: Console) -> Tuned:
    """Run every competitor at every rate of the grid on loopback; what the file has is not run again."""
    tuned = read_tuned(path, plan.settings())
    known = set() if tuned is None else {(run.competitor, run.rate) for run in tuned.runs}
    wanted = [(word, rate) for word in plan.able(console) for rate in plan.grid]
    entries = [plan.entry(word, rate) for word, rate in wanted if (word, rate) not in known]
    console.print(f"{len(wanted)} runs of {plan.steps} steps, {len(wanted) - len(entries)} of them done before")
    for done in run_many(entries, plan.ranks, jobs=jobs, seconds=plan.give_up_seconds):
        entry = done.entry
        if done.failed:
            console.print(f"{entry.competitor} at rate {entry.rate:g} failed: {done.failed}", markup=False)
            continue
        first = done.ran[0]
        tried = Tried.of(entry.competitor, entry.rate, first)
        runs = (*(() if tuned is None else tuned.runs), tried)
        tuned = Tuned(settings=plan.settings(), metric=first.metric, runs=runs)
        write_tuned(path, about, tuned)
        best = best_of([tried], first.metric)
        note = ", diverged" if first.ended == "diverged" else ""
        console.print(
            f"{entry.competitor} at rate {entry.rate:g}: {first.metric.name} {best:.4g} at best, "
            f"{first.step_milliseconds:.0f} ms a step{note}",
            highlight=False, markup=False,
        )  # fmt: skip
    if tuned is None:
        raise ValueError("not one run of tuning came to its end: see above why.")
    return tuned


def choices(plan: Plan, tuned: Tuned, target: float, command: str) -> list[Chosen]:
    """Return the rate of every competitor, in their order; one that was not tuned is an error that says how."""
    absent = [word for word in plan.competitors if not tuned.of(word) and not peer_of(word).missing()]
    if absent:
        raise ValueError(f"no rate was tuned for {', '.join(absent)}. Tune first: {command}")
    return [choose(tuned.of(word), tuned.metric, target) for word in plan.competitors if tuned.of(word)]


@dataclass(frozen=True, kw_only=True)
class Course:
    """The link of a race and its end: ``megabits`` None is an unlimited link, ``loopback`` no hosts at all."""

    target: float
    megabits: float | None
    loopback: bool
    most_seconds: float


def run_race(
    plan: Plan, course: Course, chosen: Sequence[Chosen], metric: Metric, path: Path | None,
    about: Mapping[str, Any], *, console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Run competitors one after the other, ``ddp`` first; the file is written after each, and gone on from."""
    settings = plan.settings() | {"target": course.target, "megabits": course.megabits, "loopback": course.loopback}
    racing = sorted((each for each in chosen if each.steps is not None), key=lambda each: each.competitor != DDP)
    before, racers = read_raced(path, settings), {each.competitor: each for each in racing}
    # Those who do not race now keep what they have.
    rows = {
        word: row for word, row in before.rows.items() if word not in racers or _stands(row, racers[word], course)
    }
    known = {each.competitor for each in chosen}
    not_raced = [each for each in before.not_raced if each["competitor"] not in known]
    not_raced += [asdict(each) for each in chosen if each.steps is None and each.competitor not in rows]
    whole = {
        **about, "settings": settings, "metric": metric_of(metric), "rows": [], "not_raced": not_raced,
    }  # fmt: skip
    left = [each for each in racing if each.competitor not in rows]
    hosting = nullcontext(None) if course.loopback or not left else shaped_hosts(plan.ranks)
    with hosting as hosts:
        for each in left:
            done = _run(plan, course, each, hosts)
            rows[each.competitor] = row = row_of(done, metric)
            whole["rows"] = with_speedups(_in_order(rows, racers))
            write_rows(path, whole)
            console.print(f"{each.competitor}: {in_words(row)}", highlight=False, markup=False)
    whole["rows"] = with_speedups(_in_order(rows, racers))
    write_rows(path, whole)
    return whole


def _in_order(rows: Mapping[str, dict[str, Any]], racers: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows there are: ``ddp`` first, then those who race now, then the others."""
    words = sorted(dict.fromkeys((*racers, *rows)), key=lambda word: word != DDP)
    return [rows[word] for word in words if word in rows]


def _run(plan: Plan, course: Course, each: Chosen, hosts: Hosts | None) -> Done:
    if hosts is not None:
        hosts.limit(course.megabits)
    entry = plan.entry(
        each.competitor, each.rate, steps=math.ceil(_MORE_STEPS * plan.steps), target=course.target,
        most_seconds=course.most_seconds,
    )  # fmt: skip
    return run_one(entry, plan.ranks, hosts=hosts, seconds=plan.give_up_seconds)


def row_of(done: Done, metric: Metric) -> dict[str, Any]:
    """Return what is kept of a run: seconds and steps are those to the target, None where it was not reached."""
    ours = name_of(done.entry.competitor) in METHODS
    row: dict[str, Any] = {"competitor": done.entry.competitor, "ours": ours, "rate": done.entry.rate}
    if done.failed:
        return row | {"failed": done.failed, "reached": False, "seconds": None, "steps": None, "curve": []}
    first, last = done.ran[0], done.ran[0].curve[-1]
    reached = first.ended == "target"
    tried = Tried.of(done.entry.competitor, done.entry.rate, first)
    return row | {
        "failed": "",
        "reached": reached,
        "ended": first.ended,
        "seconds": last.seconds if reached else None,
        "steps": last.step if reached else None,
        "seconds_run": last.seconds,
        "steps_run": last.step,
        "best": best_of([tried], metric),
        "step_milliseconds": first.step_milliseconds,
        "interface_bytes": _mean([ran.interface_bytes for ran in done.ran]),
        "link_bytes": _mean([ran.link_bytes for ran in done.ran]),
        "curve": points_of(first.curve),
        "stretch_seconds": list(first.stretch_seconds),
    }


def with_speedups(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with how many times sooner each was there than ddp, than ddp-fp16 and than the best peer."""
    seconds = {row["competitor"]: row["seconds"] for row in rows if row["reached"]}
    peers = [seconds[row["competitor"]] for row in rows if row["reached"] and not row["ours"]]
    against = {
        "over_ddp": seconds.get(DDP),
        "over_fp16": seconds.get(FP16),
        "over_best_peer": min(peers, default=None),
    }
    out = []
    for row in rows:
        mine = row["seconds"]
        times = {key: theirs / mine if theirs and mine else None for key, theirs in against.items()}
        out.append(row | times)
    return out


def in_words(row: Mapping[str, Any]) -> str:
    """Say in a line what came of a run."""
    if row["failed"]:
        return f"failed: {row['failed']}"
    run = f"{row['steps_run']} steps, {row['step_milliseconds']:.0f} ms a step"
    if row["reached"]:
        return f"{row['seconds']:.1f} s to the target, {run}"
    why = {"seconds": "its time was up", "steps": "its steps were done", "diverged": "it diverged"}[row["ended"]]
    return f"target not reached in {row['seconds_run']:.0f} s, {run}: {why}; {row['best']:.4g} at best"


def _stands(row: Mapping[str, Any], each: Chosen, course: Course) -> bool:
    """Whether a row is what the run would come to again: not at another rate, nor with more time than it had.

    What failed may not fail again.
    """
    if row["failed"]:
        return False
    same: bool = (row["competitor"], row["rate"]) == (each.competitor, each.rate)
    return same and bool(row["ended"] != "seconds" or row["seconds_run"] >= course.most_seconds)


def _mean(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return round(sum(known) / len(known)) if known else None
