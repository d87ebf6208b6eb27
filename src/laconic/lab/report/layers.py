"""Charts of one method's layers: what each sends, and how large a part of itself that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.colors import sample_colorscale  # type: ignore[import-untyped]

from laconic.lab.report.amounts import number, share, size
from laconic.lab.report.figures import short, style
from laconic.lab.report.palette import PAGE, QUIET
from laconic.lab.report.read import Run

# Layers that are drawn one by one; the rest are one area.
_MOST_AREAS = 8
# From this number of layers on a chart has no room for those that say nothing.
_MANY = 40
_MOST_COLUMNS, _MOST_CELLS = 120, 20_000
_LEAST_DENSITY = 1e-6
_SCALE = "Viridis"
# Layers with less than this share of the bytes cannot be seen.
_SEEN = 0.004


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What the lines of a run say about its layers, those in the model's order.

    ``densities`` and ``step_bytes`` have a row a layer and a column a step of ``steps``.
    """

    names: list[str]
    steps: list[int]
    densities: list[list[float | None]]
    step_bytes: list[list[float]]


def layers_of(run: Run) -> Layers | None:
    """Return a run's layers, None where no line has them.

    The bytes of a step are apportioned by entries sent: of B bytes layer l gets
    B d_l n_l / sum(d_k n_k), with densities d and entries n. B is the mean a step since the line before.
    """
    chosen = [place for place, line in enumerate(run.steps) if isinstance(line.get("layers"), Mapping)]
    if not chosen:
        return None
    names = list(dict.fromkeys(name for place in chosen for name in run.steps[place]["layers"]))
    chosen = _thinned(chosen, min(_MOST_COLUMNS, max(2, _MOST_CELLS // len(names))))
    entries = run.result.get("entries") if isinstance(run.result.get("entries"), Mapping) else {}
    lines = [run.steps[place]["layers"] for place in chosen]
    densities = [[number(line.get(name)) for line in lines] for name in names]
    sent = [[(d or 0.0) * (number((entries or {}).get(name)) or 0.0) for d in row]
            for name, row in zip(names, densities, strict=True)]  # fmt: skip
    totals = [sum(column) for column in zip(*sent, strict=True)]
    whole = [_bytes_a_step(run.steps, place) for place in chosen]
    step_bytes = [[b * part / total if total else 0.0 for b, part, total in zip(whole, row, totals, strict=True)]
                  for row in sent]  # fmt: skip
    steps = [int(run.steps[place]["step"]) for place in chosen]
    return Layers(names=names, steps=steps, densities=densities, step_bytes=step_bytes)


def bytes_by_layer(layers: Layers) -> go.Figure | None:
    """Draw the bytes of a step as areas on top of each other; of large models, by parts of the model."""
    parts = _parts(layers)
    order = sorted(parts, key=lambda name: -sum(parts[name]))
    whole = sum(map(sum, parts.values()))
    drawn = [name for name in parts if name in order[:_MOST_AREAS] and sum(parts[name]) > _SEEN * whole]
    rest = [name for name in parts if name not in drawn]
    if not drawn:
        return None
    colours = sample_colorscale(_SCALE, [(i + 0.5) / len(drawn) for i in range(len(drawn))])
    figure = go.Figure()
    for colour, name in zip(colours, drawn, strict=True):
        figure.add_trace(_area(name, layers.steps, parts[name], colour))
    if rest:
        name = f"the other {len(rest)}" if len(rest) > 1 else rest[0]
        others = [sum(column) for column in zip(*(parts[each] for each in rest), strict=True)]
        figure.add_trace(_area(name, layers.steps, others, QUIET))
    style(figure, x="steps", log_x=False, log_y=False, percent=False)
    figure.update_yaxes(rangemode="tozero", exponentformat="SI", ticksuffix="B")
    figure.update_layout(hovermode="x unified", showlegend=True, height=330 + 22 * math.ceil(len(figure.data) / 3))
    figure.update_layout(legend={"orientation": "h", "yanchor": "top", "y": -0.2, "x": 0, "traceorder": "normal"})
    return figure


def density_by_layer(layers: Layers, *, least: float) -> go.Figure:
    """Draw a layer a row, a step a column; the colour is the logarithm of the density, from ``least`` on."""
    low = math.floor(math.log10(max(least, _LEAST_DENSITY)) + 1e-9) if least < 1 else -1
    ticks = list(range(low, 1))
    shown = _not_always_whole(layers)
    names, densities = [layers.names[place] for place in shown], [layers.densities[place] for place in shown]
    height = min(580, max(330, 150 + 18 * len(shown)))
    figure = go.Figure(
        go.Heatmap(
            x=layers.steps, y=[escape(name) for name in names],
            z=[[round(math.log10(max(d, 10.0**low)), 3) if d else None for d in row] for row in densities],
            customdata=[[share(d) for d in row] for row in densities],
            zmin=low, zmax=0, colorscale=_SCALE, hovertemplate="%{y}<br>step %{x}: %{customdata}<extra></extra>",
            colorbar={"tickvals": ticks, "ticktext": [share(10.0**t) for t in ticks], "thickness": 10,
                      "outlinewidth": 0, "orientation": "h", "len": 0.9, "x": 0.5, "yanchor": "top",
                      "y": -50 / (height - 120),
                      "title": {"text": "density (blank: nothing sent)", "side": "bottom"}},
        )
    )  # fmt: skip
    hidden = len(layers.names) - len(shown)
    x = f"steps (left out: {hidden} always sent whole)" if hidden else "steps"
    style(figure, x=x, log_x=False, log_y=False, percent=False)
    # Names of many layers would lie on each other: then some are written, and each shows under the pointer.
    every = math.ceil(len(shown) / 30)
    named = list(range(0, len(shown), every))
    figure.update_yaxes(
        autorange="reversed", type="category", showgrid=False, tickvals=named,
        ticktext=[short(names[place], 22) for place in named], tickfont={"size": 11 if every == 1 else 9},
    )  # fmt: skip
    figure.update_xaxes(showgrid=False)
    figure.update_layout(height=height, meta={"names": "y"})
    return figure


def least_density(every: Sequence[Layers]) -> float:
    """Return the smallest density over methods, so that a colour means the same in all their charts."""
    known = [d for layers in every for row in layers.densities for d in row if d]
    return min(known, default=1.0)


def _parts(layers: Layers) -> dict[str, list[float]]:
    """Return the bytes of each layer, or of parts of the model where layers are many.

    ``layer1.0.conv.weight`` is of ``layer1.0`` and of ``layer1``: the longest names are taken of which there are
    not too many.
    """
    deepest = max(name.count(".") for name in layers.names) + 1
    for depth in range(deepest, 0, -1):
        parts: dict[str, list[float]] = {}
        for name, row in zip(layers.names, layers.step_bytes, strict=True):
            part = ".".join(name.split(".")[:depth])
            before = parts.get(part, [0.0] * len(row))
            parts[part] = [a + b for a, b in zip(before, row, strict=True)]
        if len(parts) <= _MOST_AREAS + 4:
            break
    return parts


def _not_always_whole(layers: Layers) -> list[int]:
    """Return the rows to draw: of many layers those that are always sent whole say nothing, and hide the others."""
    every = list(range(len(layers.names)))
    if len(every) <= _MANY:
        return every
    partly = [place for place in every if any(d is not None and d < 1 for d in layers.densities[place])]
    return partly or every


def _thinned(places: list[int], most: int) -> list[int]:
    if len(places) <= most:
        return places
    last = len(places) - 1
    return [places[round(i * last / (most - 1))] for i in range(most)]


def _bytes_a_step(lines: Sequence[Mapping[str, Any]], place: int) -> float:
    before = lines[place - 1] if place else {"step": 0, "wire_bytes": 0}
    grown = (number(lines[place].get("wire_bytes")) or 0.0) - (number(before.get("wire_bytes")) or 0.0)
    return max(0.0, grown) / max(1, int(lines[place]["step"]) - int(before["step"]))


def _area(name: str, steps: list[int], values: list[float], colour: str) -> go.Scatter:
    return go.Scatter(
        x=steps, y=[round(value, 1) for value in values], name=short(name), stackgroup="bytes", mode="lines",
        line={"width": 1, "color": PAGE}, fillcolor=colour, customdata=[size(value) for value in values],
        hovertemplate="%{customdata}",
    )  # fmt: skip
