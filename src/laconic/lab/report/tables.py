"""Runs as rows: the one table of the terminal, of the page, of its Markdown and of its CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from textwrap import wrap
from typing import Any, Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from laconic.lab.report.amounts import difference, milliseconds, number, plain, share, size, span, times, whole
from laconic.lab.report.read import Run

Status = Literal["finished", "unfinished", "diverged"]
Place = Literal["page", "terminal"]
AGAINST = "against dense"
# A longer label is written in the terminal with a setting a line.
_LONG = 12


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a run came to, None where that is not known. ``difference`` is final minus dense's final.

    ``syncs`` counts exchanges: one a step, or fewer with local steps.
    """

    label: str
    status: Status
    remark: str
    final: float | None
    best: float | None
    difference: float | None
    better: bool | None
    loss: float | None
    wire_bytes: float | None
    ratio: float | None
    density: float | None
    step_seconds: float | None
    seconds: float | None
    clipped_share: float | None
    steps: float | None
    syncs: float | None
    scores: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its heading, a row's number in it, and how that number is written for people."""

    heading: str
    value: Callable[[Row], Any]
    written: Callable[[Any], str] = plain
    only: Place | None = None


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Return a row a run. Unfinished runs stand with what their last lines say."""
    parents = [run for run in runs if run.dense and _status(run) == "finished"]
    parent = _final(parents[0]) if parents else None
    return [_row(run, parent) for run in runs]


def columns_of(runs: Sequence[Run], place: Place) -> list[Column]:
    """Return the columns of a place, the method's name first."""
    metric = " / ".join(dict.fromkeys(run.metric for run in runs))
    splits = dict.fromkeys(split for run in runs for split in list(_map(run.result.get("scores")))[1:])
    columns = [
        Column(heading="method", value=lambda row: row.label, written=str),
        Column(heading=f"{metric}, final", value=lambda row: row.final),
        Column(heading="best", value=lambda row: row.best),
        *(_of_split(split) for split in splits),
        Column(heading=AGAINST, value=lambda row: row.difference, written=difference, only="page"),
        Column(heading="train loss", value=lambda row: row.loss, only="terminal"),
        Column(heading="bytes a rank", value=lambda row: row.wire_bytes, written=size),
        Column(heading="ratio", value=lambda row: row.ratio, written=times),
        *([Column(heading="syncs", value=lambda row: row.syncs, written=whole)] if _any_local(runs) else []),
        Column(heading="density", value=lambda row: row.density, written=share),
        Column(heading="ms a step", value=lambda row: row.step_seconds, written=milliseconds),
        Column(heading="time", value=lambda row: row.seconds, written=span),
        Column(heading="clipped", value=lambda row: row.clipped_share, written=share, only="page"),
    ]
    return [column for column in columns if column.only in (None, place)]


def cells(row: Row, columns: Sequence[Column]) -> list[str]:
    """Return a row as people read it; the method's name comes with what is remarkable about the run."""
    texts = [column.written(column.value(row)) for column in columns]
    return [f"{texts[0]} ({row.remark})" if row.remark else texts[0], *texts[1:]]


def rich_table(runs: Sequence[Run]) -> Table:
    """Lay out runs for the terminal."""
    columns = columns_of(runs, "terminal")
    out = Table(box=box.SIMPLE, padding=(0, 1), collapse_padding=True, pad_edge=False)
    # Numbers stay whole where a terminal is narrow: names of methods can go on in a new line.
    out.add_column(columns[0].heading, overflow="fold")
    for column in columns[1:]:
        out.add_column("\n".join(wrap(column.heading, 7, break_long_words=False)), justify="right", no_wrap=True)
    for row in rows_of(runs):
        first = row.label.replace(":", ":\n") if len(row.label) > _LONG else row.label
        texts = [f"{first}\n({row.remark})" if row.remark else first, *cells(row, columns)[1:]]
        out.add_row(*(escape(text) for text in texts))
    return out


def markdown(runs: Sequence[Run]) -> str:
    """Return the page's table as Markdown."""
    columns = columns_of(runs, "page")
    head = [column.heading for column in columns]
    rule = ["---", *("---:" for _ in columns[1:])]
    body = [cells(row, columns) for row in rows_of(runs)]
    return "".join(f"| {' | '.join(_bar_free(text) for text in line)} |\n" for line in [head, rule, *body])


