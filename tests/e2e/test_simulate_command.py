"""``laconic simulate`` as a command: what it writes, and what it refuses."""

from __future__ import annotations

import json

import pytest
import tyro

from laconic.cli.commands import MARKERS
from laconic.cli.compare import ResumeCompare
from laconic.cli.simulate import Simulate
from laconic.cli.train import ResumeTrain


def _command(*words: object) -> Simulate:
    return tyro.cli(Simulate, args=[str(word) for word in words], config=MARKERS)


OPTIONS = ("--steps", 4, "--batch", 4, "--eval-every", 2, "--compute-seconds", 0.1, "--latency", 2, "--threads", 1)


def test_the_command_writes_what_compare_writes_and_says_that_it_is_simulated(capsys, tmp_path):
    out = tmp_path / "out"
    network = ("--workers", 3, "--bandwidth", "100,50,20", "--changes", "0.2:0.5", "--stragglers", "0.3:2")
    _command("logreg", *OPTIONS, *network, "--methods", "dense,topk:density=0.5", "--json", "--out", out).run()
    told = json.loads(capsys.readouterr().out)
    assert list(told["methods"]) == ["dense", "topk:density=0.5"]
    assert told["simulated"]["network"]["changes"] == [{"second": 0.2, "factor": 0.5}]
    assert [c["bits_per_second"] for c in told["simulated"]["network"]["cables"]] == [100e6, 50e6, 20e6]
    # Four rounds of 2 ms and of a third of the numbers, on the slowest cable; from 0.2 on at half its rate.
    sending = 4 / 3 * 124 * 8 * (1 + 66 / 1448) / 20e6
    slow = 0.2 + 4 * 0.002
    assert told["methods"]["dense"]["seconds"] == pytest.approx(4 * (slow + 2 * sending), abs=1e-9)
    page = (out / "report.html").read_text()
    assert "simulated: 3 ranks at 20 to 100 Mbit/s and 2 ms" in page
    assert json.loads((out / "dense" / "spec.json").read_text())["simulated"] == told["simulated"]
    assert not list(out.glob("*/checkpoints"))
    assert json.loads((out / "dense" / "environment.json").read_text())["backend"] == "lockstep"
    for folder in (out, out / "dense"):
        with pytest.raises(ValueError, match=r"has something in it. Give another --out\.$"):
            _command("logreg", "--out", folder).run()
    with pytest.raises(ValueError, match="is a simulation"):
        ResumeCompare(resume=out).run()
    with pytest.raises(ValueError, match="simulation"):
        ResumeTrain(resume=out / "dense").run()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--workers", 3, "--bandwidth", "100,50"), "bandwidth has 2 rates, and there are 3 nodes"),
        (("--workers", 3, "--gpus-per-node", 2), "divides the 3 ranks"),
        (("--bandwidth", "fast"), "bandwidth wants numbers, got 'fast'"),
        (("--bandwidth", "0"), "bits_per_second must be over 0"),
        (("--stragglers", "0.5"), "stragglers wants 2 numbers with : between them"),
        (("--stragglers", "0.1:2,0.2:3"), "stragglers is one SHARE:FACTOR"),
        (("--dropouts", "9:1:1"), "rank 9 cannot stand still: there are 8"),
        (("--dropouts", "0.5:1:1"), "dropouts begin with a rank"),
        (("--dropouts", "inf:1:1"), "dropouts begin with a rank"),
        (("--changes", "5:1,3:2"), "changes must come one after the other"),
        (("--threads", 0), "threads must be"),
        (("--methods", "dense,dense"), "methods must be different ones"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_runs(words, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        _command("logreg", *words, "--out", tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_a_method_that_a_task_cannot_have_is_passed_over_and_told(capsys, tmp_path):
    with pytest.raises(ValueError, match="rank"):
        _command("logreg", "--methods", "powersgd:rank=0,dense", "--out", tmp_path / "no").run()
    methods, out = "diloco:every=12:fragments=4,dense", tmp_path / "one"
    with pytest.raises(SystemExit):
        _command("logreg", *OPTIONS, "--workers", 2, "--methods", methods, "--json", "--out", out).run()
    told = capsys.readouterr()
    assert "diloco:every=12:fragments=4: " in told.err
    assert "cannot be dealt out to 4 fragments" in told.err
    assert list(json.loads(told.out)["methods"]) == ["dense"]
    words = (*OPTIONS, "--workers", 120, "--methods", "dense", "--out", tmp_path / "out")
    with pytest.raises(SystemExit):
        _command("logreg", *words).run()
    assert "the smallest part of the data has 3 examples, a batch wants 4" in capsys.readouterr().err


def test_a_launcher_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Start it without torchrun"):
        _command("logreg", "--out", tmp_path / "out").run()
