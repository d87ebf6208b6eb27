"""Quality against ratio: what a method ends at, and how few bytes that took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go  # type: ignore[import-untyped]

from laconic.lab.report.amounts import plain, times
from laconic.lab.report.figures import WIDE, short, style
from laconic.lab.report.palette import GRID, MUTED, TEXT, looks_of
from laconic.lab.report.read import Run
from laconic.lab.report.tables import Row, rows_of

# With fewer runs the table says as much.
_FEWEST = 3
# How far from dense counts as the same, to either side.
BAND = 0.01
_HEIGHT_PIXELS = 380
# Where the points of a phone's chart lie: names that have room there have room on a desk.
_WIDTH, _HEIGHT = 262.0, 312.0
_LETTER, _LINE, _MARK = 6.3, 14.0, 7.0
_LONGEST, _MOST_LINES = 24, 3


@dataclass(frozen=True, kw_only=True)
class Box:
    """A part of the chart that is taken, in pixels from its lower left corner."""

    left: float
    right: float
    low: float
    high: float

    @property
    def within_chart(self) -> bool:
        """Whether nothing of it would be cut off."""
        return self.left >= 0 and self.right <= _WIDTH and self.low >= 0 and self.high <= _HEIGHT

    def meets(self, other: Box) -> bool:
        """Whether the two have a part in common."""
        return (
            self.left < other.right and other.left < self.right and self.low < other.high and other.low < self.high
        )


@dataclass(frozen=True, kw_only=True)
class Name:
    """What is written at a point, and on which side of it, in Plotly's words."""

    text: str = ""
    side: str = "middle right"


@dataclass(frozen=True, kw_only=True)
class Span:
    """An axis from end to end, in its logarithm where it is a logarithmic one."""

    first: float
    last: float
    log: bool

    @staticmethod
    def of(values: Sequence[float], *, log: bool, margin: float) -> Span:
        """Return the axis on which all values have a place, with some margin."""
        seen = [math.log10(value) if log else value for value in values]
        # All the same: a span of nothing cannot be drawn.
        more = margin * (max(seen) - min(seen)) or abs(seen[0]) * margin or margin
        return Span(first=min(seen) - more, last=max(seen) + more, log=log)

    def share(self, value: float) -> float:
        """Return how far along the axis a value is, from 0 to 1."""
        return ((math.log10(value) if self.log else value) - self.first) / (self.last - self.first)

    def ends(self) -> list[float]:
        """Return the values at both ends."""
        return [10**end if self.log else end for end in (self.first, self.last)]


def frontier(runs: Sequence[Run]) -> go.Figure | None:
    """Draw the final metric of every finished run against its ratio; None where there is little to compare.

    Dense is a line from end to end, with a band of 1% to either side.
    """
    rows = rows_of(runs)
    ended = {place: row for place, row in enumerate(rows) if _ratio(row) and row.status == "finished"}
    if len(runs) < _FEWEST or len(ended) < 2 or len({run.metric for run in runs}) > 1:
        return None
    parent = next((place for place in ended if runs[place].dense), None)
    finals = [_final(row) for row in ended.values()]
    if parent is not None:
        finals += [_final(ended[parent]) * (1 + side) for side in (-BAND, BAND)]
    across = Span.of([1.0, *map(_ratio, ended.values())], log=True, margin=0.06)
    up = Span.of(finals, log=min(finals) > 0 and max(finals) / min(finals) > WIDE, margin=0.1)
    figure = go.Figure()
    if parent is not None:
        for trace in _level(_final(ended[parent]), across.ends(), parent):
            figure.add_trace(trace)
    names = _names(ended, across, up, parent)
    for (place, row), look in zip(ended.items(), [looks_of(runs)[place] for place in ended], strict=True):
        figure.add_trace(
            go.Scatter(
                x=[_ratio(row)], y=[_final(row)], name=escape(row.label), meta=place, mode="markers+text",
                marker={"color": look.colour, "symbol": look.mark, "size": 10}, cliponaxis=False,
                text=[names[place].text], textposition=names[place].side, textfont={"color": TEXT, "size": 11},
                hovertemplate=f"{escape(row.label)}<br>{escape(runs[0].metric)} {plain(row.final)}<br>"
                f"{times(row.ratio)} fewer bytes<extra></extra>",
            )
        )  # fmt: skip
    style(figure, x="ratio: dense bytes / bytes sent", log_x=False, log_y=up.log, percent=False)
    ticks = _ticks(across)
    figure.update_xaxes(
        type="log",
        range=[across.first, across.last],
        tickvals=ticks,
        ticktext=[f"{tick:,g}x" for tick in ticks],
    )
    figure.update_yaxes(range=[up.first, up.last])
    figure.update_layout(height=_HEIGHT_PIXELS, hovermode="closest")
    return figure


