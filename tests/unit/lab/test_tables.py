"""Tables and pictures of many runs: what is averaged, what is within the band, and what did not come to its end."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from laconic.lab.report.amounts import NOTHING


@pytest.fixture
def tables(benchmark):
    return benchmark("tables")


def _run(row, score, *, seed=0, metric="perplexity", group="ptb", wire_bytes=1000, **told):
    """Return what is kept of a run; it has sent its share of 100 kB in 20 steps."""
    curve = [{"epoch": epoch, "metric": 2 * score if score else None} for epoch in (1.0, 2.0)]
    lines = [{"epoch": epoch, "clipped_share": 0.5, "density": 0.01} for epoch in (0.5, 1.5)]
    about = {"group": group, "row": row, "seed": seed, "metric": metric, "lower_is_better": metric != "accuracy"}
    scores = {"valid": score, "test": score and 0.9 * score}
    return about | {
        "scores": scores, "wire_bytes": wire_bytes, "dense_bytes": 100_000, "steps": 20, "syncs": 5, "epochs": 2.0,
        "density": 0.01, "diverged": False, "stopped": False, "seconds": 50.0, "ranks": 4, "parameters": 1234567,
        "torch": "2.7", "device": "a chip", "course": {"batch": 3}, "curve": curve, "lines": lines,
    } | told  # fmt: skip


def _diverged(row, **told):
    return _run(row, None, diverged=True, epochs=1.25, **told)


def _stopped(row, **told):
    return _run(row, None, stopped=True, scores={}, epochs=0.75, curve=[], **told)


def _parents():
    return [_run("dense", 80.0, wire_bytes=100_000, density=1.0), _run("dense", 82.0, seed=1, wire_bytes=100_000)]


def _cells(tables, tmp_path, runs, **options):
    """Return the rows of the only table, by their names, in order."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"runs": runs}))
    text = tables.printed(path, tables.Table(parent="dense", **options))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n") if line[:1] == "|"]
    assert len({len(line) for line in lines}) == 1, "a row with more cells or fewer is cut or torn"
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def test_means_and_spreads_over_seeds_and_what_was_sent(tables, tmp_path):
    # 100,000 / 1,000 and 100,000 / 4,000: the mean of ratios is not the ratio of means.
    runs = [_run("topk", 81.0), _run("topk", 82.62, seed=1, wire_bytes=4000)]
    row = _cells(tables, tmp_path, [*_parents(), *runs])["topk"]
    assert row == {
        "method": "topk", "valid": "81.81", "test": "73.63", "seeds, valid apart": "2, 1.62",
        "against dense": "+1.00%", "ratio as sent": "62.5x", "kB a step": "0.12", "density": "1%", "rounds": "5",
        "within 1%": "yes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "parent", "score", "said"),
    [
        ("perplexity", 80.0, 80.8, ["80.80", "+1.00%", "yes"]),
        ("perplexity", 80.0, 80.96, ["80.96", "+1.20%", "no"]),
        ("perplexity", 80.0, 70.0, ["70.00", "-12.50%", "yes"]),
        ("perplexity", 80.0, 1e300, ["1e+300", "+1.25e+300%", "no"]),
        ("accuracy", 0.9142, 0.9112, ["91.12 %", "-0.30 points", "yes"]),
        ("accuracy", 0.9142, 0.9110, ["91.10 %", "-0.32 points", "no"]),
        ("accuracy", 0.9142, 0.9300, ["93.00 %", "+1.58 points", "yes"]),
        ("word error rate", 0.0321, 0.0371, ["3.71 %", "+0.50 points", "yes"]),
        ("word error rate", 0.0321, 0.0373, ["3.73 %", "+0.52 points", "no"]),
        ("bits per character", 2.0, 2.5, ["2.500", "+25.00%", NOTHING]),
    ],
)
def test_each_metric_has_its_band_and_better_is_within(tables, tmp_path, metric, parent, score, said):
    runs = [_run("dense", parent, metric=metric), _run("topk", score, metric=metric)]
    row = list(_cells(tables, tmp_path, runs)["topk"].values())
    assert [row[1], row[4], row[-1]] == said


def test_a_row_of_which_a_seed_diverged_has_no_mean(tables, tmp_path):
    row = _cells(tables, tmp_path, [*_parents(), _run("topk", 80.0), _diverged("topk", seed=1)])["topk"]
    assert row["valid"] == "diverged: 1 of 2 seeds, at epoch 1.25"
    assert row["within 1%"] == "no"
    assert {value for key, value in row.items() if key not in ("method", "valid", "within 1%")} == {NOTHING}


def test_a_score_that_is_no_number_is_a_divergence_though_all_losses_were_finite(tables):
    assert tables.diverged(_run("topk", None))
    assert tables.diverged(_run("topk", 1.0, scores={}))
    assert not tables.diverged(_stopped("topk"))


def test_a_row_that_was_stopped_says_when_and_its_other_seeds_count(tables, tmp_path):
    runs = [*_parents(), _stopped("led"), _run("topk", 81.0), _stopped("topk", seed=1)]
    rows = _cells(tables, tmp_path, runs)
    assert (rows["led"]["valid"], rows["led"]["within 1%"]) == ("stopped at epoch 0.75", NOTHING)
    assert (rows["topk"]["valid"], rows["topk"]["seeds, valid apart"]) == ("81.00", "1; 1 stopped at epoch 0.75")


def test_without_a_parent_that_ended_nothing_is_judged(tables, tmp_path):
    row = _cells(tables, tmp_path, [_diverged("dense"), _run("topk", 81.0)])["topk"]
    assert (row["valid"], row["against dense"], row["within 1%"]) == ("81.00", NOTHING, NOTHING)


