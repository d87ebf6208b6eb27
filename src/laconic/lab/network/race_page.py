"""A race as a page: the curves of all competitors over seconds and over steps, and the table; one file."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from laconic.lab.network.race_table import HEADINGS, cells, closing
from laconic.lab.report.figures import Axis, over
from laconic.lab.report.markup import json_in_script
from laconic.lab.report.palette import QUIET, TEXT
from laconic.lab.report.read import Run

_STAND_OUT = 420


def write_page(whole: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a race, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(whole), encoding="utf-8")
    return path


def page(whole: Mapping[str, Any]) -> str:
    """Return the page as HTML."""
    settings, metric = whole["settings"], whole["metric"]
    task = settings["task"]
    rate = "an unlimited link" if settings["megabits"] is None else f"{settings['megabits']:g} Mbit/s"
    link = "loopback" if settings["loopback"] else rate
    title = f"{task['kind']} on {task['data']}: time to {metric['name']} {settings['target']:g}"
    style = files("laconic.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    drawn = {"seconds": figure(whole, "seconds"), "steps": figure(whole, "steps")}
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
        f'<header><p class="about">{settings["ranks"]} ranks · {escape(link)} · {escape(whole["cpu"])}</p>',
        f"<h1>{escape(title)}</h1></header>",
        f"<section>{_table(whole)}</section>",
    ]
    for name, found in drawn.items():
        if found is not None:
            parts.append(f"<section><h2>{escape(metric['name'])} over {name}</h2><div id='{name}'></div></section>")
    notes = "".join(f"<p class='note'>{escape(line)}</p>" for line in closing(whole).splitlines())
    parts.append(f"<section>{notes}<pre>{escape(whole['command'])}</pre></section></main>")
    parts.append(f"<script>{get_plotlyjs()}</script>")
    for name, found in drawn.items():
        if found is not None:
            told = json_in_script(found.to_json())
            show = f"Plotly.newPlot('{name}', f.data, f.layout, {{displayModeBar: false, responsive: true}});"
            parts.append(f"<script>{{ const f = {told}; {show} }}</script>")
    return "\n".join([*parts, "</body>\n</html>\n"])


def figure(whole: Mapping[str, Any], axis: Axis) -> go.Figure | None:
    """Draw the figure of every competitor against an axis, with the target as a line."""
    metric = whole["metric"]
    runs = [
        Run(
            label=row["competitor"],
            # The run that others are measured against has the colour of text.
            spec={"method": "dense" if row["competitor"] == "ddp" else row["competitor"]},
            steps=tuple({"seconds": s, "step": n, "metric": value} for s, n, value in row["curve"]),
            metric=metric["name"],
            lower_is_better=metric["lower_is_better"],
        )
        for row in whole["rows"]
        if row["curve"]
    ]
    drawn = over(runs, "metric", axis) if runs else None
    if drawn is None:
        return None
    drawn.add_hline(
        y=whole["settings"]["target"], line={"color": QUIET, "dash": "dot", "width": 1.5}, annotation_text="target",
        annotation_font={"color": TEXT},
    )  # fmt: skip
    # Competitors are whole orders apart.
    drawn.update_xaxes(type="log" if axis == "seconds" else "linear", dtick="D2" if axis == "seconds" else None)
    drawn.update_layout(showlegend=True, height=_STAND_OUT, legend={"orientation": "h", "y": -0.2})
    return drawn


def _table(whole: Mapping[str, Any]) -> str:
    head = "".join(f'<th scope="col">{escape(each).replace(chr(10), "<br>")}</th>' for each in HEADINGS)
    body = ""
    for row in whole["rows"]:
        first, *others = cells(row)
        body += f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(o)}</td>" for o in others)}</tr>'
    table = f"<table class='results'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="box" role="region" tabindex="0" aria-label="Results">{table}</div>'
