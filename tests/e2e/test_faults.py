"""The fault lab: real ranks that are killed, real files and messages that are damaged, a few of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LAB = Path(__file__).parents[2] / "benchmarks" / "faults.py"


def _lab(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, LAB, *words], env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_what_happens_to_a_few_runs_ends_well_and_is_counted():
    done = _lab(
        "--only", "kill", "damaged checkpoint", "damaged on the way", "--scenarios", "3", "--first-seed", "900"
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    assert "3 scenarios" in done.stdout
    assert "none did not end well" in done.stdout


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are():
    done = _lab("--only", "earthquake")
    assert done.returncode == 1
    assert "no kind 'earthquake'. There are: kill, kill at any time" in done.stderr
