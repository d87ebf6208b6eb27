"""The words of the command line: help, lists, and errors that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from laconic.cli import main
from laconic.methods import METHODS


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "lm", "--method", "top"], "no method is called 'top'. There are: adacomp"),
        (["train", "lm", "--method", "topk:density=2"], "density must be a number in (0, 1], got 2"),
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


def test_on_a_machine_without_a_gpu_cuda_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = _refused(capsys, "train", "lm", "--device", "cuda")
    assert "wants a GPU that torch can use, got none. Write --device cpu." in said


@pytest.mark.parametrize("module", ["tyro", "plotly"])
def test_without_the_extra_the_command_says_what_to_install(module):
    code = f"import sys; sys.modules[{module!r}] = None; import laconic.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert f'the command line needs {module}: pip install "laconic[lab]"' in done.stderr
    assert "Traceback" not in done.stderr
