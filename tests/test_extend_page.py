"""The compressor that docs/extend.md writes trains, and sits the exam of every compressor as the page says."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extend.md").read_text()


def _block(language: str, holds: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return next(block for block in found if holds in block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of one who has a checkout and a compressor of their own."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "near_largest.py").write_text(_block("python", "class NearLargest"))
    (folder / "train.py").write_text(_block("py", "laconic.attach("))
    (folder / "test_near_largest.py").write_text(_block("py", "registry.COMPRESSORS"))
    return folder


def test_the_method_of_the_page_trains(folder, monkeypatch, capsys):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(folder)
    runpy.run_path(str(folder / "train.py"))
    assert re.match(r"0\.\d+ sent, threshold \d", capsys.readouterr().out)


def test_the_compressor_of_the_page_passes_the_exam(folder):
    told = _block("console", "pytest -c").replace("CHECKOUT", str(ROOT)).split()
    command = [sys.executable, "-m", *told[told.index("pytest") :], "-v", "-p", "no:cacheprovider"]
    path = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Each law, each instance: nothing was asked of others, and the questions are those of the library's own.
    assert "TopK(" not in done.stdout
    for instance in ("NearLargest(share=0.9, whole_below=0)", "NearLargest(share=0.3, whole_below=4)"):
        assert f"to_the_bit[{instance}-torch.float64] PASSED" in done.stdout
