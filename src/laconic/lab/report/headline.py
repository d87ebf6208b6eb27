"""The one sentence that a reader takes home, and what else must be known with it."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.lab.report.amounts import plain, size, times
from laconic.lab.report.read import Run
from laconic.lab.report.tables import Row, rows_of


def headline(runs: Sequence[Run]) -> str:
    """Return what the runs say: of the methods as good as dense the one that sends least, else the nearest one."""
    pairs = list(zip(runs, rows_of(runs), strict=True))
    ended = [(run, row) for run, row in pairs if row.status == "finished" and row.final is not None]
    dense = next((row for run, row in ended if run.dense), None)
    others = [row for run, row in ended if not run.dense]
    if dense is not None and others:
        first = _against(dense, others, runs[0])
    elif others or dense is not None:
        first = _alone(others or ([dense] if dense else []), runs[0])
    else:
        first = "No run has finished with a result yet."
    return first


def _against(dense: Row, others: list[Row], run: Run) -> str:
    good = [row for row in others if row.better or row.difference == 0]
    if good:
        chosen = max(good, key=lambda row: row.ratio or 0.0)
    else:
        chosen = min(others, key=lambda row: abs(row.difference or 0.0))
    bytes_ = _fewer(chosen)
    sentence = (
        f"{chosen.label} ends at {run.metric} {plain(chosen.final)} against dense's {plain(dense.final)}, {bytes_}."
    )
    if len(others) == 1:
        return sentence
    count = f"{len(good)} of {len(others)} methods end" if len(good) != 1 else f"1 of {len(others)} methods ends"
    return f"{sentence} {count} at least as good as dense."


def _alone(rows: list[Row], run: Run) -> str:
    better = min if run.lower_is_better else max
    chosen = better(rows, key=lambda row: row.final or 0.0)
    best = f"best of {len(rows)} " if len(rows) > 1 else ""
    return f"{chosen.label} ends {best}at {run.metric} {plain(chosen.final)}, {_fewer(chosen)}."


def _fewer(row: Row) -> str:
    if row.ratio is None:
        return f"with {size(row.wire_bytes)} sent a rank"
    return f"with {times(row.ratio)} fewer bytes" if row.ratio > 1 else f"with {size(row.wire_bytes)} sent a rank"


def remarks(runs: Sequence[Run]) -> list[str]:
    """Name the runs that did not come to a good end: they must not go unseen."""
    return [f"{row.label}: {row.remark}." for row in rows_of(runs) if row.remark]
