"""The page: one file with everything in it, that can be read offline and sent on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from laconic.lab.report.figures import AXES, lines_a_point, over, step_times
from laconic.lab.report.frontier import frontier
from laconic.lab.report.headline import headline, remarks
from laconic.lab.report.layers import bytes_by_layer, density_by_layer, layers_of, least_density
from laconic.lab.report.markup import json_in_script
from laconic.lab.report.palette import DARK, looks_of
from laconic.lab.report.read import Run
from laconic.lab.report.sections import Chart, again, charts, commands_of, layers, methods, notes, results
from laconic.lab.report.tables import csv_text, markdown, rows_of
from laconic.lab.report.weighed import CHARTS, weighed_figures

# Charts that only some methods have are lower than the others.
_SMALL_PIXELS = 270


def write_page(runs: Sequence[Run], path: Path, *, title: str | None = None) -> Path:
    """Write the page of some runs, a self-contained HTML file, and return its path."""
    if not runs:
        raise ValueError("runs must hold one run or more, got none. Read some with read_runs.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(runs, title=title), encoding="utf-8")
    return path


def page(runs: Sequence[Run], *, title: str | None = None) -> str:
    """Return the page as HTML."""
    figures = all_figures(runs)
    title = title or default_title(runs)
    also = " ".join(remarks(runs))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{_own('page.css')}</style>\n</head>\n<body>\n<main>",
            f'<header>\n<div class="top"><p class="about">{escape(about(runs))}</p>'
            f'<button type="button" id="theme">Dark page</button></div>\n<h1>{escape(title)}</h1>',
            f'<p class="lede">{escape(headline(runs))}</p>',
            f'<p class="also">{escape(also)}</p>\n</header>' if also else "</header>",
            results(runs),
            *_chart_sections(runs, figures),
            methods(runs),
            again(runs),
            notes(runs, lines_a_point(runs)),
            "</main>",
            f'<script type="application/json" id="told">{_told(runs, figures)}</script>',
            f"<script>{get_plotlyjs()}</script>\n<script>\n{_own('page.js')}</script>\n</body>\n</html>\n",
        ]
    )


def default_title(runs: Sequence[Run]) -> str:
    """Return a title from the task, the data and the number of methods."""
    task = runs[0].spec.get("task")
    task = task if isinstance(task, Mapping) else {}
    name = " on ".join(str(task[key]) for key in ("kind", "data") if task.get(key)) or "training"
    return f"{name}: {runs[0].label}" if len(runs) == 1 else f"{name}: {len(runs)} methods compared"


def about(runs: Sequence[Run]) -> str:
    """Return the line above the title: task, data set, ranks, steps, date."""
    spec = runs[0].spec
    task, course = (each if isinstance(each, Mapping) else {} for each in (spec.get("task"), spec.get("course")))
    dates = sorted({run.date for run in runs if run.date})
    parts = [
        *(f"{key} {task[key]}" for key in ("kind", "model", "data") if task.get(key)),
        f"{spec['workers']} {'simulated ' if spec.get('simulated') else ''}ranks" if spec.get("workers") else "",
        f"{course['steps']:,} steps" if isinstance(course.get("steps"), int) else "",
        " to ".join([dates[0], dates[-1]] if len(dates) > 1 else dates),
    ]
    return " · ".join(part.removeprefix("kind ") for part in parts if part)


def all_figures(runs: Sequence[Run]) -> dict[str, go.Figure]:
    """Return every chart of the page under its name; those that have nothing to show are left out."""
    found = {f"{key}:{axis}": over(runs, key, axis) for key in ("loss", "metric") for axis in AXES}
    found |= {key: over(runs, key, "steps") for key in ("density", "owed_norm")}
    if any(line.get("clipped_share") for run in runs for line in run.steps):
        found["clipped_share"] = over(runs, "clipped_share", "steps")
    found["step_times"] = step_times(runs)
    found["frontier"] = frontier(runs)
    for key in ("drift", "every"):
        found[key] = figure = over(runs, key, "steps")
        if figure is not None:
            figure.update_layout(height=_SMALL_PIXELS)
    found |= weighed_figures(runs)
    known = {place: told for place, run in enumerate(runs) if (told := layers_of(run)) is not None}
    least = least_density(list(known.values()))
    for place, told in known.items():
        found[f"layer_bytes:{place}"] = bytes_by_layer(told)
        found[f"layer_density:{place}"] = density_by_layer(told, least=least)
    return {name: figure for name, figure in found.items() if figure is not None}


def _chart_sections(runs: Sequence[Run], figures: Mapping[str, go.Figure]) -> list[str]:
    metric, better = runs[0].metric, "less" if runs[0].lower_is_better else "more"
    each = lines_a_point(runs)
    points = f"mean over ranks and over up to {each} lines of the log" if each > 1 else "mean over ranks"
    training = [
        Chart(figure="loss:{axis}", name="Training loss", note=points),
        Chart(figure="metric:{axis}", name=f"{metric.capitalize()} while training", note=f"{better} is better"),
    ]
    sending = [
        Chart(figure="density", name="Density", note="share of the gradient's entries that a rank sends, log axis"),
        Chart(figure="owed_norm", name="Owed", note="norm of what waits in a rank's memory"),
        Chart(figure="clipped_share", name="Clipped", note="share of gradients clipped so far"),
        Chart(figure="step_times", name="Time of a step", note="median over the log, without evaluation"),
        Chart(
            figure="drift", name="Drift", note="how far the first rank was from the mean of all at the last sync"
        ),
        Chart(figure="every", name="Period", note="local steps of a round: from one sync to the next"),
    ]
    there = [chart for chart in training if chart.figure.replace("{axis}", "steps") in figures]
    out = [charts("The frontier", [_frontier(runs)], switch=False)] if "frontier" in figures else []
    out += [charts("Training", there, switch=True)] if there else []
    there = [chart for chart in sending if chart.figure in figures]
    out += [charts("What is sent, and what it takes", there, switch=False)] if there else []
    there = [chart for chart in CHARTS if chart.figure in figures]
    out += [charts("How much is worth sending", there, switch=False)] if there else []
    places = [place for place in range(len(runs)) if f"layer_density:{place}" in figures]
    return [*out, layers(runs, places, _first(runs, places))] if places else out


def _frontier(runs: Sequence[Run]) -> Chart:
    up = "lower" if runs[0].lower_is_better else "higher"
    note = f"{runs[0].metric} at the end: {up} is better, and further right took fewer bytes"
    if any(run.dense for run in runs):
        note += "; the line is dense, the band 1% to either side"
    return Chart(figure="frontier", name="Quality against ratio", note=note)


def _first(runs: Sequence[Run], places: Sequence[int]) -> int:
    """Return the run whose layers are shown first: dense sends all of each, which says nothing."""
    return next((place for place in places if not runs[place].dense), places[0] if places else 0)


def _told(runs: Sequence[Run], figures: Mapping[str, go.Figure]) -> str:
    """Return what the page's script works with, as JSON that may stand inside of HTML."""
    rows, looks = rows_of(runs), looks_of(runs)
    commands = {f"command{place}": command for place, command in enumerate(commands_of(runs))}
    places = [place for place in range(len(runs)) if f"layer_density:{place}" in figures]
    plain: dict[str, Any] = {
        "dark": DARK,
        "first": str(_first(runs, places)),
        "methods": [
            {"label": row.label, "remark": row.remark, "colour": look.colour, "dash": look.dash}
            for row, look in zip(rows, looks, strict=True)
        ],
        "copies": {"markdown": markdown(runs), "csv": csv_text(runs)} | commands,
    }
    drawn = ",".join(f"{json.dumps(name)}:{figure.to_json()}" for name, figure in figures.items())
    return json_in_script(f'{json.dumps(plain)[:-1]},"figures":{{{drawn}}}}}')


def _own(name: str) -> str:
    return files("laconic.lab.report").joinpath(name).read_text(encoding="utf-8")
