"""What curves of a loss over seconds say: how soon a target is reached.

A point of a curve is the mean over five evaluations in a row, of their seconds and of their losses; between points
the loss is taken to lie on a straight line.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, median
from typing import Any

from rich.table import Table

# Evaluations in a row whose mean is a point of the curve: with a constant rate the loss goes up and down.
_SMOOTHED = 5


def evaluations(run: dict[str, Any]) -> list[tuple[float, float]]:
    """Return second and validation loss, each the mean over five evaluations in a row."""
    seen = [(line["seconds"], line["eval_loss"]) for line in run["curve"] if line.get("eval_loss") is not None]
    groups = [seen[i : i + _SMOOTHED] for i in range(max(1, len(seen) - _SMOOTHED + 1))]
    return [(mean(second for second, _ in group), mean(loss for _, loss in group)) for group in groups if group]


def loss_at(run: dict[str, Any], second: float) -> float:
    """Return the loss at a second, on the straight line between points; after the last, that of the last."""
    points = evaluations(run)
    for (before, high), (after, low) in pairwise(points):
        if before <= second <= after:
            return high + (low - high) * (second - before) / (after - before)
    return points[-1][1] if second > points[-1][0] else points[0][1]


def seconds_to(run: dict[str, Any], target: float) -> float | None:
    """Return the second at which the loss first is at the target, on the straight line between points."""
    points = evaluations(run)
    for (before, high), (after, low) in pairwise(points):
        if low <= target < high:
            return before + (after - before) * (high - target) / (high - low)
    return None


def judge_(result: dict[str, Any], share: float) -> None:
    """Leave the target in the result, and the seconds to it in every run that has reached it."""
    second = share * result["settings"]["seconds"]
    fixed = [run for run in result["runs"] if run["method"].startswith(("topk", "dense"))]
    if not fixed:
        return
    names = {run["method"] for run in fixed}
    losses = {name: median(loss_at(run, second) for run in fixed if run["method"] == name) for name in names}
    result["target_loss"] = min(losses.values())
    for run in result["runs"]:
        run["seconds_to_target"] = seconds_to(run, result["target_loss"])


def table(result: dict[str, Any]) -> Table:
    """Lay out the middle of every method's runs, the soonest at the target first."""
    settings, target = result["settings"], result.get("target_loss", float("nan"))
    made = Table(
        title=f"{settings['fast']:g} Mbit/s, from second {settings['change_at']:g} on {settings['slow']:g} Mbit/s; "
        f"{settings['ranks']} ranks; target: validation loss {target:.3f}"
    )
    columns = ("method", "runs", "s to target", "loss at change", "loss at end", "steps", "ms fast", "ms slow")
    for column in (*columns, "density fast", "density slow", "MB sent", "cable/sent", "others' cores"):
        made.add_column(column, justify="left" if column == "method" else "right", no_wrap=column == "method")
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in result["runs"]:
        groups.setdefault(run["method"], []).append(run)
    for method, runs in sorted(groups.items(), key=lambda group: _soonest(group[1])):
        made.add_row(method, *_cells(runs, settings))
    return made


def _soonest(runs: list[dict[str, Any]]) -> float:
    """Return the middle of the seconds to the target; a run that has not reached it counts as endless."""
    return median(run["seconds_to_target"] or float("inf") for run in runs)


def _cells(runs: list[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    change, end = settings["change_at"], settings["seconds"]
    slow = [[line for line in run["curve"] if line["seconds"] > change] for run in runs]
    fast = [[line for line in run["curve"] if line["seconds"] <= change] for run in runs]
    last = [run["curve"][-1] for run in runs]
    return [
        str(len(runs)),
        f"{_soonest(runs):.1f}",
        f"{median(loss_at(run, change) for run in runs):.3f}",
        f"{median(loss_at(run, end) for run in runs):.3f}",
        f"{median(line['step'] for line in last):.0f}",
        _milliseconds(runs, "fast"),
        _milliseconds(runs, "slow"),
        _density(fast),
        _density(slow),
        f"{median(line['wire_bytes'] for line in last) / 1e6:.1f}",
        f"{median(_on_cable(run) for run in runs):.3f}",
        f"{median(run['cores_taken_by_others'] for run in runs):.2f}",
    ]


def _on_cable(run: dict[str, Any]) -> float:
    """Return the bytes that the interface counted over those reported, from the first line to the last.

    Before the first line the weights travelled, which no method is to blame for.
    """
    first, last = run["curve"][0], run["curve"][-1]
    sent = last["wire_bytes"] - first["wire_bytes"]
    return (last["interface_bytes"] - first["interface_bytes"]) / sent if sent else float("nan")


def _milliseconds(runs: list[dict[str, Any]], part: str) -> str:
    known = [run["step_seconds"][part] for run in runs if run["step_seconds"][part] is not None]
    return f"{1e3 * median(known):.0f}" if known else "-"


def _density(parts: list[list[dict[str, Any]]]) -> str:
    known = [line["density"] for part in parts for line in part]
    return f"{median(known):.5f}" if known else "-"
