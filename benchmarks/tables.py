"""Results of many runs as tables in Markdown: means over seeds, how far seeds lie apart, and what was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from laconic.lab.report.amounts import NOTHING, share, span, times, whole

Run = Mapping[str, Any]

# How much worse than the parent still counts as the same.
PERPLEXITY_BAND_PERCENT = 1.0
ACCURACY_BAND_POINTS = 0.3
WORD_ERROR_RATE_BAND_POINTS = 0.5
# Numbers by which rows of a series differ; those of "1 bit" and "int4" are none.
SETTING = re.compile(r"\w+=[\d.e+-]+|[\d.e+-]+%")
# Sums of floats: 91.42 - 91.12 is a little more than 0.3.
_SLACK = 1e-9
# Beyond this, digits after the point say nothing.
_LARGE = 10_000


@dataclass(frozen=True, kw_only=True)
class Table:
    """Which row the others are measured against, and in which order (group, row) they come: a script's ROWS."""

    parent: str
    rows: Collection[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """How scores are written and compared: gaps are relative, in %, or differences of shares, in points.

    ``band`` None: nobody has said how much worse is still the same.
    """

    relative: bool
    band: float | None = None
    digits: int = 2

    @property
    def unit(self) -> str:
        """What a gap is counted in, as it follows a number."""
        return "%" if self.relative else " points"

    def gap(self, score: float, parent: float) -> float:
        """Return how much more than the parent's a score is."""
        return 100 * (score / parent - 1) if self.relative else 100 * (score - parent)

    def score(self, value: float) -> str:
        """Write a score.

        >>> YARDSTICKS["perplexity"].score(86.331), YARDSTICKS["accuracy"].score(0.91424)
        ('86.33', '91.42 %')
        """
        if not self.relative:
            return f"{100 * value:.2f} %"
        return f"{value:.{self.digits}f}" if value < _LARGE else f"{value:.3g}"

    def apart(self, difference: float) -> str:
        """Write how far scores lie apart, in their own unit."""
        return self.score(difference) if self.relative else f"{100 * difference:.2f} points"

    def written(self, gap: float) -> str:
        """Write a gap, with its sign."""
        return f"{gap:+.2f}{self.unit}" if abs(gap) < _LARGE else f"{gap:+.3g}{self.unit}"


YARDSTICKS = {
    "perplexity": Yardstick(relative=True, band=PERPLEXITY_BAND_PERCENT),
    "accuracy": Yardstick(relative=False, band=ACCURACY_BAND_POINTS),
    "word error rate": Yardstick(relative=False, band=WORD_ERROR_RATE_BAND_POINTS),
    "bits per character": Yardstick(relative=True, digits=3),
}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All runs of a row. Means are over those that came to their end; where a seed diverged there is no score.

    ``gap`` is that of the first split to the parent's; ``gaps`` those of the seeds, to the parent's mean.
    """

    name: str
    runs: tuple[Run, ...]
    stick: Yardstick
    lower_is_better: bool
    scores: Mapping[str, float]
    gap: float | None
    gaps: tuple[float, ...] = ()

    @property
    def ended(self) -> tuple[Run, ...]:
        """The runs that came to their end."""
        return tuple(run for run in self.runs if not run["stopped"] and not diverged(run))

    @property
    def lost(self) -> tuple[Run, ...]:
        """The runs that diverged."""
        return tuple(run for run in self.runs if diverged(run))

    @property
    def worse(self) -> float | None:
        """How much worse than the parent, whichever way is up."""
        return self.gap if self.gap is None or self.lower_is_better else -self.gap

    @property
    def within(self) -> bool | None:
        """Whether it is no more worse than the band; None where there is no band, or nothing to judge."""
        if self.stick.band is None or (self.worse is None and not self.lost):
            return None
        return self.worse is not None and self.worse <= self.stick.band + _SLACK

    @property
    def ratio(self) -> float | None:
        """Dense bytes over bytes sent, over whole runs; of what diverged, until it did."""
        sent = [run for run in self.ended or self.lost if run["wire_bytes"]]
        return mean(run["dense_bytes"] / run["wire_bytes"] for run in sent) if sent else None


def diverged(run: Run) -> bool:
    """Whether a run has come to what is no number; one that was stopped has merely not come far."""
    scores = run["scores"].values()
    return bool(run["diverged"]) or (not run["stopped"] and (not scores or None in scores))


def grouped(runs: Sequence[Run], rows: Collection[tuple[str, str]] = ()) -> dict[str, dict[str, list[Run]]]:
    """Return runs by group and row, in the order of ``rows``; those it does not have come last."""
    found: dict[tuple[str, str], list[Run]] = {row: [] for row in rows}
    for run in sorted(runs, key=lambda run: run["seed"]):
        found.setdefault((run["group"], run["row"]), []).append(run)
    groups: dict[str, dict[str, list[Run]]] = {}
    for (group, row), own in found.items():
        if own:
            groups.setdefault(group, {})[row] = own
    return groups


def summed_up(rows: Mapping[str, Sequence[Run]], parent: str) -> list[Summary]:
    """Return the rows of a group, each measured against the parent."""
    splits = _splits(rows)
    base = _scores(rows.get(parent, ()), splits)
    summaries = []
    for name, runs in rows.items():
        stick, scores = YARDSTICKS.get(runs[0]["metric"], Yardstick(relative=True)), _scores(runs, splits)
        against = base.get(splits[0]) if splits else None
        gap = stick.gap(scores[splits[0]], against) if scores and against is not None else None
        ends = [run["scores"][splits[0]] for run in runs if scores and not run["stopped"]]
        summaries.append(
            Summary(
                name=name, runs=tuple(runs), stick=stick, lower_is_better=runs[0]["lower_is_better"], scores=scores,
                gap=gap, gaps=tuple(stick.gap(end, against) for end in ends) if against is not None else (),
            )
        )  # fmt: skip
    return summaries


def family_of(name: str) -> str:
    """Return the method that a row's name begins with.

    >>> family_of("celgc I=8, outer momentum"), family_of("sdagc")
    ('celgc', 'sdagc')
    """
    return re.split(r"[ ,:]", name)[0]


def series_of(name: str) -> str:
    """Return a row's name without its settings: rows that have the same name then are a series.

    >>> series_of("led 0.3%, 1 bit, ahead, I=4"), series_of("celgc I=4 led 10% int4")
    ('led, 1 bit, ahead', 'celgc led int4')
    >>> series_of("led 1%, ahead, I=4, outer momentum")
    'led, ahead, outer momentum'
    """
    return re.sub(r"\s+(?=,|$)|(?<= )\s+|,\s*$|,(?=\s*,)", "", SETTING.sub("", name))


def telling(summaries: Sequence[Summary]) -> list[Summary]:
    """Return of every family the row within the band that sends least, or else the one that is least worse."""
    families: dict[str, list[Summary]] = {}
    for one in summaries:
        if one.worse is not None:
            families.setdefault(family_of(one.name), []).append(one)
    within = {family: [one for one in rows if one.within] for family, rows in families.items()}
    return [
        max(within[family], key=lambda one: one.ratio or 0.0)
        if within[family]
        else min(rows, key=lambda one: one.worse or 0.0)
        for family, rows in families.items()
    ]


def printed(path: Path, table: Table) -> str:
    """Return the tables of a file, one a group."""
    runs = json.loads(path.read_text())["runs"]
    groups = grouped(runs, table.rows)
    return "\n\n".join(_group(rows, title, table.parent) for title, rows in groups.items())


def _splits(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    # A run that was ended early has but the first.
    return max((list(run["scores"]) for runs in rows.values() for run in runs), key=len, default=[])


def _scores(runs: Sequence[Run], splits: Sequence[str]) -> dict[str, float]:
    """Return the mean of every split over the runs that ended; nothing where one diverged or none ended."""
    ended = [run for run in runs if not run["stopped"]]
    if not ended or any(diverged(run) for run in runs):
        return {}
    return {split: mean(run["scores"][split] for run in ended) for split in splits}


def _group(rows: Mapping[str, Sequence[Run]], title: str, parent: str) -> str:
    splits, summaries = _splits(rows), summed_up(rows, parent)
    stick = summaries[0].stick
    band = f"within {stick.band:g}{stick.unit}" if stick.band is not None else "within band"
    heads = ["method", *splits, f"seeds, {splits[0]} apart" if splits else "seeds", f"against {parent}"]
    heads += ["ratio as sent", "kB a step", "density", "rounds", band]
    lines = [f"**{title}** ({summaries[0].runs[0]['metric']})", ""]
    lines += [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for summary in summaries:
        cells = [summary.name, *_cells(summary, parent)] if summary.scores else [summary.name, _fate(summary)]
        if len(cells) < len(heads):
            # What did not come to its end has no means; that it is not within the band is known if it diverged.
            cells += [NOTHING] * (len(heads) - len(cells) - 1) + [_yes(summary.within)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _about([run for runs in rows.values() for run in runs])])


def _cells(summary: Summary, parent: str) -> list[str]:
    ended, stick = summary.ended, summary.stick
    density = mean(run["density"] for run in ended)
    sent = mean(run["wire_bytes"] / run["steps"] / 1000 for run in ended)
    against = NOTHING if summary.gap is None else stick.written(summary.gap)
    is_parent = summary.name == parent
    return [
        *(stick.score(score) for score in summary.scores.values()),
        _seeds(summary),
        "parent" if is_parent else against,
        times(summary.ratio),
        f"{sent:,.2f}" if sent < 100 else whole(sent),
        # Where whole models or gradients are averaged nobody counts entries.
        share(density) if density else NOTHING,
        whole(mean(run["syncs"] for run in ended)),
        NOTHING if is_parent else _yes(summary.within),
    ]


def _seeds(summary: Summary) -> str:
    ended, stopped = summary.ended, [run for run in summary.runs if run["stopped"]]
    first = [run["scores"][next(iter(summary.scores))] for run in ended]
    told = f"{len(ended)}, {summary.stick.apart(max(first) - min(first))}" if len(ended) > 1 else "1"
    return f"{told}; {len(stopped)} stopped at epoch {_epochs(stopped)}" if stopped else told


def _fate(summary: Summary) -> str:
    """Say how a row went that has no score."""
    if summary.lost:
        return f"diverged: {len(summary.lost)} of {len(summary.runs)} seeds, at epoch {_epochs(summary.lost)}"
    return f"stopped at epoch {_epochs(summary.runs)}"


def _yes(within: bool | None) -> str:
    return NOTHING if within is None else "yes" if within else "no"


def _epochs(runs: Sequence[Run]) -> str:
    return _each(f"{run['epochs']:.3g}" for run in runs)


def _about(runs: Sequence[Run]) -> str:
    """Say what all of a group's runs were trained on and with."""
    ended = [run for run in runs if not run["stopped"] and not diverged(run)] or runs
    spent = span(sum(run["seconds"] for run in runs))
    return (
        f"{_each(run['device'] for run in runs)}, torch {_each(run['torch'] for run in runs)}; "
        f"workers: {_each(run['ranks'] for run in runs)}; batch of a worker: "
        f"{_each(run['course']['batch'] for run in runs)}; epochs: {_epochs(ended)}; parameters: "
        f"{_each(format(run['parameters'], ',') for run in runs)}; {len(runs)} runs, whose times add up to {spent}."
    )


def _each(values: Iterable[object]) -> str:
    """Write every value once."""
    return " and ".join(map(str, dict.fromkeys(values)))
