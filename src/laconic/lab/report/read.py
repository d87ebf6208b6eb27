"""Run folders, read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from laconic.lab.folder import read_json, read_lines
from laconic.lab.report.amounts import number


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training as its folder tells it. ``result`` is empty until it has finished; ``date`` is that of the run."""

    label: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "metric"
    lower_is_better: bool = True
    date: str = ""

    @property
    def dense(self) -> bool:
        """Whether this is the run that others are measured against."""
        return str(self.result.get("method") or self.spec.get("method") or self.label).split(":")[0] == "dense"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.result) and bool(self.result.get("finished", True))

    @property
    def diverged_at(self) -> int | None:
        """The first step of those at the end whose loss is no number any more; None where the last one is."""
        first: int | None = None
        for line in reversed(self.steps):
            if "loss" in line and number(line["loss"]) is not None:
                break
            first = int(line["step"]) if "loss" in line else first
        if not self.steps and self.finished and number(self.result.get("train_loss", 0.0)) is None:
            return int(self.result.get("steps", 0))
        return first

    @property
    def seed(self) -> Any:
        """The seed of the run, as far as it is known."""
        return self.result.get("seed", _part(self.spec, "course").get("seed"))


def read_runs(folders: Sequence[Path]) -> tuple[Run, ...]:
    """Read every run in the folders, each of which is a run's or holds runs' folders; labels are then unique.

    A comparison's runs come in its own order, others in that of their names.
    """
    if not folders:
        raise ValueError("folders must name one folder or more, got none. Write: laconic report DIR.")
    runs: list[Run] = []
    places: list[Path] = []
    for folder in folders:
        for place in _run_folders(Path(folder)):
            if place.resolve() not in places:
                places.append(place.resolve())
                runs.append(_read(place))
    return _unique(runs, places)


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}. Give one that laconic train or laconic compare has written.")
    if (folder / "spec.json").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/spec.json"))
    if not found:
        raise FileNotFoundError(
            f"{folder} is no run's folder and holds none: a run has a spec.json. "
            f"Give what laconic train or laconic compare was given as --out."
        )
    order = list(read_json(folder / "compare.json").get("methods") or ())
    labels = {path: str(read_json(path / "spec.json").get("method", path.name)) for path in found}
    return sorted(found, key=lambda path: order.index(labels[path]) if labels[path] in order else len(order))


def _read(folder: Path) -> Run:
    spec, environment = read_json(folder / "spec.json"), read_json(folder / "environment.json")
    metric = _part(spec, "metric")
    return Run(
        label=str(spec.get("method", folder.name)),
        spec=spec,
        environment=environment,
        steps=tuple(read_lines(folder / "steps.jsonl")),
        result=read_json(folder / "result.json"),
        metric=str(metric.get("name", "metric")),
        lower_is_better=metric.get("lower_is_better", True) is True,
        date=_date(folder, environment),
    )


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, Mapping) else {}


def _date(folder: Path, environment: Mapping[str, Any]) -> str:
    if environment.get("date"):
        return str(environment["date"])[:10]
    files = [folder / name for name in ("result.json", "steps.jsonl", "spec.json")]
    last = next(path for path in files if path.is_file())
    return datetime.fromtimestamp(last.stat().st_mtime, UTC).date().isoformat()


def _unique(runs: list[Run], places: list[Path]) -> tuple[Run, ...]:
    """Tell runs of one label apart by their seeds; where these are the same too, by their folders."""

    def told_apart(names: list[str], others: list[str]) -> list[str]:
        often = Counter(names)
        return [f"{a} ({b})" if often[a] > 1 else a for a, b in zip(names, others, strict=True)]

    labels = [run.label for run in runs]
    names = told_apart(labels, [f"seed {run.seed}" for run in runs])
    if len(set(names)) < len(names):
        names = told_apart(labels, [f"{place.parent.name}/{place.name}" for place in places])
    if len(set(names)) < len(names):
        names = told_apart(labels, [str(place) for place in places])
    return tuple(replace(run, label=name) for run, name in zip(runs, names, strict=True))
