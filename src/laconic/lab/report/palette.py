"""Colours, dashes and marks: one look a method over all charts, in light and in dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.lab.report.read import Run

# Each colour for light pages and its twin for dark ones: hues that colour-blind readers tell apart (after Okabe and
# Ito 2008), with a contrast of 3 to 1 or more to the page.
_HUES = {
    "#0072b2": "#56b4e9",
    "#d55e00": "#ff9150",
    "#00805f": "#3ccfa4",
    "#a3418f": "#e29ccf",
    "#8a6a00": "#e3b83c",
    "#5f5bd0": "#aaa8ff",
    "#c2315b": "#ff8fa8",
}
_DENSE = {"#3a4048": "#d9dde2"}
# Six dashes over seven hues: 42 methods before a look comes again.
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")

TEXT, MUTED, GRID, PANEL, QUIET, PAGE = "#1f2328", "#59616a", "#e6e8eb", "#fefefe", "#b9bfc6", "#ffffff"
# What a page turns every colour of a figure into when it is dark.
DARK = {
    **_HUES, **_DENSE, TEXT: "#e6e8eb", MUTED: "#a0a8b1", GRID: "#2c3239", PANEL: "#22272d", QUIET: "#6b747e",
    PAGE: "#15181c",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a method's lines are drawn, on a light page."""

    colour: str
    dash: str
    mark: str


def looks_of(runs: Sequence[Run]) -> list[Look]:
    """Return a look a run: dense is a solid line in the colour of text, the others differ in hue and in dash."""
    looks: list[Look] = []
    others = 0
    for run in runs:
        if run.dense:
            looks.append(Look(colour=next(iter(_DENSE)), dash="solid", mark="circle"))
            continue
        hue = list(_HUES)[others % len(_HUES)]
        # Dense has the solid line: the others begin with it too, in a colour of their own.
        place = others % len(_DASHES)
        looks.append(Look(colour=hue, dash=_DASHES[place], mark=_MARKS[place]))
        others += 1
    return looks