def name_lines(label: str) -> list[str]:
    """Return a label in lines that fit beside a point, safe to be read as HTML; settings stay whole if they can.

    >>> name_lines("celgc:every=4:send=topk+density=0.01")
    ['celgc:every=4:', 'send=topk+density=0.01']
    """
    lines = [""]
    for part in label.replace(":", ":\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > _LONGEST:
            lines.append("")
        lines[-1] += part
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"{lines[_MOST_LINES - 1]}…"]
    return [short(line, _LONGEST) for line in lines]


def _ratio(row: Row) -> float:
    """Return the ratio of a row that has a place in the chart, 0 of another."""
    return row.ratio if row.ratio and row.ratio > 0 and row.final is not None else 0.0


def _final(row: Row) -> float:
    return row.final or 0.0


def _level(final: float, ends: list[float], place: int) -> list[go.Scatter]:
    """Return dense's band and line, which its button in the legend hides with its point."""
    low, high = final * (1 - BAND), final * (1 + BAND)
    shared = {"meta": place, "mode": "lines", "hoverinfo": "skip"}
    return [
        go.Scatter(
            x=[*ends, *reversed(ends)], y=[low, low, high, high], name="dense ±1%", fill="toself", fillcolor=GRID,
            opacity=0.55, line={"width": 0, "color": GRID}, **shared,
        ),
        go.Scatter(x=ends, y=[final, final], name="dense level", line={"color": MUTED, "width": 1}, **shared),
    ]  # fmt: skip


def _names(ended: dict[int, Row], across: Span, up: Span, parent: int | None) -> dict[int, Name]:
    """Return the name at each point: the label, the method alone where that has no room, or nothing.

    Hovering and the legend's colours say which point is which in any case.
    """
    points = {
        place: (_WIDTH * across.share(_ratio(row)), _HEIGHT * up.share(_final(row))) for place, row in ended.items()
    }
    marks = {
        place: Box(left=x - _MARK, right=x + _MARK, low=y - _MARK, high=y + _MARK)
        for place, (x, y) in points.items()
    }
    taken: list[Box] = []
    if parent is not None:
        level = points[parent][1]
        taken.append(Box(left=0, right=_WIDTH, low=level - 1, high=level + 1))
    found: dict[int, Name] = {}
    for place, row in ended.items():
        others = [*taken, *(mark for other, mark in marks.items() if other != place)]
        x, y = points[place]
        free = [
            (Name(text="<br>".join(lines), side=side), box)
            for lines in (name_lines(row.label), [short(row.label.split(":")[0], _LONGEST)])
            for side, box in _sides(x, y, lines).items()
            if box.within_chart and not any(box.meets(other) for other in others)
        ]
        found[place] = free[0][0] if free else Name()
        taken += [box for _, box in free[:1]]
    return found


def _sides(x: float, y: float, lines: Sequence[str]) -> dict[str, Box]:
    """Return what a name takes on each side of a point, under Plotly's words for the sides."""
    width, height = _LETTER * max(map(len, lines)), _LINE * len(lines)
    across = {"right": x + _MARK, "left": x - _MARK - width, "center": x - width / 2}
    up = {"middle": y - height / 2, "top": y + _MARK, "bottom": y - _MARK - height}
    order = [("middle", "right"), ("middle", "left"), ("top", "center"), ("bottom", "center"), ("top", "right"),
             ("bottom", "right"), ("top", "left"), ("bottom", "left")]  # fmt: skip
    return {
        f"{v} {h}": Box(left=across[h], right=across[h] + width, low=up[v], high=up[v] + height) for v, h in order
    }


def _ticks(across: Span) -> list[float]:
    """Return ratios to write at the axis: 1, 2, 5, 10 and so on, or fewer of them over many decades."""
    decades = range(math.floor(across.first), math.ceil(across.last) + 1)
    wide = across.last - across.first
    leads = (1, 2, 5) if wide < 2 else (1, 3) if wide < 3.5 else (1,)
    ticks = [lead * 10.0**decade for decade in decades for lead in leads]
    return [tick for tick in ticks if 0 <= across.share(tick) <= 1]
