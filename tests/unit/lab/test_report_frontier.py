"""Local methods and the frontier in tables and figures: syncs, quality against ratio, drift and period."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from laconic.lab.report.figures import over
from laconic.lab.report.frontier import frontier, name_lines
from laconic.lab.report.page import all_figures
from laconic.lab.report.read import read_runs
from laconic.lab.report.tables import csv_text, markdown, rich_table, rows_of
from unit.lab.runs import Made, dense, write_compare


def test_syncs_are_shown_where_a_method_exchanges_less_often_than_it_steps(tmp_path):
    made = [dense(), Made(), Made(method="celgc", density=1.0, local_every=16)]
    runs = read_runs([write_compare(tmp_path / "all", made)])
    assert "syncs" not in markdown(runs[:2])
    rows = list(csv.DictReader(io.StringIO(csv_text(runs))))
    assert [row["syncs"] for row in rows] == ["600.0", "600.0", "37.0"]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(rich_table(runs))
    assert re.search(r"celgc .* 37 +100%", console.export_text())
    # Of a run that was killed the last line says it, and one that exchanges in every step need not.
    half = [dense(stops_at=300), Made(method="celgc", local_every=16, stops_at=300)]
    assert [row.syncs for row in rows_of(read_runs([write_compare(tmp_path / "half", half)]))] == [300, 18]


def _points(figure) -> dict[str, tuple[float, float]]:
    return {trace.name: (trace.x[0], trace.y[0]) for trace in figure.data if trace.mode == "markers+text"}


@pytest.mark.parametrize("metric", ["perplexity", "accuracy"])
def test_the_frontier_has_every_run_at_its_real_ratio_and_dense_as_a_level(tmp_path, metric):
    made = [dense(metric=metric), Made(metric=metric), Made(method="celgc", level=1.5, metric=metric)]
    runs = read_runs([write_compare(tmp_path / "all", made)])
    figure, finals = frontier(runs), [run.result["final"] for run in runs]
    ratios = [r.result["dense_bytes_per_rank"] / r.result["wire_bytes_sent_per_rank"] for r in runs]
    assert _points(figure) == {
        run.label: pytest.approx(point) for run, point in zip(runs, zip(ratios, finals, strict=True), strict=True)
    }
    assert figure.layout.xaxis.type == "log"
    band, level = figure.data[:2]
    assert (min(band.y), max(band.y)) == pytest.approx((0.99 * finals[0], 1.01 * finals[0]))
    assert set(level.y) == {finals[0]}
    # From end to end, whatever the ratios are.
    assert [math.log10(x) for x in level.x] == pytest.approx(list(figure.layout.xaxis.range))
    # The button that hides dense hides its level too.
    assert [trace.meta for trace in figure.data] == [0, 0, 0, 1, 2]
    low, high = figure.layout.yaxis.range
    assert all(low < y < high for y in [*finals, *band.y])


def test_the_frontier_is_of_three_methods_or_more_that_came_to_an_end(tmp_path):
    made = [dense(), Made(), Made(method="strom", diverges_at=300), Made(method="dgc", stops_at=300)]
    runs = read_runs([write_compare(tmp_path / "all", made)])
    assert frontier(runs[:2]) is None
    assert set(_points(frontier(runs))) == {"dense", "topk:density=0.01"}
    assert frontier([runs[0], *runs[2:]]) is None, "one point alone is no comparison"
    assert frontier([*runs[:2], replace(runs[1], label="other", metric="accuracy")]) is None
    others = [replace(runs[1], label=label) for label in "abc"]
    assert len(frontier(others).data) == 3, "without dense there is no level"
    # One rank alone sends nothing, and has no ratio.
    alone = [replace(run, result={**run.result, "ratio": None, "wire_bytes_sent_per_rank": 0}) for run in others]
    assert frontier(alone) is None


def test_names_in_the_frontier_do_not_stand_upon_each_other(tmp_path):
    made = [dense(), *(Made(method=f"celgc:every={i}:send=topk+density=0.0{i}", level=1.2) for i in range(1, 9))]
    figure = frontier(read_runs([write_compare(tmp_path / "all", made)]))
    named = [trace.text[0] for trace in figure.data if trace.mode == "markers+text" and trace.text[0]]
    assert 0 < len(named) < len(made), "those that have no room are left to the legend"
    assert named[0] == "dense"
    sides = {(trace.y[0], trace.textposition) for trace in figure.data if trace.text and trace.text[0]}
    assert len(sides) == len(named)
    assert name_lines("sparseloco:every=30:k=16:chunk=512:bits=None:rate=0.5:decay=<b>")[-1].endswith("…")
    assert name_lines("topk:memory=<b>") == ["topk:memory=&lt;b&gt;"]


def test_drift_and_period_are_drawn_for_those_that_have_them(tmp_path):
    made = [dense(), Made(method="celgc", density=1.0, local_every=16)]
    runs = read_runs([write_compare(tmp_path / "all", made)])
    found = all_figures(runs)
    assert [trace.name for trace in found["drift"].data] == ["celgc"]
    assert found["drift"].layout.height < found["density"].layout.height
    assert all_figures(runs[:1]).keys().isdisjoint({"drift", "every"})
    (drift,), (every,) = over(runs, "drift", "steps").data, over(runs, "every", "steps").data
    assert drift.x[0] == 20, "there is none before the first sync"
    assert set(every.y) == {16}
