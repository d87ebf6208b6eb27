"""The tables of the benchmarks: rows are run once, kept in a file, and those that were ended are run again."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import laconic
from laconic.lab.signals import StopWish
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm, Logreg, Vision
from laconic.lab.training import Training

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
TABLE = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(BENCHMARKS)!r})
import tyro
from many_runs import ManyRuns, Row

import laconic
from laconic.lab.tasks import Logreg
from laconic.lab.training import Training

TRAINING = Training(steps=6, eval_every=3)
ROWS = {{
    ("few", "dense"): Row(training=TRAINING, method=laconic.dense(), task=Logreg()),
    ("few", "local"): Row(training=TRAINING, method=laconic.local_sgd(4), task=Logreg(), ranks=3, weight=2.0),
}}

if __name__ == "__main__":
    tyro.cli(ManyRuns).one_row(ROWS)
"""


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """Import a file of the benchmarks, or of this test's folder."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith((str(BENCHMARKS), str(tmp_path))):
            del sys.modules[name]


def _spec(**training) -> Spec:
    return Spec(
        task=Logreg(), training=Training(**training), method="dense", workers=2, device="cpu", data_home="nowhere",
        checkpoint_every=None,
    )  # fmt: skip


def test_rows_are_run_kept_and_not_run_again(benchmark, tmp_path, capsys):
    script = tmp_path / "little_table.py"
    script.write_text(TABLE)
    rows = benchmark("little_table").ROWS
    options = benchmark("many_runs").ManyRuns(
        out=tmp_path / "out.json", virtual=True, ranks=2, jobs=2, seeds=1, within_seconds=100
    )
    runs = {run["row"]: run for run in options.all_rows(rows, script)["runs"]}
    assert capsys.readouterr().err == ""
    dense, local = runs["dense"], runs["local"]
    assert (dense["ranks"], local["ranks"]) == (2, 3)
    assert (dense["parameters"], dense["steps"], dense["syncs"], local["syncs"]) == (31, 6, 6, 2)
    assert [point["step"] for point in dense["curve"]] == [3, 6]
    assert dense["scores"] == {"test": pytest.approx(dense["curve"][-1]["metric"], rel=1e-5)}
    assert dense["valid_loss"] == dense["curve"][-1]["eval_loss"]
    assert (dense["diverged"], dense["stopped"], dense["task"]["kind"]) == (False, False, "logreg")
    # Nothing could be run now.
    script.unlink()
    again = options.all_rows(rows, script)
    assert {run["row"]: run for run in again["runs"]} == runs
    assert capsys.readouterr().err == ""
    assert json.loads(options.out.read_text())["runs"] == again["runs"]


def test_what_was_stopped_is_to_run_again_and_what_takes_long_first(benchmark):
    many_runs = benchmark("many_runs")
    light = many_runs.Row(training=Training(), method=laconic.dense())
    heavy = many_runs.Row(training=Training(), method=laconic.dense(), weight=3.0)
    rows = {("a", "x"): light, ("a", "y/z"): heavy, ("b", "x"): light}
    kept = {"seed": 0, "method": repr(laconic.dense())}
    runs = [kept | {"group": "a", "row": "x", "stopped": False}, kept | {"group": "b", "row": "x"}]
    runs.append(kept | {"group": "a", "row": "y/z", "stopped": True})
    options = many_runs.ManyRuns(seeds=2)
    assert options.still_to_run(rows, runs) == ["a/y/z/0", "a/y/z/1", "a/x/1", "b/x/1"]
    assert many_runs.ManyRuns(seeds=2, only=("b/", "z/1")).still_to_run(rows, runs) == ["a/y/z/1", "b/x/1"]


def test_a_loss_that_is_no_number_ends_a_run_and_is_told(benchmark):
    train_here = benchmark("virtual_runs").train_here
    done = train_here(_spec(steps=400, rate=1e38, log_every=2), laconic.dense(), StopWish())
    assert done["diverged"]
    assert not done["stopped"]
    assert 0 < done["steps"] < 400
    # JSON has no word for what is not finite.
    json.dumps(done, allow_nan=False)


def test_a_run_that_is_wished_to_end_tells_what_it_has(benchmark):
    wish = StopWish()
    wish.wanted = True
    done = benchmark("virtual_runs").train_here(_spec(steps=400, log_every=2), laconic.dense(), wish)
    assert done["stopped"]
    assert not done["diverged"]
    assert 0 < done["steps"] < 400


def test_once_it_is_wished_none_is_begun_and_those_under_way_are_asked_to_end(benchmark, tmp_path):
    apart, wish = benchmark("runs_apart"), StopWish()

    def errand(name, command):
        out, log = tmp_path / f"{name}.out", tmp_path / f"{name}.log"
        return apart.Errand(
            name=name, command=["sh", "-c", command], out=out, log=log, environment={"AT": str(tmp_path)}
        )

    ends = errand("ends", 'trap "echo > $AT/ends.out; exit" TERM; echo > $AT/ready; while :; do sleep 0.05; done')
    short = errand("short", "while [ ! -e $AT/ready ]; do sleep 0.05; done; echo > $AT/short.out")
    names = []
    for done in apart.carried_out(
        [ends, short, errand("late", "echo > $AT/late.out")], jobs=2, wish=wish, seconds=60
    ):
        names.append(done.name)
        wish.wanted = True
    assert names == ["short", "ends"]


def test_at_most_so_many_lines_are_kept(benchmark):
    thinned = benchmark("run_record").thinned
    assert thinned(range(3), 60) == [0, 1, 2]
    kept = thinned(range(1000), 60)
    assert (len(kept), kept[0], kept[-1]) == (60, 0, 999)
    assert kept == sorted(set(kept))


@pytest.mark.parametrize(
    ("task", "method"),
    [
        (Lm(data="words", hidden=8, length=8, dropout=0.0), laconic.dense()),
        (Lm(data="words", hidden=8, length=8, dropout=0.0), laconic.celgc(2, clip=0.05)),
        (Vision(width=2, train_examples=60, test_examples=20), laconic.celgc(2)),
    ],
    ids=["lm-dense", "lm-celgc", "vision-celgc"],
)
def test_ranks_that_are_computed_at_once_learn_what_each_learns_alone(
    benchmark, monkeypatch, tmp_path, task, method
):
    if task.name == "lm":
        (tmp_path / "words").mkdir()
        (tmp_path / "words" / "some.txt").write_text("a few plain words in another order " * 60)
        task = replace(task, data=str(tmp_path / "words"))
    runs = benchmark("virtual_runs")
    training = Training(steps=4, batch=4, eval_every=4, clip=0.05)
    spec = Spec(
        task=task, training=training, method=method.name, workers=3, device="cpu", data_home="",
        checkpoint_every=None,
    )  # fmt: skip
    together = runs.train_here(spec, method, StopWish())
    monkeypatch.setattr(runs, "can_be_together", lambda model: False)
    alone = runs.train_here(spec, method, StopWish())
    assert together["ranks_agree"]
    assert together["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-5)
    assert together["valid_loss"] == pytest.approx(alone["valid_loss"], rel=1e-4)


def test_a_row_whose_method_has_changed_is_run_again(benchmark):
    many = benchmark("many_runs")
    row = many.Row(training=Training(steps=6), method=laconic.topk(0.01), task=Logreg())
    run = {"group": "few", "row": "topk", "seed": 0, "method": repr(laconic.topk(0.01))}
    options = many.ManyRuns(seeds=1)
    assert options.still_to_run({("few", "topk"): row}, [run]) == []
    assert options.still_to_run({("few", "topk"): row}, [run | {"method": "topk(0.02)"}]) == ["few/topk/0"]


def test_what_a_command_has_started_ends_with_it(benchmark, tmp_path):
    apart = benchmark("runs_apart")
    mark = tmp_path / "grandchild"
    script = f"sleep 300 & echo $! > {mark}; wait"
    errand = apart.Errand(
        name="long", command=["bash", "-c", f"trap '' TERM; {script}"], out=tmp_path / "out", log=tmp_path / "log",
        environment={},
    )  # fmt: skip
    running = apart.carried_out([errand], jobs=1, wish=StopWish(), seconds=300.0)

    def started() -> bool:
        return mark.exists() and mark.read_text().endswith("\n")

    class Ended(Exception):  # noqa: N818
        """Whoever runs it is interrupted."""

    def glance(_: float) -> None:
        if started():
            raise Ended

    apart.time = SimpleNamespace(monotonic=time.monotonic, sleep=glance)
    with pytest.raises(Ended):
        next(running)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{int(mark.read_text())}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{int(mark.read_text())}/cmdline").exists()
