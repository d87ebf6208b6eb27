"""The compressor that docs/extend.md writes sits the exam of every compressor, as the page says to run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extend.md").read_text()


def _block(language: str, begins: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return next(block for block in found if begins in block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of one who has a checkout and a compressor of their own."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "near_largest.py").write_text(_block("python", "class NearLargest"))
    (folder / "train.py").write_text(_block("py", "laconic.attach("))
    (folder / "test_near_largest.py").write_text(_block("py", "registry.COMPRESSORS"))
    return folder


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    path = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=os.environ | alone | path,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def _sit_the_exam(folder: Path, *only: str) -> subprocess.CompletedProcess[str]:
    told = _block("console", "pytest -c").replace("CHECKOUT", str(ROOT)).split()
    return _run(folder, "-m", *told[told.index("pytest") :], "-q", "-x", "-p", "no:cacheprovider", *only)


def test_the_method_of_the_page_trains(folder):
    done = _run(folder, "-W", "error", "train.py")
    assert done.returncode == 0, done.stderr
    assert re.match(r"0\.\d+ sent, threshold \d", done.stdout)


def test_the_compressor_of_the_page_passes_the_exam(folder):
    done = _sit_the_exam(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout).group(1))
    assert passed > 40, "the exam has that many questions for three instances"


def test_the_exam_notices_a_compressor_that_loses_something(folder):
    own = folder / "near_largest.py"
    good = own.read_text()
    own.write_text(good.replace("return take_beyond_(", "x[:1].zero_()\n        return take_beyond_("))
    try:
        done = _sit_the_exam(folder, "-k", "sent_and_left")
    finally:
        own.write_text(good)
    assert done.returncode == 1
    assert "test_sent_and_left_are_what_was_there" in done.stdout