def csv_text(runs: Sequence[Run]) -> str:
    """Return the page's table as CSV, with every digit, bytes as bytes and shares as shares."""
    columns = [*columns_of(runs, "page"), Column(heading="remark", value=lambda row: row.remark)]
    # The CSV holds the bare numbers, so the units that the written cells carry are named here.
    units = {"ms a step": "seconds a step", "time": "seconds", "clipped": "clipped share"}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([units.get(column.heading, column.heading) for column in columns])
    for row in rows_of(runs):
        writer.writerow([column.value(row) for column in columns])
    return out.getvalue()


def _row(run: Run, parent: float | None) -> Row:
    result, last = run.result, (run.steps[-1] if run.steps else {})
    final = _final(run)
    # What stopped on its way is not compared with what came to the end.
    known = final is not None and parent is not None and not run.dense and _status(run) == "finished"
    apart = final - parent if known and final is not None and parent is not None else None
    wire, dense = (
        _first(result.get(in_result), last.get(in_line))
        for in_result, in_line in (
            ("wire_bytes_sent_per_rank", "wire_bytes"), ("dense_bytes_per_rank", "dense_bytes"),
        )
    )  # fmt: skip
    seconds = _first(result.get("seconds"), last.get("seconds"))
    steps = _first(result.get("steps"), last.get("step"))
    return Row(
        label=run.label,
        status=_status(run),
        remark=_remark(run),
        final=final,
        best=_first(result.get("best"), _best(run)),
        difference=apart,
        better=None if not apart else (apart < 0) == run.lower_is_better,
        loss=_first(result.get("train_loss"), last.get("loss")),
        wire_bytes=wire,
        ratio=_first(result.get("ratio"), dense / wire if dense and wire else None),
        density=_first(result.get("density"), _mean(line.get("density") for line in run.steps)),
        step_seconds=_step_seconds(run, seconds),
        seconds=seconds,
        clipped_share=_first(result.get("clipped_share"), last.get("clipped_share")),
        steps=steps,
        # Lines of methods that exchange in every step do not say so.
        syncs=_first(result.get("syncs"), last.get("syncs"), steps),
        scores={split: number(score) for split, score in _map(result.get("scores")).items()},
    )


def _any_local(runs: Sequence[Run]) -> bool:
    """Whether some run exchanged less often than it stepped."""
    return any(row.syncs < row.steps for row in rows_of(runs) if row.syncs is not None and row.steps is not None)


def _status(run: Run) -> Status:
    return "diverged" if run.diverged_at is not None else "finished" if run.finished else "unfinished"


def _remark(run: Run) -> str:
    if run.diverged_at is not None:
        return f"diverged at step {run.diverged_at:,}"
    if run.finished:
        return ""
    done, planned = (run.steps[-1]["step"] if run.steps else 0), _map(run.spec.get("course")).get("steps")
    return f"unfinished, step {done:,} of {planned:,}" if isinstance(planned, int) else f"unfinished, step {done:,}"


def _final(run: Run) -> float | None:
    """Return the metric at the end: of a run that diverged there is none."""
    if run.diverged_at is not None:
        return None
    return _first(run.result.get("final"), *(line.get("metric") for line in reversed(run.steps)))


def _best(run: Run) -> float | None:
    known = [value for line in run.steps if (value := number(line.get("metric"))) is not None]
    return None if not known else min(known) if run.lower_is_better else max(known)


def _step_seconds(run: Run, seconds: float | None) -> float | None:
    """Return the median over the lines, which a slow first step does not move; else the mean of the run."""
    known = [value for line in run.steps if (value := number(line.get("step_seconds"))) is not None]
    steps = number(run.result.get("steps"))
    return median(known) if known else seconds / steps if seconds and steps else None


def _first(*values: Any) -> float | None:
    return next((known for value in values if (known := number(value)) is not None), None)


def _mean(values: Any) -> float | None:
    known = [value for each in values if (value := number(each)) is not None]
    return sum(known) / len(known) if known else None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _of_split(split: str) -> Column:
    return Column(heading=split, value=lambda row: row.scores.get(split))


def _bar_free(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
