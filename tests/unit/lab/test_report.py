"""Folders of runs, read back: as rows, as figures, as a sentence."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console

from laconic.cli.report import Report
from laconic.lab.report.figures import MOST_POINTS, over, step_times
from laconic.lab.report.headline import headline, remarks
from laconic.lab.report.layers import bytes_by_layer, density_by_layer, layers_of
from laconic.lab.report.page import page, write_page
from laconic.lab.report.palette import DARK, looks_of
from laconic.lab.report.read import Run, read_runs
from laconic.lab.report.tables import csv_text, markdown, rich_table, rows_of
from unit.lab.runs import LSTM, Made, dense, write_compare, write_run

RESNET = {f"layer{part}.{block}.conv.weight": 9216 for part in (1, 2, 3) for block in range(40)}


@pytest.fixture
def three(tmp_path) -> Path:
    runs = [dense(), Made(), Made(method="sdagc:c=20", density=0.005, level=1.5, clips=True)]
    return write_compare(tmp_path / "compared", runs)


def _one(tmp_path: Path, made: Made) -> Run:
    return read_runs([write_run(tmp_path / "one", made)])[0]


def test_bytes_apportioned_to_layers_are_those_of_the_step(tmp_path):
    run = _one(tmp_path, Made())
    layers = layers_of(run)
    by_step = {line["step"]: line["wire_bytes"] for line in run.steps}
    for column, step in enumerate(layers.steps):
        grown = (by_step[step] - by_step.get(step - 10, 0)) / 10
        assert math.isclose(sum(row[column] for row in layers.step_bytes), grown)
        sent = [layers.densities[place][column] * LSTM[name] for place, name in enumerate(layers.names)]
        parts = [row[column] / grown for row in layers.step_bytes]
        assert parts == pytest.approx([each / sum(sent) for each in sent])
    drawn = bytes_by_layer(layers)
    tops = [sum(column) for column in zip(*(trace.y for trace in drawn.data), strict=True)]
    assert tops == pytest.approx([sum(column) for column in zip(*layers.step_bytes, strict=True)], abs=1)


def test_a_comparison_is_read_in_its_own_order_and_by_its_own_metric(three):
    runs = read_runs([three])
    assert [run.label for run in runs] == ["dense", "topk:density=0.01", "sdagc:c=20"]
    assert [run.dense for run in runs] == [True, False, False]
    assert all(run.finished and run.lower_is_better and run.metric == "perplexity" for run in runs)
    assert (runs[1].date, runs[1].spec["workers"], runs[1].environment["cores"]) == ("2026-05-04", 4, 4)


def test_runs_of_one_label_are_told_apart_and_none_is_read_twice(tmp_path):
    folders = [write_run(tmp_path / f"s{seed}", Made(seed=seed)) for seed in (0, 1)]
    assert [run.label for run in read_runs([*folders, folders[0]])] == [
        "topk:density=0.01 (seed 0)", "topk:density=0.01 (seed 1)",
    ]  # fmt: skip
    again = write_run(tmp_path / "more" / "s1", Made(seed=1))
    labels = [run.label for run in read_runs([*folders, again])]
    assert len(set(labels)) == 3
    assert labels[2].endswith("(more/s1)")


def test_an_unfinished_run_is_read_as_far_as_it_goes(tmp_path):
    folder = write_run(tmp_path / "half", Made(stops_at=200))
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 210, "lo')
    (run,) = read_runs([folder])
    assert (run.finished, run.steps[-1]["step"], run.label) == (False, 200, "topk:density=0.01")
    (row,) = rows_of([run])
    assert (row.status, row.remark) == ("unfinished", "unfinished, step 200 of 600")
    assert row.final == run.steps[17]["metric"]
    assert row.ratio == pytest.approx(run.steps[-1]["dense_bytes"] / run.steps[-1]["wire_bytes"])
    assert headline([run]) == "No run has finished with a result yet."


def test_what_is_broken_or_foreign_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*missing"):
        read_runs([tmp_path / "missing"])
    with pytest.raises(FileNotFoundError, match="is no run's folder and holds none"):
        read_runs([tmp_path])
    with pytest.raises(ValueError, match="got none"):
        read_runs([])
    folder = write_run(tmp_path / "one", Made())
    (folder / "steps.jsonl").write_text('{"step": 10}\n{"ste\n{"step": 30}\n')
    with pytest.raises(ValueError, match="line 2 is no JSON"):
        read_runs([folder])
    (folder / "steps.jsonl").write_text('{"loss": 3}\n')
    with pytest.raises(ValueError, match="an object with a step"):
        read_runs([folder])
    (folder / "spec.json").write_text("[]")
    with pytest.raises(ValueError, match="must hold a JSON object, got list"):
        read_runs([folder])


@pytest.mark.parametrize("gone", [math.nan, math.inf, None, 1e300])
def test_a_diverged_run_is_shown_as_such(tmp_path, gone):
    run = _one(tmp_path, Made(diverges_at=300))
    lines = tuple({**line, "loss": gone} if line["step"] >= 300 else line for line in run.steps)
    run = replace(run, steps=lines)
    (row,) = rows_of([run])
    assert (run.diverged_at, row.status, row.final) == (300, "diverged", None)
    assert remarks([run]) == ["topk:density=0.01: diverged at step 300."]
    line, end = over([run], "loss", "steps").data
    assert line.y[28] is not None
    assert set(line.y[29:]) == {None}
    assert (end.x, end.marker.symbol) == ((290,), "x")


def test_a_loss_that_comes_back_has_not_diverged(tmp_path):
    run = _one(tmp_path, Made())
    lines = tuple({**line, "loss": None} if line["step"] == 300 else line for line in run.steps)
    assert replace(run, steps=lines).diverged_at is None


@pytest.mark.parametrize(("metric", "better"), [("perplexity", [True, False]), ("accuracy", [True, False])])
def test_better_than_dense_goes_by_the_metric(tmp_path, metric, better):
    made = [dense(metric=metric), Made(metric=metric, level=1.1), Made(method="strom", metric=metric, level=1.6)]
    rows = rows_of(read_runs([write_compare(tmp_path / "all", made)]))
    assert [row.better for row in rows[1:]] == better
    assert rows[0].difference is None
    assert rows[1].difference == pytest.approx(rows[1].final - rows[0].final)
    assert (rows[1].difference < 0) == (metric == "perplexity")


def test_what_stopped_on_its_way_is_not_compared_with_dense(tmp_path):
    runs = read_runs([write_compare(tmp_path / "all", [dense(), Made(stops_at=300)])])
    assert rows_of(runs)[1].difference is None
    assert "topk" not in headline(runs)


def test_one_table_for_terminal_markdown_and_csv(three):
    runs = read_runs([three])
    head, rule, *body = markdown(runs).splitlines()
    assert head.count("|") == rule.count("|") == body[0].count("|")
    assert head.startswith("| method | perplexity, final | best | against dense | bytes a rank | ratio |")
    assert len(body) == 3
    first = next(csv.DictReader(io.StringIO(csv_text(runs[1:]))))
    assert int(float(first["bytes a rank"])) == runs[1].result["wire_bytes_sent_per_rank"]
    assert float(first["seconds a step"]) == pytest.approx(rows_of(runs)[1].step_seconds)
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(rich_table(runs))
    shown = console.export_text()
    for text in ("train", "density=0.01", body[1].split("|")[5].strip()):
        assert text in shown


def test_a_bar_in_a_label_does_not_break_the_markdown(tmp_path):
    run = replace(_one(tmp_path, Made()), label="a|b")
    assert markdown([run]).splitlines()[2].startswith(r"| a\|b | ")


def test_the_headline_takes_of_the_good_the_one_that_sends_least(tmp_path):
    made = [dense(), Made(level=1.1), Made(method="strom", density=0.002, level=1.2), Made(method="dgc", level=2.0)]
    runs = read_runs([write_compare(tmp_path / "all", made)])
    assert headline(runs).startswith("strom ends at perplexity ")
    assert headline(runs).endswith("2 of 3 methods end at least as good as dense.")
    worse = [runs[0], runs[3]]
    assert headline(worse).startswith("dgc ends at perplexity ")
    assert "fewer bytes" in headline(runs[1:])
    assert headline(runs[:1]).startswith("dense ends at perplexity ")


def test_long_logs_are_drawn_as_means(tmp_path):
    run = _one(tmp_path, Made(steps=4000, every=5))
    (trace,) = over([run], "loss", "steps").data
    assert len(trace.y) <= MOST_POINTS
    assert trace.x[0] == 15
    assert trace.y[0] == pytest.approx(sum(line["loss"] for line in run.steps[:3]) / 3, rel=1e-5)
    assert trace.x[-1] == 4000


def test_what_has_sent_nothing_has_no_place_on_a_log_axis(tmp_path):
    run = _one(tmp_path, Made())
    run = replace(run, steps=({**run.steps[0], "wire_bytes": 0}, *run.steps[1:]))
    figure = over([run], "loss", "bytes")
    assert figure.layout.xaxis.type == "log"
    assert min(figure.data[0].x) > 0
    assert len(figure.data[0].x) == len(run.steps) - 1


def test_nothing_to_show_gives_no_figure(tmp_path):
    run = _one(tmp_path, Made(eval_every=10_000))
    assert over([run], "metric", "steps") is None
    assert over([run], "clipped_share", "steps") is None
    assert layers_of(run) is None
    assert step_times([replace(run, steps=(), result={})]) is None


def test_every_method_has_a_look_of_its_own_and_every_colour_a_dark_twin(tmp_path):
    runs = read_runs([write_compare(tmp_path / "all", [dense(), *(Made(method=f"m{i}") for i in range(20))])])
    looks = looks_of(runs)
    assert len({(look.colour, look.dash) for look in looks}) == 21
    assert {look.colour for look in looks} <= set(DARK)
    bars = step_times(runs).data
    lines = over(runs, "loss", "seconds").data
    for look, bar, line in zip(looks, bars, lines, strict=True):
        assert bar.marker.color == line.line.color == look.colour
        assert bar.meta == line.meta


def test_layers_of_a_large_model_are_drawn_by_its_parts(tmp_path):
    layers = layers_of(_one(tmp_path, Made(entries=RESNET | {"bn.bias": 16})))
    assert [trace.name for trace in bytes_by_layer(layers).data] == ["layer1", "layer2", "layer3", "bn"]
    heat = density_by_layer(layers, least=0.001)
    assert len(heat.data[0].y) == 120
    assert heat.layout.xaxis.title.text == "steps (left out: 1 always sent whole)"
    assert heat.data[0].zmin == -3


def _told(html: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="told">(.*?)</script>', html, re.DOTALL)
    return json.loads(found[1], parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_the_page_asks_for_nothing_from_outside(three, tmp_path):
    path = write_page(read_runs([three]), tmp_path / "new" / "page.html")
    html = path.read_text(encoding="utf-8")
    assert html.count(get_plotlyjs()) == 1
    ours = html.replace(get_plotlyjs(), "")
    assert not re.findall(r"(?:src|href)\s*=|https?:|url\(|@import", ours)
    assert set(_told(html)["figures"]) >= {"loss:steps", "loss:bytes", "metric:seconds", "density", "layer_bytes:1"}


def test_whatever_files_say_stays_text(tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    run = _one(tmp_path, Made(entries={f"{evil}.weight": 5000, "b": 4}, task={"kind": evil, "data": evil}))
    said = {"what": evil, "paper": evil, "settings": evil, "scores": {"valid": 1.0, evil: 2.0}}
    run = replace(
        run, label=evil, metric=evil, result={**run.result, **said}, date=evil,
        environment={**run.environment, "command": evil, evil: evil}, spec={**run.spec, evil: [evil]},
    )  # fmt: skip
    html = page([run, replace(run, label=f"{evil}2", spec={evil: evil})], title=evil)
    assert "<img" not in html.replace(get_plotlyjs(), "")
    told = _told(html)
    assert told["copies"]["command0"] == told["methods"][0]["label"] == evil
    # Plotly reads names as HTML: there they are escaped once.
    assert told["figures"]["loss:steps"]["data"][0]["name"].startswith("&lt;/script&gt;&lt;img")


@pytest.mark.parametrize("made", [
    [Made()], [Made(stops_at=10)], [Made(eval_every=9999)], [dense(diverges_at=10), Made(diverges_at=300)],
    [Made(metric="accuracy", stops_at=9)], [dense(), *(Made(method=f"m{i}") for i in range(12))],
])  # fmt: skip
def test_a_page_can_be_made_of_runs_in_any_state(tmp_path, made):
    html = page(read_runs([write_compare(tmp_path / "all", made)]))
    assert len(_told(html)["methods"]) == len(made)
    assert "nan" not in re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL).lower()


def test_the_command_writes_the_page_beside_the_runs(three, capsys):
    Report(folders=(three,), json=True).run()
    told = json.loads(capsys.readouterr().out)
    assert told == {"report": str(three / "report.html"), "methods": ["dense", "topk:density=0.01", "sdagc:c=20"]}
    out = three / "[bold]other.html"
    Report(folders=(three / "dense", three / "sdagc-c=20"), out=out, title="Two").run()
    assert capsys.readouterr().out.strip() == f"page: {out.resolve()}"
    assert "<h1>Two</h1>" in out.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="a folder or more, got none"):
        Report(folders=())
