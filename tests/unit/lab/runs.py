"""Believable folders of runs that never were."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

LSTM = {
    "embedding.weight": 6_144, "lstm.weight_ih_l0": 65_536, "lstm.weight_hh_l0": 262_144,
    "lstm.bias_ih_l0": 1_024, "lstm.bias_hh_l0": 1_024, "head.weight": 24_576, "head.bias": 96,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Made:
    """A run to make up. With ``stops_at`` its result is missing; from ``diverges_at`` on its loss is NaN.

    With ``local_every`` ranks step by themselves for rounds of so many steps. With ``weighs_by`` a tuner weighs
    what is sent against its cost in that unit; seconds are those of a link that is measured.
    """

    method: str = "topk:density=0.01"
    density: float = 0.01
    level: float = 1.3
    steps: int = 600
    every: int = 10
    eval_every: int = 60
    entries: Mapping[str, int] | None = None
    clips: bool = False
    stops_at: int | None = None
    diverges_at: int | None = None
    seed: int = 0
    metric: str = "perplexity"
    task: Mapping[str, Any] | None = None
    step_seconds: float = 0.048
    local_every: int | None = None
    weighs_by: str | None = None

    @property
    def folder(self) -> str:
        return self.method.replace(":", "-")


def write_run(folder: Path, made: Made) -> Path:
    """Write one run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = _lines(made)
    _save(folder / "spec.json", _spec(made))
    _save(folder / "environment.json", _environment(made))
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if made.stops_at is None:
        _save(folder / "result.json", _result(made, lines))
    return folder


def write_compare(folder: Path, runs: Sequence[Made]) -> Path:
    """Write what ``laconic compare`` leaves."""
    for made in runs:
        write_run(folder / made.folder, made)
    methods = {
        made.method: json.loads((folder / made.folder / "result.json").read_text())
        for made in runs
        if made.stops_at is None
    }
    spec = _spec(runs[0])
    _save(folder / "compare.json", {"methods": [made.method for made in runs], "spec": spec})
    _save(folder / "summary.json", {"spec": spec, "metric": spec["metric"], "methods": methods})
    return folder


def dense(**settings: Any) -> Made:
    """Return a dense run."""
    return Made(**{"method": "dense", "density": 1.0, "level": 1.34, "step_seconds": 0.041, **settings})


def _spec(made: Made) -> dict[str, Any]:
    course = {"steps": made.steps, "batch": 8, "optimizer": "sgd", "rate": 8.0, "seed": made.seed}
    task = dict(made.task or {"kind": "lm", "data": "python-docs", "model": "lstm", "level": "char"})
    metric = {"name": made.metric, "lower_is_better": made.metric != "accuracy"}
    return {
        "task": task, "course": course, "method": made.method, "workers": 4, "device": "cpu", "metric": metric,
    }  # fmt: skip


def _environment(made: Made) -> dict[str, Any]:
    command = f"laconic train lm --method {made.method} --workers 4 --out runs/first"
    return {
        "command": command, "python": "3.11.9", "laconic": "0.2.0", "torch": "2.13.0", "system": "Linux x86_64",
        "cpu": "Some CPU of 2 GHz", "cores": 4, "gpu": None, "kernels": "numba", "backend": "gloo",
        "date": "2026-05-04T10:00:00+00:00",
    }  # fmt: skip


def _lines(made: Made) -> list[dict[str, Any]]:
    noise = Random(made.method)
    entries = made.entries or LSTM
    dense_step, sent, lines = 4 * sum(entries.values()), 0.0, []
    for step in range(made.every, (made.stops_at or made.steps) + 1, made.every):
        density = min(1.0, made.density * (1 + 3 * math.exp(-step / 80)))
        sent += made.every * dense_step * (1.0 if density == 1 else 2 * density)
        loss = made.level + 2.6 * math.exp(-step / (made.steps / 6)) + noise.gauss(0, 0.03)
        gone = made.diverges_at is not None and step >= made.diverges_at
        line: dict[str, Any] = {
            "step": step, "epoch": step / 300, "loss": math.nan if gone else loss, "rate": 8.0,
            "seconds": step * made.step_seconds, "step_seconds": made.step_seconds * noise.uniform(0.95, 1.1),
            "data_share": 0.001, "wire_bytes": int(sent), "dense_bytes": step * dense_step, "density": density,
            "owed_norm": 0.0 if density == 1 else 2 - 2 * math.exp(-step / 90),
            "clipped_share": 0.3 + 0.1 * noise.random() if made.clips else 0.0, "skipped_steps": 0,
        }  # fmt: skip
        if made.local_every is not None:
            syncs = step // made.local_every
            line |= {"syncs": syncs, "every": made.local_every, "drift": 3 / syncs if syncs else 0.0}
        if made.weighs_by is not None:
            line |= _weighed(made, step)
        if step % made.eval_every == 0:
            quality = math.exp(loss) if made.metric == "perplexity" else 1 / (0.2 + loss)
            line |= {"metric": math.inf if gone else quality, "eval_loss": math.nan if gone else loss}
            line["layers"] = {
                name: min(1.0, density * (1.5 - place / len(entries)) * noise.uniform(0.8, 1.2))
                if density < 1 and size >= 1024 else 1.0
                for place, (name, size) in enumerate(entries.items())
            }  # fmt: skip
        lines.append(line)
    return lines


def _weighed(made: Made, step: int) -> dict[str, Any]:
    """A gain that saturates over a cost with an overhead: later in a run more entries are worth sending."""
    chosen, overhead = 100.0 + step, 50.0

    def worth(count: float) -> float:
        return count / (chosen + count) / (overhead + count / 64)

    gain = chosen / (chosen + chosen)
    line = {"count": chosen, "unit": made.weighs_by, "gain": gain, "cost": gain / worth(chosen)}
    line["efficiency"] = worth(chosen)
    if made.weighs_by == "seconds":
        line |= {"latency_seconds": 0.002, "bits_per_second": 1e7 if step < made.steps / 2 else 1e6}
    if step % made.eval_every == 0:
        line["curve"] = [[count, worth(count)] for count in (10.0 * 1.3**power for power in range(30))]
    return line


def _result(made: Made, lines: list[dict[str, Any]]) -> dict[str, Any]:
    evaluated = [line["metric"] for line in lines if "metric" in line]
    last = lines[-1]
    name = made.method.split(":")[0]
    return {
        "method": name, "label": made.method, "metric": made.metric,
        "best": (min if made.metric == "perplexity" else max)(evaluated, default=None),
        "final": evaluated[-1] if evaluated else None, "final_loss": last["loss"], "train_loss": last["loss"],
        "wire_bytes_sent_per_rank": last["wire_bytes"], "dense_bytes_per_rank": last["dense_bytes"],
        "ratio": last["dense_bytes"] / last["wire_bytes"],
        "steps": made.steps, "syncs": last.get("syncs", made.steps),
        "seconds": last["seconds"], "seed": made.seed, "data_share": 0.001,
        "density": sum(line["density"] for line in lines) / len(lines), "clipped_share": last["clipped_share"],
        "skipped_steps": 0, "finished": True, "entries": dict(made.entries or LSTM),
        "scores": {"valid": evaluated[-1] if evaluated else None}, "weights_sha256": "00ff" * 16,
        "what": f"Sends {made.density:.2%} of the entries and remembers the rest.", "paper": "Lin et al. 2018",
        "settings": f"Method(name={name!r}, density={made.density})",
        **({"tuning": _weighed(made, made.steps)} if made.weighs_by else {}),
    }  # fmt: skip


def _save(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
