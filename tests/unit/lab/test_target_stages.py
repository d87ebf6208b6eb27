"""Tuning and racing around runs that are made up: who is chosen, what is run again, and what is written down."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from laconic.lab.network import race_stages
from laconic.lab.network.race import Entry, Ran, Seen
from laconic.lab.network.race_files import Chosen, Tried, choose, read_raced, read_tuned
from laconic.lab.network.race_jobs import Done
from laconic.lab.network.race_page import page
from laconic.lab.network.race_stages import Course, Plan, choices, run_race, tune
from laconic.lab.network.race_table import closing, race_table, tuning_table
from laconic.lab.network.target import BenchTarget
from laconic.lab.tasks import Lm
from laconic.lab.work import Metric

LOWER = Metric(name="perplexity", lower_is_better=True, exponential=True)
HIGHER = Metric(name="accuracy", lower_is_better=False)
QUIET = Console(quiet=True)
COURSE = Course(target=5.0, megabits=100.0, loopback=True, most_seconds=1000.0)


def _curve(*figures: float, seconds: float = 1.0) -> tuple[Seen, ...]:
    return tuple(Seen(seconds=seconds * n, step=10 * n, figure=figure) for n, figure in enumerate(figures, start=1))


def _tried(rate: float, *figures: float, ended="steps") -> Tried:
    return Tried(competitor="ddp", rate=rate, curve=_curve(*figures), ended=ended)


def _ran(*figures: float, ended="steps", seconds=1.0, sent=None) -> Ran:
    return Ran(
        curve=_curve(*figures, seconds=seconds), ended=ended, metric=LOWER, interface_bytes=sent, link_bytes=None,
        stretch_seconds=(0.25, 0.5, 0.75),
    )  # fmt: skip


@pytest.fixture
def plan(tmp_path):
    words = {"peers": ("ddp", "ddp-fp16"), "methods": ("spartan", "topk"), "rates_grid": (1.0, 2.0)}
    return BenchTarget(task=Lm(hidden=8), steps=40, data_home=tmp_path, **words).plan()


def _printed(table: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


class Crews:
    """Stands where crews are started: notes who runs, and hands out what was made up for them."""

    def __init__(self, made: dict[str, Ran | str]) -> None:
        self.made, self.started = made, []

    def one(self, entry: Entry, ranks, *, hosts, seconds) -> Done:
        self.started.append((entry.competitor, entry.rate))
        found = self.made.get(f"{entry.competitor} {entry.rate:g}", self.made.get(entry.competitor))
        if isinstance(found, str):
            return Done(entry=entry, failed=found)
        return Done(entry=entry, ran=(found, found))

    def many(self, entries, ranks, *, jobs, seconds):
        return (self.one(entry, ranks, hosts=None, seconds=seconds) for entry in entries)


@pytest.fixture
def crews(monkeypatch):
    made = Crews({})
    monkeypatch.setattr(race_stages, "run_many", made.many)
    monkeypatch.setattr(race_stages, "run_one", made.one)
    return made


# Which rate


def test_the_rate_that_got_there_first_is_chosen():
    tried = [_tried(1.0, 9, 7, 5, 4), _tried(2.0, 8, 5, 6, 6), _tried(3.0, 9, 9, 9, 1)]
    assert choose(tried, LOWER, 5.0) == Chosen(competitor="ddp", rate=2.0, steps=20, best=1, at_edge=False)
    assert (choose(tried, LOWER, 3.0).rate, choose(tried, LOWER, 3.0).at_edge) == (3.0, True)
    assert choose([_tried(1.0, 0.1, 0.8), _tried(2.0, 0.6, 0.7)], HIGHER, 0.6).rate == 2.0


def test_of_rates_that_got_there_together_the_better_figure_is_chosen():
    assert choose([_tried(1.0, 5.0, 1.0), _tried(2.0, 4.0, 2.0)], LOWER, 5.0).rate == 2.0


def test_where_none_got_there_the_best_end_is_chosen_and_said():
    chosen = choose([_tried(1.0, 6, 8), _tried(2.0, 9, 7), _tried(3.0, 6, math.nan, ended="diverged")], LOWER, 5.0)
    assert (chosen.rate, chosen.steps, chosen.best) == (2.0, None, 6)


# Tuning


def test_what_the_file_has_is_not_run_again(plan, crews, tmp_path):
    path = tmp_path / "new" / "tuned.json"
    crews.made = {"ddp": _ran(9, 8), "ddp-fp16": _ran(9, 7), "topk": "out of memory", "spartan": _ran(9, math.nan)}
    crews.made["spartan"] = replace(crews.made["spartan"], ended="diverged")
    first = tune(plan, path, {"cpu": "some"}, jobs=1, console=QUIET)
    assert crews.started == [(word, rate) for word in plan.competitors for rate in (1.0, 2.0)]
    crews.started.clear()
    crews.made["topk"] = _ran(9, 6)
    again = tune(replace(plan, grid=(1.0, 2.0, 3.0), competitors=("topk", "ddp")), path, {}, jobs=1, console=QUIET)
    # What failed is tried anew, and the new rate.
    assert crews.started == [("topk", 1.0), ("topk", 2.0), ("topk", 3.0), ("ddp", 3.0)]
    assert again.runs[:4] == first.runs[:4]
    assert math.isnan(again.of("spartan")[0].curve[-1].figure)
    assert json.loads(path.read_text())["runs"][-1]["curve"] == [[1.0, 10, 9], [2.0, 20, 8]]


def test_files_of_other_settings_are_refused_and_what_differs_is_named(plan, crews, tmp_path):
    path = tmp_path / "tuned.json"
    crews.made = dict.fromkeys(plan.competitors, _ran(9, 8))
    tune(plan, path, {}, jobs=1, console=QUIET)
    assert read_tuned(path, plan.settings()) is not None
    with pytest.raises(ValueError, match=r"other settings: eval_every 16, got 8; steps 40, got 41\. Give the same"):
        read_tuned(path, replace(plan, steps=41, eval_every=8).settings())
    with pytest.raises(ValueError, match="'hidden': 8"):
        read_tuned(path, replace(plan, task=Lm(hidden=9)).settings())


def test_who_was_not_tuned_is_said_with_the_command(plan, crews, tmp_path):
    crews.made = {"ddp": _ran(9, 4)}
    tuned = tune(replace(plan, competitors=("ddp",)), tmp_path / "tuned.json", {}, jobs=1, console=QUIET)
    with pytest.raises(ValueError, match=r"no rate was tuned for spartan\. Tune first: laconic tune"):
        choices(replace(plan, competitors=("ddp", "spartan")), tuned, 5.0, "laconic tune")
    assert [each.rate for each in choices(replace(plan, competitors=("ddp",)), tuned, 5.0, "")] == [1.0]


# Racing


def _chosen(word: str, steps: int | None = 20) -> Chosen:
    return Chosen(competitor=word, rate=2.0, steps=steps, best=6.0, at_edge=False)


def _race(plan: Plan, path, *chosen: Chosen, course=COURSE):
    about = {"cpu": "some", "command": "laconic bench"}
    return run_race(plan, course, chosen, LOWER, path, about, console=QUIET)


def test_rows_tell_seconds_steps_bytes_and_speedups(plan, crews, tmp_path):
    crews.made = {
        "spartan": _ran(9, 5, ended="target", seconds=2, sent=5),
        "ddp": _ran(8, 4, ended="target", seconds=40, sent=1000),
        "ddp-fp16": _ran(8, 4, ended="target", seconds=20),
    }
    whole = _race(plan, tmp_path / "race.json", *(_chosen(word) for word in ("spartan", "ddp-fp16", "ddp")))
    assert [row["competitor"] for row in whole["rows"]] == ["ddp", "spartan", "ddp-fp16"]
    row = {row["competitor"]: row for row in whole["rows"]}["spartan"]
    assert (row["seconds"], row["steps"], row["step_milliseconds"], row["interface_bytes"]) == (4, 20, 500, 5)
    assert (row["over_ddp"], row["over_fp16"], row["over_best_peer"]) == (20, 10, 10)
    assert row["curve"] == [[2, 10, 9], [4, 20, 5]]
    assert json.loads((tmp_path / "race.json").read_text())["rows"] == json.loads(json.dumps(whole["rows"]))


def test_a_target_that_is_never_reached_has_a_row_that_says_so(plan, crews, tmp_path):
    crews.made = {"ddp": _ran(9, 6, 7, ended="seconds"), "topk": "rank 0 failed:\nboom", "spartan": _ran(4)}
    crews.made["spartan"] = replace(crews.made["spartan"], ended="target")
    whole = _race(plan, None, _chosen("ddp"), _chosen("topk"), _chosen("spartan"), _chosen("ddp-fp16", None))
    ddp, topk, spartan = whole["rows"]
    assert (ddp["reached"], ddp["seconds"], ddp["steps"], ddp["best"], ddp["steps_run"]) == (
        False,
        None,
        None,
        6,
        30,
    )
    assert ("boom" in topk["failed"], topk["reached"], topk["seconds"]) == (True, False, None)
    assert spartan["reached"]
    assert spartan["over_ddp"] is None
    assert [each["competitor"] for each in whole["not_raced"]] == ["ddp-fp16"]
    assert ("ddp-fp16", 2.0) not in crews.started
    text = _printed(race_table(whole)) + closing(whole)
    for word in ("not reached", "failed", "not raced", "6 at best", "boom"):
        assert word in text
    drawn = page(whole)
    assert drawn.count("Plotly.newPlot(") >= 2
    assert all(row["competitor"] in drawn for row in whole["rows"])


def test_a_race_goes_on_where_it_was_left(plan, crews, tmp_path):
    path = tmp_path / "race.json"
    crews.made = {
        "ddp": _ran(9, 8, ended="seconds", seconds=500),
        "spartan": _ran(4, ended="target"),
        "topk": "boom",
    }
    words = [_chosen(word) for word in ("ddp", "spartan", "topk")]
    _race(plan, path, *words)
    crews.started.clear()
    _race(plan, path, *words)
    # What failed is tried anew.
    assert crews.started == [("topk", 2.0)]
    crews.started.clear()
    # With less time than they had, both rows stand; with more, that of whom time stopped does not.
    _race(plan, path, *words[:2], course=replace(COURSE, most_seconds=10))
    assert crews.started == []
    _race(plan, path, *words[:2], course=replace(COURSE, most_seconds=5000))
    assert crews.started == [("ddp", 2.0)]
    crews.started.clear()
    _race(plan, path, words[0], replace(words[1], rate=1.0))
    assert crews.started == [("spartan", 1.0)]
    with pytest.raises(ValueError, match=r"other settings: target 5\.0, got 4\.0"):
        _race(plan, path, *words, course=replace(COURSE, target=4.0))
    assert read_raced(tmp_path / "none.json", {}).rows == {}


def test_a_race_of_fewer_keeps_what_others_came_to(plan, crews, tmp_path):
    path = tmp_path / "race.json"
    crews.made = {"ddp": _ran(9, 4, ended="target", seconds=10), "spartan": _ran(4, ended="target"), "topk": "boom"}
    _race(plan, path, *(_chosen(word) for word in ("ddp", "spartan", "topk")), _chosen("ddp-fp16", None))
    crews.started.clear()
    whole = _race(plan, path, replace(_chosen("spartan"), rate=1.0))
    assert crews.started == [("spartan", 1.0)]
    kept = json.loads(path.read_text())
    for rows in (whole["rows"], kept["rows"]):
        named = [(row["competitor"], row["rate"], bool(row["failed"])) for row in rows]
        assert named == [("ddp", 2.0, False), ("spartan", 1.0, False), ("topk", 2.0, True)]
    assert kept["rows"][1]["over_ddp"] == 20
    assert [each["competitor"] for each in kept["not_raced"]] == ["ddp-fp16"]
    # One that can race now is no longer among those who did not.
    crews.made["ddp-fp16"] = _ran(4, ended="target")
    assert _race(plan, path, _chosen("ddp-fp16"))["not_raced"] == []


# The command


def test_what_a_race_lacks_is_said(plan, crews, tmp_path, monkeypatch):
    path, settings = tmp_path / "tuned.json", {"task": Lm(hidden=8), "steps": 40, "data_home": tmp_path}
    settings |= {
        "peers": ("ddp", "ddp-fp16"),
        "methods": ("spartan", "topk"),
        "rates_grid": (1.0, 2.0),
        "tuned": path,
    }
    bench = BenchTarget(stage="race", **settings)
    given = ["bench", "network", "target", "lm", "--hidden", "8", "--stage", "race", "--rates-grid", "1", "2"]
    monkeypatch.setattr("sys.argv", ["laconic", *given])
    first = "laconic bench network target lm --hidden 8 --rates-grid 1 2 --stage tune"
    with pytest.raises(FileNotFoundError, match=rf"no .*tuned\.json\. Tune first: {first}$"):
        bench.run()
    crews.made = dict.fromkeys(plan.competitors, _ran(9, 8.25))
    tuned = tune(plan, path, {}, jobs=1, console=QUIET)
    with pytest.raises(
        ValueError, match=r"needs a target.* ddp came to perplexity 8\.25 within 40 steps\. Write --t"
    ):
        bench.run()
    monkeypatch.setattr("laconic.lab.network.hosts.missing", lambda: "hosts need root")
    with pytest.raises(OSError, match=r"hosts need root\. .* write --loopback\."):
        replace(bench, target=9.0).run()
    with pytest.raises(ValueError, match=rf"no rate was tuned for post-local:3\. Tune first: {first}$"):
        replace(bench, target=9.0, peers=("post-local:3",)).run()
    assert "an end of the grid" in _printed(tuning_table(tuned, 8.5))


def test_tuning_tells_the_command_of_the_race_with_all_options(crews, tmp_path, monkeypatch, capsys):
    crews.made = {"ddp": _ran(9, 8)}
    monkeypatch.setattr("laconic.lab.network.race_stages.Plan.check_task", lambda _: None)
    settings = {"task": Lm(hidden=8), "peers": ("ddp",), "methods": (), "data_home": tmp_path}
    bench = BenchTarget(**settings, rates_grid=(1.0,), tuned=tmp_path / "tuned.json")
    monkeypatch.setattr(
        "sys.argv", ["time_to_target.py", "lm", "--data", "a folder", "--stage=tune", "--steps", "9"]
    )
    following = "Next: laconic bench network target lm --data 'a folder' --steps 9 --stage race"
    bench.run()
    assert f"{following} --target FIGURE\n" in capsys.readouterr().out
    replace(bench, target=5.0).run()
    assert f"{following}\n" in capsys.readouterr().out


def test_data_that_is_not_there_is_told_in_the_tasks_words(crews, tmp_path):
    bench = BenchTarget(
        task=Lm(data="ptb"), data_home=tmp_path, tuned=tmp_path / "t.json", peers=("ddp",), methods=()
    )
    with pytest.raises((ValueError, OSError), match="laconic data"):
        bench.run()
    assert crews.started == []
