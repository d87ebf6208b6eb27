"""``make demo``, short: two ranks through torch's launcher, a table at the end, and errors that reach the user."""

from __future__ import annotations

import re
import subprocess
import sys


def _demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laconic.lab.demo", *options],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_demo_trains_every_method_and_prints_the_table():
    done = _demo("--ranks", "2", "--steps", "12", "--batch", "2", "--length", "16")
    assert done.returncode == 0, done.stderr
    rows = {
        name: [cell.strip() for cell in cells.split("│")]
        for name, cells in re.findall(r"│ (\w+) +│(.*)│", done.stdout)
    }
    assert list(rows) == ["dense", "topk", "sdagc"]
    assert float(rows["dense"][3].rstrip("x")) == 1.0
    sent = {name: int(cells[2].replace(",", "")) for name, cells in rows.items()}
    for name in ("topk", "sdagc"):
        assert float(rows[name][3].rstrip("x")) > 20
        assert 0 < sent[name] < sent["dense"]


def test_a_wrong_setting_is_refused_before_ranks_start():
    done = _demo("--steps", "0")
    assert done.returncode != 0
    assert "steps must be 1 or more, got 0" in done.stdout + done.stderr
