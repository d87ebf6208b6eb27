"""Run folders, read back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from laconic.lab.report.amounts import number

# Metrics of which more is better, where no summary.json says it.
_HIGHER = ("accuracy", "auc", "f1", "bleu")


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


def runs_of_results(results: Mapping[str, Mapping[str, Any]], *, lower_is_better: bool | None = None) -> list[Run]:
    """Return what a summary's ``methods`` alone say of the runs."""
    return [
        Run(label=label, result=result, metric=_metric(result), lower_is_better=_lower(result, lower_is_better))
        for label, result in results.items()
    ]


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
    plan, summary = _json(folder / "compare.json"), _json(folder / "summary.json")
    order = list(plan.get("methods") or summary.get("methods") or ())
    labels = {path: _label(path, _json(path / "spec.json"), _json(path / "result.json")) for path in found}
    return sorted(found, key=lambda path: order.index(labels[path]) if labels[path] in order else len(order))


def _label(folder: Path, spec: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    return str(result.get("label") or spec.get("method") or folder.name)


def _read(folder: Path) -> Run:
    spec, result = _json(folder / "spec.json"), _json(folder / "result.json")
    environment = _json(folder / "environment.json")
    # Newer specs say what the metric is; else the summary beside the folder may.
    about = _part(spec, "metric") or _part(_json(folder.parent / "summary.json"), "metric")
    metric = str(result.get("metric") or about.get("name") or "metric")
    told = about.get("lower_is_better") if about.get("name") == metric else None
    return Run(
        label=_label(folder, spec, result),
        spec=spec,
        environment=environment,
        steps=_lines(folder / "steps.jsonl"),
        result=result,
        metric=metric,
        lower_is_better=_lower({"metric": metric} | result, told),
        date=_date(folder, environment),
    )


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}. Run the training again, or leave this folder out.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(found).__name__}. Is it laconic's file?")
    return found


def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the lines of a log; a run that still writes, or was stopped, may leave half of a last one."""
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    lines: list[dict[str, Any]] = []
    for place, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            # Only what stands behind the last line break can be a half-written line.
            if place == len(texts):
                break
            raise ValueError(f"{path}, line {place} is no JSON: {text[:60]!r}. Remove the line.") from None
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise ValueError(f"{path}, line {place} must be an object with a step, got {text[:60]!r}.")
        lines.append(line)
    return tuple(lines)


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, Mapping) else {}


def _metric(result: Mapping[str, Any]) -> str:
    return str(result.get("metric") or "metric")


def _lower(result: Mapping[str, Any], told: Any) -> bool:
    """Whether less is better: what the summary says, else the result, else what the name of the metric says."""
    said = told if isinstance(told, bool) else result.get("lower_is_better")
    return said if isinstance(said, bool) else not any(word in _metric(result).lower() for word in _HIGHER)


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
