"""Charts over all methods, one figure each, drawn for a light page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import plotly.graph_objects as go  # type: ignore[import-untyped]

from laconic.lab.report.amounts import milliseconds, number
from laconic.lab.report.palette import GRID, MUTED, PANEL, TEXT, Look, looks_of
from laconic.lab.report.read import Run
from laconic.lab.report.tables import rows_of

Axis = Literal["steps", "bytes", "seconds"]
AXES: dict[Axis, str] = {"steps": "step", "bytes": "wire_bytes", "seconds": "seconds"}
AXIS_TITLES: dict[Axis, str] = {"steps": "steps", "bytes": "bytes sent a rank", "seconds": "seconds of training"}
# More points than this cannot be told apart on a screen, and make a page slow.
MOST_POINTS = 300
# From this ratio between the largest and the smallest value on, a linear axis hides what happens at the end.
WIDE = 30.0
# Lines of more methods than this are drawn thinner.
_FEW = 6


@dataclass(frozen=True, kw_only=True)
class Line:
    """What is drawn of one run: points, None where there is none."""

    x: list[float | None]
    y: list[float | None]


def lines_a_point(runs: Sequence[Run]) -> int:
    """Return how many lines of the longest log one point of a chart stands for."""
    return max([1, *(math.ceil(len(run.steps) / MOST_POINTS) for run in runs)])


def over(runs: Sequence[Run], key: str, axis: Axis) -> go.Figure | None:
    """Draw what the lines have under ``key`` against an axis; None where no line has it.

    Long logs are drawn as means over ``lines_a_point`` lines, evaluations one by one.
    """
    evaluations = key == "metric"
    lines = [_line(run, key, axis, 1 if evaluations else lines_a_point([run])) for run in runs]
    figure = go.Figure()
    for place, (run, look, line) in enumerate(zip(runs, looks_of(runs), lines, strict=True)):
        # What a method never owes, clips or walks needs no line along the bottom.
        if all(value is None or (key in _FROM_NOTHING and not value) for value in line.y):
            continue
        # A single point has no line that could be seen.
        marks = evaluations or sum(value is not None for value in line.y) == 1
        figure.add_trace(_trace(run, place, look, line, marks=marks, width=2 if len(runs) <= _FEW else 1.5))
        if run.diverged_at is not None and key in ("loss", "metric"):
            figure.add_trace(_end(run, place, look, line))
    if not figure.data:
        return None
    ys = [value for line in lines for value in line.y if value is not None]
    style(figure, x=AXIS_TITLES[axis], log_x=axis == "bytes", log_y=_log(key, ys), percent=key in _SHARES)
    if key in _FROM_NOTHING:
        figure.update_yaxes(rangemode="tozero")
    if _log(key, ys):
        # 1, 2, 5 and so on: all nine would stand upon each other; over many decades their ones are enough.
        many = max(ys) / max(min(ys), 1e-300) > 1e4
        figure.update_yaxes(dtick=1 if many else "D2")
    figure.update_layout(hovermode="x unified" if axis == "steps" else "closest")
    return figure


def step_times(runs: Sequence[Run]) -> go.Figure | None:
    """Draw the median time of a step, one bar a method."""
    rows = rows_of(runs)
    if all(row.step_seconds is None for row in rows):
        return None
    figure = go.Figure()
    for place, (row, look) in enumerate(zip(rows, looks_of(runs), strict=True)):
        if row.step_seconds is None:
            continue
        text = f"{milliseconds(row.step_seconds)} ms"
        figure.add_trace(
            go.Bar(
                x=[1000 * row.step_seconds], y=[short(row.label)], orientation="h", name=escape(row.label),
                meta=place, marker={"color": look.colour}, text=[text], textposition="outside", cliponaxis=False,
                hovertemplate=f"{escape(row.label)}: {text}<extra></extra>",
            )
        )  # fmt: skip
    style(figure, x="milliseconds a step", log_x=False, log_y=False, percent=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    # Room for the numbers behind the longest bar.
    figure.update_xaxes(range=[0, 1.4 * max(1000 * (row.step_seconds or 0.0) for row in rows)])
    figure.update_layout(bargap=0.35, height=max(260, 90 + 30 * len(rows)), barmode="overlay")
    return figure


def style(figure: go.Figure, *, x: str, log_x: bool, log_y: bool, percent: bool) -> None:
    """Give a figure what all of them have in common."""
    lines = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True, "ticks": ""}
    figure.update_layout(
        template="none", height=330, margin={"l": 8, "r": 12, "t": 8, "b": 8}, showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", dragmode=False,
        font={"family": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif", "size": 12,
              "color": MUTED},
        hoverlabel={"bgcolor": PANEL, "bordercolor": GRID, "font": {"color": TEXT, "size": 12}, "namelength": -1},
    )  # fmt: skip
    figure.update_xaxes(**lines, title={"text": x, "standoff": 8}, type="log" if log_x else "linear")
    figure.update_yaxes(**lines, type="log" if log_y else "linear")
    if log_x:
        figure.update_xaxes(exponentformat="SI", ticksuffix="B", dtick=1)
    if percent:
        figure.update_yaxes(tickformat=".3~%")


def short(label: str, most: int = 28) -> str:
    """Return a label that fits beside a chart, safe to be read as HTML."""
    return escape(label if len(label) <= most else f"{label[: most - 1]}…")


_SHARES = ("density", "clipped_share")
_LOG = ("density", "count", "bits_per_second")
_FROM_NOTHING = ("owed_norm", "clipped_share", "drift", "every")


def _line(run: Run, key: str, axis: Axis, each: int) -> Line:
    # Before its first sync a run has drifted from nothing yet.
    known = [line for line in run.steps if key in line and (key != "drift" or line.get("syncs"))]
    groups = [known[first : first + each] for first in range(0, len(known), each)]
    xs = [number(group[-1].get(AXES[axis])) for group in groups]
    if axis == "bytes":
        # A logarithmic axis has no place for what has sent nothing yet.
        xs = [value if value else None for value in xs]
    ys = [_mean(group, key) for group in groups]
    if key in _LOG:
        ys = [value if value and value > 0 else None for value in ys]
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None]
    return Line(x=[_rounded(x) for x, _ in pairs], y=[_rounded(y) for _, y in pairs])


def _mean(group: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean over a few lines; None as soon as one of them is no number."""
    values = [number(line[key]) for line in group]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _trace(run: Run, place: int, look: Look, line: Line, *, marks: bool, width: float) -> go.Scatter:
    return go.Scatter(
        x=line.x, y=line.y, name=escape(run.label), meta=place, mode="lines+markers" if marks else "lines",
        line={"color": look.colour, "dash": look.dash, "width": width},
        marker={"color": look.colour, "symbol": look.mark, "size": 6},
        hovertemplate="%{y:.4~g}",
    )  # fmt: skip


def _end(run: Run, place: int, look: Look, line: Line) -> go.Scatter:
    """Mark the last number of a run that diverged."""
    last = max(i for i, value in enumerate(line.y) if value is not None)
    return go.Scatter(
        x=[line.x[last]], y=[line.y[last]], name=f"{escape(run.label)} diverged", meta=place, mode="markers",
        marker={"color": look.colour, "symbol": "x", "size": 12},
        hovertemplate=f"diverged at step {run.diverged_at}<extra></extra>",
    )  # fmt: skip


def _log(key: str, ys: Sequence[float]) -> bool:
    if key in _LOG:
        return True
    return key in ("loss", "metric") and min(ys) > 0 and max(ys) / min(ys) > WIDE