def test_rows_come_in_the_order_of_the_script_and_unknown_ones_last(tables, tmp_path):
    runs = [_run("old", 80.0), _run("topk", 80.0), *_parents()]
    order = {("ptb", "dense"): "", ("ptb", "never run"): "", ("ptb", "topk"): ""}
    assert list(_cells(tables, tmp_path, runs, rows=order)) == ["dense", "topk", "old"]


def test_every_group_is_a_table_with_what_it_was_trained_on(tables, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"runs": [*_parents(), _run("dense", 80.0, group="other", ranks=8)]}))
    first, second = tables.printed(path, tables.Table(parent="dense")).split("\n\n**other**")
    assert first.endswith(
        "a chip, torch 2.7; workers: 4; batch of a worker: 3; epochs: 2; parameters: 1,234,567; "
        "2 runs, whose times add up to 100 s."
    )
    assert "workers: 8;" in second


def test_names_say_which_rows_are_a_series(tables):
    names = ["led 1%, 1 bit", "led 0.3%, 1 bit", "led 0.3%, int4", "celgc I=4", "celgc I=16, outer momentum"]
    assert [tables.series_of(name) for name in names] == [
        "led, 1 bit", "led, 1 bit", "led, int4", "celgc", "celgc, outer momentum",
    ]  # fmt: skip
    assert {tables.family_of(name) for name in names} == {"led", "celgc"}


def _of_all_kinds():
    """Return runs of rows near and far, one that diverged, and one that was merely stopped."""
    rows = {"led 1%": 80.5, "led 0.1%": 81.5, "topk": 79.0, "celgc I=4": 200.0}
    runs = [_run(row, score, wire_bytes=100 * (i + 1)) for i, (row, score) in enumerate(rows.items())]
    return [*_parents(), *runs, _diverged("spartan"), _stopped("sdagc")]


def test_dots_beyond_the_edge_lie_on_it_and_say_what_they_are(benchmark, tables):
    plots = benchmark("table_plots")
    summaries = tables.summed_up(tables.grouped(_of_all_kinds())["ptb"], "dense")
    dots = {
        dot.name: dot for dot in plots.dots_of(plots.Shown(parent="dense", summaries=summaries, title=""), 20.0)
    }
    assert dots.keys() == {"dense", "led 1%", "led 0.1%", "topk", "celgc I=4", "spartan"}
    assert [(dots[name].y, dots[name].label) for name in ("celgc I=4", "spartan")] == [
        (20.0, "celgc I=4 (+147%)"),
        (20.0, "spartan diverged"),
    ]
    assert dots["led 1%"].label == "1%", "the legend has the rest of its series' name"
    assert dots["topk"].y == pytest.approx(100 * (79 / 81 - 1))


def test_of_a_family_the_row_within_the_band_that_sends_least_is_told(tables):
    runs = [*_parents(), _run("led 1%", 81.0, wire_bytes=500), _run("led 0.1%", 81.5, wire_bytes=50)]
    runs += [_run("led 0.01%", 90.0, wire_bytes=5), _run("topk 1%", 85.0), _run("topk 0.1%", 95.0, wire_bytes=1)]
    summaries = tables.summed_up(tables.grouped(runs)["ptb"], "dense")[1:]
    assert [summary.name for summary in tables.telling(summaries)] == ["led 0.1%", "topk 1%"]


def test_pictures_are_well_formed_with_a_dot_a_row_and_a_line_a_chosen_row(benchmark, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"runs": _of_all_kinds()}))
    plots = benchmark("table_plots")
    drawn = plots.TablePlots(result=path, out=tmp_path / "some", rows=("dense", "led 1%", "topk")).draw()
    assert [one.name for one in drawn] == [
        f"some-{kind}.svg" for kind in ("frontier", "curves", "clipped", "density")
    ]
    for one in drawn:
        names = [part.get("id", "") for part in ElementTree.parse(one).iter()]
        dots, lines = (sum(name.startswith(kind) for name in names) for kind in ("dot-", "line-"))
        assert (dots, lines) == ((6, 0) if one == drawn[0] else (0, 3))


def test_a_parent_or_row_that_is_not_there_is_refused(benchmark, tmp_path, capsys):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"runs": [_run("topk", 80.0), _diverged("dgc")]}))
    plots = benchmark("table_plots")
    with pytest.raises(SystemExit, match=r"no row parallel clipping or dense .* only topk, dgc\. Write --parent"):
        plots.TablePlots(result=path, out=tmp_path / "some").draw()
    with pytest.raises(SystemExit, match="dgc has no score"):
        plots.TablePlots(result=path, out=tmp_path / "some", parent="dgc").draw()
    # A group that was stopped early is told of, and others are drawn.
    stopped = _run("dense", 90.0) | {"group": "later", "stopped": True}
    path.write_text(json.dumps({"runs": [_run("dense", 80.0), _run("topk", 80.0), stopped]}))
    drawn = plots.TablePlots(result=path, out=tmp_path / "two").draw()
    assert {one.name.rpartition("-")[0] for one in drawn} == {"two-ptb"}
    assert "later: dense has no score" in capsys.readouterr().err
    path.write_text(json.dumps({"runs": [_run("topk", 80.0), _diverged("dgc")]}))
    with pytest.raises(SystemExit, match="rows must be of ptb: topk, dgc; got led"):
        plots.TablePlots(result=path, out=tmp_path / "some", parent="topk", rows=("led",)).draw()
