"""Pictures of many runs, from their file: what is lost against what is saved, and how the trainings went.

    python benchmarks/table_plots.py benchmarks/results/table_language.json --out docs/results-language

writes docs/results-language-frontier.svg, -curves.svg, -clipped.svg and -density.svg; where a file has several
groups, each has its own, docs/results-image-resnet20-frontier.svg. Needs matplotlib.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import tyro
from table_labels import around, placed
from tables import SETTING, Summary, family_of, grouped, series_of, summed_up, telling

from laconic.lab.report.frontier import Box
from laconic.lab.report.palette import GRID, MUTED, looks_of
from laconic.lab.report.read import Run as Drawn

PARENTS = ("parallel clipping", "dense")
# In this order they have the palette's hues in every picture; others come after them.
FAMILIES = ("topk", "led", "sdagc", "celgc", "dgc", "cat", "spartan")
# What is drawn over epochs: how a file's name ends, a number of a run's lines, and what that is.
COURSES = {
    "curves": ("metric", "{metric} on the first split"),
    "clipped": ("clipped_share", "share of steps so far that were clipped"),
    "density": ("density", "share of entries sent in a step"),
}
MARKS, DASHES = "osD^vP", ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 2, 3)))
# Gaps of more than so many bands (of so many % without one) are drawn at the edge.
_BANDS = 20.0
# The figure has as many points to an inch as an SVG.
_POINTS = 72


@dataclass(frozen=True, kw_only=True)
class TablePlots:
    """Draw the results of many runs as SVG."""

    result: tyro.conf.Positional[Path]
    """A file that a table's script has written, benchmarks/results/table_language.json, say."""
    out: Path
    """How the pictures' names begin: docs/results-language makes docs/results-language-frontier.svg and others."""
    parent: str | None = None
    """The row that others are measured against; by default the one named parallel clipping, else dense."""
    rows: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A row whose course is drawn; may be given several times. By default the parent, and of every family the row
    that sends least of those within the band, or else the one that is nearest to it."""

    def draw(self) -> list[Path]:
        """Draw all; return what was written."""
        groups = grouped(json.loads(self.result.read_text())["runs"])
        written, unscored = [], list[str]()
        for group, runs in groups.items():
            names = [name for name in ([self.parent] if self.parent else PARENTS) if name in runs]
            if not names:
                raise SystemExit(f"{group} has no row {self.parent or ' or '.join(PARENTS)} to measure others "
                                 f"against, only {', '.join(runs)}. Write --parent and one of them.")  # fmt: skip
            shown = Shown(parent=names[0], summaries=tuple(summed_up(runs, names[0])), title=group)
            if all(summary.gap is None for summary in shown.summaries):
                unscored.append(f"{group}: {names[0]} has no score. Run it to its end, or write another --parent.")
                continue
            chosen = shown.chosen(self.rows)
            start = f"{self.out}-{re.sub(r'[^a-z0-9]+', '-', group.lower())}" if len(groups) > 1 else str(self.out)
            figures = {"frontier": _frontier(shown)} | {kind: _course(shown, chosen, kind) for kind in COURSES}
            for kind, figure in figures.items():
                if figure is None:
                    print(f"no {kind}: none of {', '.join(s.name for s in chosen)} has it", file=sys.stderr)
                else:
                    written.append(_saved(figure, Path(f"{start}-{kind}.svg")))
        if unscored and not written:
            raise SystemExit("\n".join(unscored))
        for group_told in unscored:
            print(group_told, file=sys.stderr)
        return written


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The rows of a group, as they are shown."""

    parent: str
    summaries: tuple[Summary, ...]
    title: str

    def colour(self, name: str) -> str:
        """Return the colour of a row's family; the parent and others that send everything have that of text."""
        others = [family_of(s.name) for s in self.summaries if s.name not in (self.parent, *PARENTS)]
        families = list(dict.fromkeys([*FAMILIES, *others]))
        looks = looks_of([Drawn(label="dense"), *(Drawn(label=f"of {family}") for family in families)])
        return looks[0 if name in (self.parent, *PARENTS) else 1 + families.index(family_of(name))].colour

    def mark(self, name: str) -> str:
        """Return the mark of a row's series: no other series of its colour has it."""
        own = [series_of(s.name) for s in self.summaries if self.colour(s.name) == self.colour(name)]
        return MARKS[list(dict.fromkeys(own)).index(series_of(name)) % len(MARKS)]

    def chosen(self, names: Sequence[str]) -> list[Summary]:
        """Return the named rows, or those that tell most of every family."""
        known = {summary.name: summary for summary in self.summaries}
        if unknown := [name for name in names if name not in known]:
            raise SystemExit(f"rows must be of {self.title}: {', '.join(known)}; got {', '.join(unknown)}.")
        others = telling([summary for summary in self.summaries if summary.name != self.parent])
        return [known[name] for name in names] or [known[self.parent], *others]


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A row in the frontier: its place, its seeds, its label, and whether it really lies further off."""

    name: str
    x: float
    y: float
    label: str
    seeds: tuple[float, ...]
    outside: bool


def edge_of(shown: Shown) -> float:
    """Return how much worse the worst may be that still has its own place: no more room than the dots need."""
    band = shown.summaries[0].stick.band or 1.0
    near = [s.worse for s in shown.summaries if s.worse is not None and s.worse <= _BANDS * band]
    return min(_BANDS * band, 1.25 * max([2 * band, *near]))


def dots_of(shown: Shown, edge: float) -> list[Dot]:
    """Return a dot a row that ended or diverged; those that are worse than the edge lie on it."""
    often = [series_of(s.name) for s in shown.summaries]
    dots = []
    for s in shown.summaries:
        if s.ratio is None or (s.worse is None and not s.lost):
            print(f"no dot for {s.name}: no seed has come to its end", file=sys.stderr)
            continue
        label = " ".join(SETTING.findall(s.name)) if often.count(series_of(s.name)) > 1 else s.name
        outside = s.worse is None or s.worse > edge
        if outside:
            label += " diverged" if s.gap is None else f" ({s.gap:+.3g}{s.stick.unit})"
        y = (edge if s.lower_is_better else -edge) if outside else s.gap or 0.0
        dots.append(Dot(name=s.name, x=s.ratio, y=y, label=label, seeds=s.gaps, outside=outside))
    return dots


def _frontier(shown: Shown) -> Any:
    first, edge, (figure, axes) = shown.summaries[0], edge_of(shown), _chart(5.8)
    stick, side, dots = first.stick, 1 if first.lower_is_better else -1, dots_of(shown, edge)
    axes.set_xscale("log")
    # Straight about the band, where most rows are.
    axes.set_yscale("symlog", linthresh=2 * (stick.band or 1.0), linscale=1.3)
    axes.set_yticks([many * (stick.band or 1.0) for many in (-20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20)])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    best = min([-(stick.band or 1.0), *(side * y for dot in dots for y in (dot.y, *dot.seeds))])
    ends = sorted([side * 1.3 * best, side * 1.5 * edge])
    axes.set(ylim=ends, xlim=(min(dot.x for dot in dots) / 1.5, max(dot.x for dot in dots) * 1.6))
    if stick.band is not None:
        axes.axhspan(-stick.band, stick.band, color=GRID, zorder=0, label=f"within {stick.band:g}{stick.unit}")
    axes.axhline(0, color=MUTED, linewidth=1, zorder=1, label=shown.parent)
    lines, points = _series(axes, shown, dots), axes.transData.transform([(dot.x, dot.y) for dot in dots])
    boxes = placed([dot.label for dot in dots], points, axes.bbox, lines)
    for place, (dot, box) in enumerate(zip(dots, boxes, strict=True)):
        _mark_and_label(axes, dot, box, shown.colour(dot.name), shown.mark(dot.name))
        axes.lines[-1].set_gid(f"dot-{place}")
        if dot.outside:
            arrow = {"arrowstyle": "-|>", "color": shown.colour(dot.name), "linewidth": 1.4}
            axes.annotate("", xy=(dot.x, ends[side > 0]), xytext=(dot.x, dot.y), arrowprops=arrow)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}x")
    axes.set_xlabel("ratio as sent: bytes of plain DDP / bytes handed over")
    axes.set_ylabel(f"{first.runs[0]['metric']} against {shown.parent}, {stick.unit.strip()}")
    axes.set_title(f"{shown.title}: what is lost against what is saved (bars: from seed to seed)")
    return figure


def _series(axes: Any, shown: Shown, dots: Sequence[Dot]) -> list[Box]:
    """Join the dots of every series and draw the spread of seeds; return what lines take, in points."""
    series: dict[str, list[Dot]] = {}
    strokes = [[(axes.get_xlim()[0], 0.0), (axes.get_xlim()[1], 0.0)]]
    for dot in sorted(dots, key=lambda dot: dot.x):
        series.setdefault(series_of(dot.name), []).append(dot)
        if not dot.outside:
            strokes.append([(dot.x, min(dot.seeds)), (dot.x, max(dot.seeds))])
            axes.vlines(dot.x, min(dot.seeds), max(dot.seeds), color=shown.colour(dot.name), linewidth=0.9)
    for name, own in sorted(series.items()):
        if len(own) > 1:
            strokes.append([(dot.x, dot.y) for dot in own])
            look = {"color": shown.colour(own[0].name), "marker": shown.mark(own[0].name), "alpha": 0.6}
            axes.plot(*zip(*strokes[-1], strict=True), linewidth=1.2, markersize=6, label=name, **look)
    ends = [pair for stroke in strokes for pair in pairwise(axes.transData.transform(stroke))]
    return [around(a + (b - a) * i / 100, 2) for a, b in ends for i in range(101)]


def _mark_and_label(axes: Any, dot: Dot, box: Box | None, colour: str, mark: str) -> None:
    axes.plot([dot.x], [dot.y], color=colour, marker=mark, markersize=7, zorder=4)
    if box is None:
        print(f"no room for the label of {dot.name}", file=sys.stderr)
        return
    middle = axes.transData.inverted().transform(((box.left + box.right) / 2, (box.low + box.high) / 2))
    far = not box.meets(around(axes.transData.transform((dot.x, dot.y)), 12))
    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6} if far else None
    told = {"color": colour, "fontsize": 9, "ha": "center", "va": "center", "arrowprops": line}
    axes.annotate(dot.label, xy=(dot.x, dot.y), xytext=middle, **told)


def points_of(summary: Summary, key: str) -> dict[float, float]:
    """Return epochs and means over seeds, as far as all seeds have come."""
    of = "curve" if key == "metric" else "lines"
    runs = [{line["epoch"]: line.get(key) for line in run[of]} for run in summary.ended or summary.lost]
    shared = [epoch for epoch in (runs[0] if runs else ()) if all(run.get(epoch) is not None for run in runs)]
    return {epoch: mean(run[epoch] for run in runs) for epoch in shared}


def _course(shown: Shown, chosen: Sequence[Summary], kind: str) -> Any:
    """Draw a line a row; None where no row has the number."""
    key, title = COURSES[kind]
    found = {summary.name: points_of(summary, key) for summary in chosen}
    # What averages whole models or gradients counts no entries: it has a density of nothing.
    found = {name: p for name, p in found.items() if p and (key != "density" or all(p.values()))}
    if not any(any(points.values()) for points in found.values()):
        return None
    figure, axes = _chart(4.0)
    colours: list[str] = []
    for name, points in found.items():
        dash = DASHES[colours.count(shown.colour(name)) % len(DASHES)]
        colours.append(shown.colour(name))
        (drawn,) = axes.plot(list(points), list(points.values()), linestyle=dash, linewidth=1.6, label=name)
        drawn.set(color=colours[-1], gid=f"line-{len(colours) - 1}")
    if key == "metric":
        # Beside the fall at the beginning the ends of all would look the same.
        last = max(max(points) for points in found.values())
        seen = [value for points in found.values() for epoch, value in points.items() if epoch > last / 3]
        room = 0.05 * (max(seen) - min(seen)) or 0.1
        axes.set(xlim=(last / 5, 1.02 * last), ylim=(min(seen) - room, max(seen) + room))
        axes.yaxis.set_major_formatter(lambda value, _: chosen[0].stick.score(value))
    else:
        axes.set_yscale("log" if key == "density" else "linear")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    told = title.format(metric=chosen[0].runs[0]["metric"])
    axes.set(xlabel="epoch", title=f"{shown.title}: {told}, mean over seeds")
    return figure


def _chart(inches: float) -> Any:
    """Return a figure and its axes, white on any page."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise SystemExit("no pictures: pip install '.[figures]'") from missing
    figure = Figure(figsize=(9.5, inches), dpi=_POINTS, facecolor="white")
    axes = figure.add_axes((0.08, 0.1, 0.9, 0.84), axisbelow=True)
    axes.grid(color=GRID, linewidth=0.7)
    return [figure, axes]


def _saved(figure: Any, path: Path) -> Path:
    """Write a figure whose text stays text, the same bytes every time."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        below = (0.5, -40 / figure.axes[0].bbox.height)
        figure.axes[0].legend(frameon=False, loc="upper center", bbox_to_anchor=below, ncols=3, fontsize=9)
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.15)
    print(f"{path.name}: {path.stat().st_size:,} bytes", file=sys.stderr)
    return path


if __name__ == "__main__":
    tyro.cli(TablePlots, description=__doc__).draw()
