"""The benchmark of steps as a page: times against rates, and bytes against times; one file that needs no other."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from laconic.lab.network.step_visits import AGAIN
from laconic.lab.report.figures import short, style
from laconic.lab.report.markup import json_in_script
from laconic.lab.report.palette import Look, looks_of
from laconic.lab.report.read import Run

_PIXELS = 440


def write_page(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page of a result, as its JSON file has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(result), encoding="utf-8")


def page(result: Mapping[str, Any]) -> str:
    """Return the page as HTML: two figures for every number of hosts."""
    css = files("laconic.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    title = f"one training step of {result['parameters']:,} parameters over slow links"
    out = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>",
        f'<header><p class="about">{escape(result["cpu"])} · torch {escape(result["torch"])}</p>',
        f"<h1>{escape(title)}</h1></header>",
    ]
    drawn: dict[str, go.Figure] = {}
    for number in sorted({row["hosts"] for row in result["rows"]}):
        for name, figure in figures(result, number).items():
            key = f"figure{len(drawn)}"
            drawn[key] = figure
            out.append(f"<section><h2>{number} ranks: {escape(name)}</h2><div id='{key}'></div></section>")
    out.append(f"<section><pre>{escape(result['command'])}</pre></section></main>")
    out.append(f"<script>{get_plotlyjs()}</script>")
    for key, figure in drawn.items():
        show = f"Plotly.newPlot('{key}', f.data, f.layout, {{displayModeBar: false, responsive: true}});"
        out.append(f"<script>{{ const f = {json_in_script(figure.to_json())}; {show} }}</script>")
    return "\n".join([*out, "</body>\n</html>\n"])


def figures(result: Mapping[str, Any], hosts: int) -> dict[str, go.Figure]:
    """Draw what was measured on so many hosts; what has no points is left out."""
    rows = [row for row in result["rows"] if row["hosts"] == hosts and row["milliseconds"] is not None]
    rows = [row for row in rows if not row["peer"].endswith(AGAIN)]
    speed = {link["megabits"]: link.get("bits_per_second") for link in result["links"] if link["hosts"] == hosts}
    points = [row | {"rate": speed[row["megabits"]]} for row in rows]
    drawn = {
        "time against what the link carries": _figure(points, "rate", "milliseconds"),
        "bytes a rank sends in a step against its time": _figure(points, "milliseconds", "interface_bytes"),
    }
    return {name: figure for name, figure in drawn.items() if figure.data}


_TITLES = {
    "rate": "bits a second of a plain transfer",
    "milliseconds": "milliseconds a step",
    "interface_bytes": "bytes a step and rank, by the interface",
}


def _figure(points: list[dict[str, Any]], x: str, y: str) -> go.Figure:
    """Draw one line a competitor; both axes are logarithmic, so what is nothing has no place."""
    figure, names = go.Figure(), list(dict.fromkeys(point["peer"] for point in points))
    for name, look in zip(names, _looks(names), strict=True):
        own = sorted((p for p in points if p["peer"] == name and p[x] and p[y]), key=lambda point: float(point[x]))
        if own:
            figure.add_trace(_trace(name, look, own, x, y))
    style(figure, x=_TITLES[x], log_x=True, log_y=True, percent=False)
    # 1, 2, 5 and so on: all nine would stand upon each other.
    figure.update_xaxes(exponentformat="SI", ticksuffix="", dtick="D2")
    figure.update_yaxes(title={"text": _TITLES[y], "standoff": 8}, exponentformat="SI", dtick="D2")
    figure.update_layout(height=_PIXELS, showlegend=True, hovermode="closest")
    return figure


def _trace(name: str, look: Look, points: list[dict[str, Any]], x: str, y: str) -> go.Scatter:
    return go.Scatter(
        x=[point[x] for point in points], y=[point[y] for point in points], name=short(name), mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 1.5},
        marker={"color": look.colour, "symbol": look.mark, "size": 7},
        text=["no limit" if p["megabits"] is None else f"{p['megabits']:g} Mbit/s" for p in points],
        hovertemplate=f"{escape(name)}, %{{text}}: %{{x:.4~g}}, %{{y:.4~g}}<extra></extra>",
    )  # fmt: skip


def _looks(names: list[str]) -> list[Look]:
    """Return a look a competitor: plain DDP, which others are measured by, has the colour of text."""
    return looks_of(
        [Run(label=name, spec={"method": "dense" if name == "ddp" else f"other {name}"}) for name in names]
    )
