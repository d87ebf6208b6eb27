"""``laconic --version``: what is said is what is imported, one thing a line, with nothing optional installed."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import numba
import pytest
import torch
import torch.distributed as dist

from laconic import kernels
from laconic.cli import main
from laconic.cli.versions import versions


def _said(capsys, *words: str) -> str:
    main(words)
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_versions_are_those_of_what_is_imported(capsys):
    lines = _said(capsys, "--version").splitlines()
    assert lines[:2] == [f"laconic {version('laconic')}", f"python {platform.python_version()}"]
    assert f"torch {torch.__version__}" in lines
    assert f"numba {numba.__version__}" in lines
    assert ("gloo available" in lines) is dist.is_gloo_available()
    assert ("nccl not available" in lines) is not dist.is_nccl_available()
    assert f"kernels on cpu: {kernels.in_use('cpu')}" in lines
    assert len({line.rsplit(" ", 1)[0] for line in lines}) == len(lines)


def test_programs_get_the_same(capsys):
    said = json.loads(_said(capsys, "--version", "--json"))
    assert said == versions()
    assert said["kernels"]["cpu"] == kernels.in_use("cpu")


def test_what_is_not_there_is_said(capsys, monkeypatch):
    def lookup(package: str) -> str:
        if package in ("triton", "laconic"):
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr("laconic.cli.versions.version", lookup)
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    lines = _said(capsys, "--version").splitlines()
    assert {"laconic not installed", "triton not installed", "gloo not available", "nccl not available"} <= {*lines}
    monkeypatch.setattr(dist, "is_available", lambda: False)
    assert versions()["backends"] == {"gloo": False, "nccl": False}


def test_gpus_and_nccl_are_named(capsys, monkeypatch):
    """No GPU is there to ask: what torch would answer is made up, what is made of it is not."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", ["Large", "Large", "Small"].__getitem__)
    monkeypatch.setattr(kernels, "in_use", lambda kind: f"those for {kind}")
    lines = _said(capsys, "--version").splitlines()
    assert "nccl 2.27.5" in lines
    assert lines[-3:] == [
        "kernels on cpu: those for cpu",
        "kernels on cuda (Large): those for cuda",
        "kernels on cuda (Small): those for cuda",
    ]


@pytest.mark.parametrize("words", [["train", "--version"], ["--version", "train"], ["--version", "--jason"]])
def test_among_other_words_it_is_refused(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "--version" in capsys.readouterr().err


def test_it_answers_without_the_extra_and_imports_no_laboratory():
    code = (
        "import sys; sys.modules |= dict.fromkeys(['tyro', 'rich', 'plotly', 'sklearn', 'laconic.lab'])\n"
        "sys.argv = ['laconic', '--version']\n"
        "import runpy; runpy.run_module('laconic', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("laconic ")
    assert done.stderr == ""
