"""Where the labels of a picture's dots go: by the dot if there is room, else further off. All in points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laconic.lab.report.frontier import Box

_LETTER, _LINE, _MARK = 5.7, 11.0, 4.5


def placed(labels: Sequence[str], points: Sequence[Any], chart: Any, lines: Sequence[Box]) -> list[Box | None]:
    """Return where the label of each point goes within the chart, beside what lines take; None without room."""
    marks = [around(point, _MARK) for point in points]
    taken: list[Box] = []
    found: list[Box | None] = []
    for label, (x, y) in zip(labels, points, strict=True):
        free = (
            box
            # A label on a line can be read; one on a dot or on another label cannot.
            for others in ([*marks, *taken, *lines], [*marks, *taken])
            for away in (8, 16, 28, 42, 60, 80)
            for box in _sides(x, y, _LETTER * len(label), away)
            if chart.x0 < box.left and box.right < chart.x1 and chart.y0 < box.low and box.high < chart.y1
            if not any(box.meets(other) for other in others)
        )
        found.append(box := next(free, None))
        taken += [box] if box else []
    return found


def around(point: Sequence[float], half: float) -> Box:
    """Return the square about a point."""
    x, y = point
    return Box(left=x - half, right=x + half, low=y - half, high=y + half)


def _sides(x: float, y: float, width: float, away: float) -> list[Box]:
    """Return the boxes of a label around a dot, and on it, where it is never free."""
    lefts, lows = (x - width / 2, x + away, x - away - width), (y - _LINE / 2, y + away, y - away - _LINE)
    return [Box(left=left, right=left + width, low=low, high=low + _LINE) for low in lows for left in lefts]
