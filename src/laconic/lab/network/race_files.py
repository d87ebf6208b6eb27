"""The files of a race: what tuning saw, and which rate it chose; both go on where they were left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laconic.lab.folder import finite, read_json, write_json
from laconic.lab.network.race import Ended, Ran, Seen, reaches
from laconic.lab.work import Metric


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A run of tuning: who, at which rate, and what was seen."""

    competitor: str
    rate: float
    curve: tuple[Seen, ...]
    ended: Ended

    @staticmethod
    def of(competitor: str, rate: float, ran: Ran) -> Tried:
        """Return what is kept of a run."""
        return Tried(competitor=competitor, rate=rate, curve=ran.curve, ended=ran.ended)

    def steps_to(self, metric: Metric, target: float) -> int | None:
        """Return the steps after which the target was seen for the first time."""
        return next((seen.step for seen in self.curve if reaches(metric, seen.figure, target)), None)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The rate at which a competitor races; ``steps`` is None where no rate reached the target."""

    competitor: str
    rate: float
    steps: int | None
    best: float
    at_edge: bool


def choose(tried: Sequence[Tried], metric: Metric, target: float) -> Chosen:
    """Choose a competitor's rate: the fewest steps to the target, of equal ones the better figure there.

    Where none came to the target, the best figure at the end.
    """

    def merit(run: Tried) -> tuple[float, float]:
        steps = run.steps_to(metric, target)
        place = next((seen for seen in run.curve if seen.step == steps), run.curve[-1])
        figure = place.figure if metric.lower_is_better else -place.figure
        return (float("inf") if steps is None else float(steps), figure)

    # What is no number compares with nothing: a run that diverged comes last.
    sound = [run for run in tried if run.ended != "diverged"] or list(tried)
    first = min(sound, key=merit)
    rates = [run.rate for run in tried]
    return Chosen(
        competitor=first.competitor,
        rate=first.rate,
        steps=first.steps_to(metric, target),
        best=best_of(tried, metric),
        at_edge=len(rates) > 1 and first.rate in (min(rates), max(rates)),
    )


def best_of(tried: Iterable[Tried], metric: Metric) -> float:
    """Return the best figure that any of the runs saw."""
    figures = [
        seen.figure for run in tried for seen in run.curve if run.ended != "diverged" or seen != run.curve[-1]
    ]
    nothing = float("inf") if metric.lower_is_better else 0.0
    return (min if metric.lower_is_better else max)(figures, default=nothing)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Everything that tuning saw under one set of settings."""

    settings: Mapping[str, Any]
    metric: Metric
    runs: tuple[Tried, ...]

    def of(self, competitor: str) -> list[Tried]:
        """Return one competitor's runs."""
        return [run for run in self.runs if run.competitor == competitor]


def read_tuned(path: Path, settings: Mapping[str, Any]) -> Tuned | None:
    """Read what was tuned so far, None where nothing was; runs of other settings are refused."""
    found = _read(path, settings, "tuned")
    if found is None:
        return None
    runs = [
        Tried(
            competitor=run["competitor"], rate=run["rate"], ended=run["ended"], curve=curve_of(run["curve"])
        )
        for run in found["runs"]
    ]  # fmt: skip
    return Tuned(settings=found["settings"], metric=Metric(**found["metric"]), runs=tuple(runs))


def write_tuned(path: Path, about: Mapping[str, Any], tuned: Tuned) -> None:
    """Write what was tuned so far, in one move."""
    runs = [
        {"competitor": run.competitor, "rate": run.rate, "ended": run.ended, "curve": points_of(run.curve)}
        for run in tuned.runs
    ]
    whole = {**about, "settings": dict(tuned.settings), "metric": metric_of(tuned.metric), "runs": runs}
    _write(path, whole)


@dataclass(frozen=True, kw_only=True)
class Raced:
    """What a file has of a race: a row for each who has run, by name, and those whom tuning kept from it."""

    rows: dict[str, dict[str, Any]]
    not_raced: list[dict[str, Any]]


def read_raced(path: Path | None, settings: Mapping[str, Any]) -> Raced:
    """Read a race so far, nothing where there is no file; one of other settings is refused."""
    found = (None if path is None else _read(path, settings, "raced")) or {}
    rows = {row["competitor"]: row for row in found.get("rows", [])}
    return Raced(rows=rows, not_raced=list(found.get("not_raced", [])))


def write_rows(path: Path | None, whole: dict[str, Any]) -> None:
    """Write a race so far, in one move, if it is wanted."""
    if path is not None:
        _write(path, whole)


def points_of(curve: Iterable[Seen]) -> list[list[float]]:
    """Return a curve as JSON has it: [seconds, step, figure]."""
    return [[round(seen.seconds, 4), seen.step, seen.figure] for seen in curve]


def curve_of(points: Iterable[Sequence[Any]]) -> tuple[Seen, ...]:
    """Return a curve as it was; what was no number is none again."""
    return tuple(
        Seen(seconds=seconds, step=int(step), figure=float("nan") if figure is None else figure)
        for seconds, step, figure in points
    )


def metric_of(metric: Metric) -> dict[str, Any]:
    """Return a metric as JSON has it."""
    return {"name": metric.name, "lower_is_better": metric.lower_is_better, "exponential": metric.exponential}


def _read(path: Path, settings: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    found = read_json(path)
    if not found:
        return None
    # As JSON has them: tuples are lists there.
    wanted = json.loads(json.dumps(settings))
    theirs = found.get("settings", {})
    differ = sorted(key for key in {*wanted, *theirs} if wanted.get(key) != theirs.get(key))
    if differ:
        named = "; ".join(f"{key} {theirs.get(key)!r}, got {wanted.get(key)!r}" for key in differ)
        raise ValueError(f"{path} was {what} with other settings: {named}. Give the same, or another file.")
    return found


def _write(path: Path, whole: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, finite(whole))
