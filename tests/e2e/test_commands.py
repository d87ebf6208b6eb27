"""The words of the command line: help, lists, and errors that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from laconic.cli import main
from laconic.cli.train import _print
from laconic.lab.launch import RankError
from laconic.lab.report.amounts import NOTHING
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm
from laconic.lab.training import Training
from laconic.methods import METHODS
from unit.lab.runs import Made, dense, write_compare, write_run


def _said(capsys, *words: str) -> str:
    main(words)
    return capsys.readouterr().out


def _refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_every_word_has_help(capsys):
    words = [
        [],
        ["methods"],
        ["train"],
        ["train", "vision"],
        ["compare", "lm"],
        ["report"],
        ["data"],
        ["data", "get"],
    ]
    for command in words:
        with pytest.raises(SystemExit) as left:
            main([*command, "--help"])
        assert left.value.code == 0
        assert f"usage: {' '.join(['laconic', *command])}" in capsys.readouterr().out


def test_methods_are_listed_with_settings_and_papers(capsys):
    listed = json.loads(_said(capsys, "methods", "--json"))["methods"]
    assert [one["name"] for one in listed] == list(METHODS)
    assert all(one["what"] and one["paper"] for one in listed)
    table = _said(capsys, "methods")
    assert all(name in table for name in METHODS)
    celgc = next(one for one in listed if one["name"] == "celgc")
    assert (celgc["settings"]["every"], celgc["settings"]["send"]) == (16, None)
    assert "NeurIPS 2022" in celgc["paper"]
    assert "celgc:every=16:send=topk+density=0.01" in table


@pytest.mark.parametrize("words", [["train", "lm"], ["compare", "lm"]])
def test_help_says_how_a_local_method_sends(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert "celgc:every=16:send=topk+density=0.01" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "lm", "--method", "top"], "no method is called 'top'. There are: adacomp"),
        (["train", "lm", "--method", "topk:density=2"], "density must be a number in (0, 1], got 2"),
        (["compare", "lm", "--methods", "dense,celgc:send=tpk+density=0.1"], "no method is called 'tpk'"),
        (["train", "lm", "--workers", "0"], "workers must be a whole number of 1 or more, got 0"),
        (["train", "lm", "--steps", "5", "--epochs", "1"], "give steps or epochs, got both"),
        (["train", "--resume", "/no/such/run"], "has no spec.json: it is not the folder of a run"),
        (["compare", "--resume", "/no/such/run"], "give a folder that compare has begun"),
        (["compare", "lm", "--methods", "dense,dense"], "methods must be different ones"),
        (["train", "lm", "--checkpoint-every", "0"], "checkpoint_every must be a whole number of 1 or more"),
        (["report", "/no/such/run"], "/no/such/run"),
    ],
)
def test_wrong_words_are_refused_before_any_rank_starts(words, said, capsys):
    assert said in _refused(capsys, *words)


def test_a_folder_that_has_something_in_it_is_not_written_to(capsys, tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    assert "has something in it. Give another --out" in _refused(capsys, "train", "lm", "--out", str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_comparison_that_breaks_shows_what_there_is(capsys, tmp_path, monkeypatch):
    out = write_compare(tmp_path / "half", [dense(), Made(stops_at=200)])
    spec = Spec(
        task=Lm(),
        training=Training(),
        method="dense",
        workers=2,
        device="cpu",
        data_home="nowhere",
        checkpoint_every=None,
    )
    (out / "compare.json").write_text(json.dumps({"methods": ["dense", Made().method], "spec": spec.as_dict()}))

    def breaks(*args: object, **options: object) -> None:
        raise RankError("rank 1 failed: out of memory")

    monkeypatch.setattr("laconic.cli.compare.carry_out", breaks)
    assert "laconic: rank 1 failed: out of memory" in _refused(capsys, "compare", "--resume", str(out))
    assert list(json.loads((out / "summary.json").read_text())["methods"]) == ["dense"]
    assert (out / "report.html").exists()


def test_a_run_that_diverged_is_reported_too(capsys, tmp_path):
    result = json.loads((write_run(tmp_path / "run", Made()) / "result.json").read_text())
    _print(result | {"scores": {"valid": None}, "ratio": None, "best": None}, tmp_path / "[/x]")
    said = capsys.readouterr().out
    assert f"perplexity: valid {NOTHING}" in said
    assert str(tmp_path / "[/x]") in said


def test_without_tensorboard_it_is_said_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert 'pip install "laconic[tensorboard]"' in _refused(capsys, "train", "lm", "--tensorboard")


def test_on_a_machine_without_a_gpu_cuda_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = _refused(capsys, "train", "lm", "--device", "cuda")
    assert "wants a GPU that torch can use, got none. Write --device cpu." in said


@pytest.mark.parametrize("module", ["tyro", "plotly"])
def test_without_the_extra_the_command_says_what_to_install(module):
    code = f"import sys; sys.modules[{module!r}] = None; from laconic.cli import main; main(['methods'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert f'the command line needs {module}: pip install "laconic[lab]"' in done.stderr
    assert "Traceback" not in done.stderr
