"""A training under torchrun that loses a rank: torchrun starts the command again, and the run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import laconic
from laconic.lab.folder import RunFolder, read_lines

OPTIONS = ["lm", "--hidden", "16", "--length", "12", "--batch", "2", "--rate", "4", "--method", "spartan:every=4"]
OPTIONS += ["--steps", "400", "--eval-every", "200", "--checkpoint-every", "25", "--elastic", "--json"]


def _launched(out: Path, ranks: int) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    torchrun += ["--max-restarts", "2", "-m", "laconic", "train", *OPTIONS, "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(torchrun, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found if b"laconic" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _wait_for_step(out: Path, step: int, started: subprocess.Popen[str]) -> None:
    last = time.monotonic() + 60
    while RunFolder(out).latest() < step and started.poll() is None and time.monotonic() < last:
        time.sleep(0.02)
    assert RunFolder(out).latest() >= step


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a run on three ranks that lost one, and then all of them, and went on on two."""
    out = tmp_path_factory.mktemp("elastic") / "run"
    started = _launched(out, 3)
    _wait_for_step(out, 25, started)
    os.kill(_children(started.pid)[1], signal.SIGKILL)
    _wait_for_step(out, RunFolder(out).latest() + 50, started)
    started.kill()
    # Ranks outlive a launcher that was killed: they have to be ended like those of a host that was lost.
    for child in [
        int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if str(out).encode() in _read(p)
    ]:
        os.kill(child, signal.SIGKILL)
    started.communicate(timeout=30)
    again = _launched(out, 2)
    said, complained = again.communicate(timeout=90)
    assert again.returncode == 0, complained
    assert json.loads(said)["finished"]
    return out


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_run_ends_as_if_nothing_had_happened_on_the_ranks_that_are_left(run):
    lines = read_lines(run / "steps.jsonl")
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps))
    assert steps[-1] == 400
    assert RunFolder(run).spec()["workers"] == 2
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_another_run_is_not_gone_on_with(run, tmp_path):
    other = [*OPTIONS[:-2], "--seed", "3", "--elastic"]
    said = laconic("train", *other, "--out", run, "--workers", "2")
    assert said.returncode == 2
    assert f"{run} has another run: training.seed is 0, not 3. Give another --out" in said.stderr
    alone = laconic("train", *OPTIONS)
    assert alone.returncode == 2
    assert "elastic wants a folder to go on from. Give --out DIR" in alone.stderr
