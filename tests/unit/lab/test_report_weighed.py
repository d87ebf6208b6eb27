"""The charts of what a tuner weighed: the amounts chosen, the link, and what other amounts would be worth."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from laconic.lab.report.page import page
from laconic.lab.report.read import Run, read_runs
from laconic.lab.report.weighed import CHARTS, Moment, efficiency, moments_of, weighed_figures
from unit.lab.runs import Made, dense, write_compare, write_run

BITS, TIMED = Made(method="cat:cost=bits", weighs_by="bits"), Made(method="cat", weighs_by="seconds", steps=300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Run, ...]:
    return read_runs([write_compare(tmp_path_factory.mktemp("all"), [dense(), Made(), BITS, TIMED])])


def _one(tmp_path: Path, made: Made) -> Run:
    return read_runs([write_run(tmp_path / "one", made)])[0]


def _moment(chosen: float) -> Moment:
    return Moment(step=5, counts=[10.0, 100.0, 1000.0], efficiency=[2.0, 8.0, 4.0], chosen=chosen, unit="bit")


def test_the_mark_lies_on_the_curve(tmp_path):
    for moment in moments_of(_one(tmp_path, BITS)):
        assert max(moment.shares) == 1
        around = [
            (low, high)
            for low, high in pairwise(zip(moment.counts, moment.shares, strict=True))
            if low[0] <= moment.chosen <= high[0]
        ]
        ((low, high),) = around
        assert min(low[1], high[1]) <= moment.chosen_share <= max(low[1], high[1])
    assert _moment(100.0).chosen_share == 1
    # Half way in factors, as the axis is drawn.
    assert _moment(100 * math.sqrt(10)).chosen_share == pytest.approx(0.75)
    assert (_moment(3.0).chosen_share, _moment(5000.0).chosen_share) == (0.25, 0.5)


def test_only_what_a_tuner_weighed_is_drawn(runs):
    figures = weighed_figures(runs)
    assert [trace.meta for trace in figures["count"].data] == [2, 3]
    assert [trace.name for trace in figures["bits_per_second"].data] == ["cat"]
    assert [trace.meta for trace in figures["efficiency"].data] == [2] * 6 + [3] * 6
    html = page(runs[3:])
    assert all(chart.name in html for chart in CHARTS)
    assert "At the end T is 400 entries a rank, for the most gain a second; the link as fitted: 2.00 ms and" in html


def test_the_page_of_other_runs_has_nothing_of_it(runs):
    assert set(weighed_figures(runs[:2]).values()) == {None}
    html = page(runs[1:2])
    assert "How much is worth sending" not in html
    assert "T is the number" not in html
    assert weighed_figures(runs[:3])["bits_per_second"] is None, "a cost in bits asks for no link"


def test_amounts_are_drawn_as_they_were_written_down_on_a_log_axis_with_numbers(runs):
    figure = weighed_figures(runs[:3])["count"]
    assert list(figure.data[0].y) == [line["count"] for line in runs[2].steps]
    steady = replace(runs[2], steps=tuple({**line, "count": 4200.0} for line in runs[2].steps))
    axis = weighed_figures([steady])["count"].layout.yaxis
    assert axis.type == "log"
    assert 10 ** (axis.range[1] - axis.range[0]) == pytest.approx(4)
    assert axis.range[0] < math.log10(4200) < axis.range[1]


def test_the_curves_are_those_of_the_begin_the_middle_and_the_end(tmp_path):
    run = _one(tmp_path, BITS)
    assert [moment.step for moment in moments_of(run)] == [60, 360, 600]
    drawn = efficiency([run]).data
    assert [trace.opacity for trace in drawn] == sorted(trace.opacity for trace in drawn)
    marks = [trace for trace in drawn if trace.name.endswith("chosen")]
    assert [mark.x[0] for mark in marks] == [160.0, 460.0, 700.0]
    assert [mark.text[0] for mark in marks] == ["", "", "T = 700"]
    early = replace(run, steps=run.steps[:6])
    assert [moment.step for moment in moments_of(early)] == [60]
    assert [trace.opacity for trace in efficiency([early]).data] == [1.0, 1.0]


def test_labels_that_would_meet_are_left_out(tmp_path):
    run = _one(tmp_path, BITS)
    far = tuple({**line, "count": 20.0} for line in run.steps)
    drawn = efficiency([run, replace(run, label="same"), replace(run, label="far", steps=far)])
    assert [text for trace in drawn.data for text in trace.text if text.startswith("T")] == ["T = 700", "T = 20"]


def test_where_size_made_no_difference_there_is_a_gap_and_what_lies_between_is_seen(tmp_path):
    run = _one(tmp_path, TIMED)
    assert weighed_figures([run])["bits_per_second"].data[0].mode == "lines"
    gaps = tuple({**line, "bits_per_second": None if i % 2 else 1e6} for i, line in enumerate(run.steps))
    (trace,) = weighed_figures([replace(run, steps=gaps)])["bits_per_second"].data
    assert trace.mode == "lines+markers"
    assert list(trace.y[:3]) == [1e6, None, 1e6]
    never = tuple({**line, "bits_per_second": None} for line in run.steps)
    assert weighed_figures([replace(run, steps=never)])["bits_per_second"] is None


@pytest.mark.parametrize(
    "broken",
    [
        {"curve": None}, {"curve": []}, {"curve": "<b>"}, {"curve": [[1.0], 3, [None, 2.0], ["<b>", 1.0]]},
        {"curve": [[5.0, 0.0]]}, {"curve": [[0.0, 1.0]]}, {"count": None}, {"count": 0.0}, {"count": -1.0},
    ],
)  # fmt: skip
def test_a_curve_that_says_nothing_is_left_out(tmp_path, broken):
    run = _one(tmp_path, BITS)
    run = replace(run, steps=tuple({**line, **broken} for line in run.steps))
    figures = weighed_figures([run])
    assert figures["efficiency"] is None
    assert (figures["count"] is None) == ("count" in broken)


def test_a_run_that_stopped_early_has_its_charts_and_units_stay_text(tmp_path):
    run = _one(tmp_path, replace(BITS, stops_at=90, weighs_by="<img src=x>s"))
    html = page([run])
    assert "Entries chosen" in html
    assert "<img src=x" not in html
    assert "&lt;img src=x&gt;" in efficiency([run]).data[0].text[0]
