"""``laconic train`` on two real ranks: every task, started alone and by torchrun, with the same bits."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tyro

from commands import ALONE, TORCHRUN, laconic, laconic_here
from laconic.cli.commands import COMMANDS, MARKERS
from laconic.lab.folder import read_lines
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.spec import Spec
from pool import run_alone

SMALL = {
    "lm": [
        "--hidden",
        "16",
        "--length",
        "12",
        "--batch",
        "2",
        "--steps",
        "30",
        "--rate",
        "4",
        "--eval-every",
        "15",
    ],
    "vision": ["--width", "4", "--steps", "12", "--train-examples", "200", "--test-examples", "40"],
    "speech": ["--hidden", "16", "--steps", "8", "--batch", "4"],
    "logreg": ["--steps", "40"],
}
METHODS = {"lm": "sdagc", "vision": "topk:density=0.05", "speech": "dgc:density=0.05", "logreg": "dense"}
KEYS = {
    "metric",
    "best",
    "final",
    "wire_bytes_sent_per_rank",
    "dense_bytes_per_rank",
    "ratio",
    "steps",
    "syncs",
    "seconds",
    "seed",
}


def _result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def _train(group, task: str, options: list[str], out: Path) -> Ending:
    words = ["train", task, *options, "--out", str(out), "--device", "cpu"]
    command = tyro.cli(COMMANDS, args=words, config=MARKERS)
    spec = command.where.spec(command.task, command.training, command.method)
    return run_trials((Trial(spec=spec, folder=out),), {}, True)


def _options(task: str) -> list[str]:
    return [*SMALL[task], "--method", METHODS[task], "--log-every", "4"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str], Path]:
    """Return the folder of a task's run on two ranks, which is made once."""

    @cache
    def folder_of(task: str) -> Path:
        out = tmp_path_factory.mktemp(task)
        ranks = run_alone(2, _train, task, _options(task), out, within_seconds=50)
        assert [rank.error for rank in ranks] == ["", ""], ranks
        reports = [rank.value for rank in ranks]
        assert [report.error for report in reports] == [None, None]
        assert reports[0].results[0]["weights_sha256"] == reports[1].results[0]["weights_sha256"]
        return out

    return folder_of


@pytest.mark.parametrize("task", SMALL)
def test_a_task_trains_on_two_ranks(task, trained):
    out = trained(task)
    result, lines = _result(out), read_lines(out / "steps.jsonl")
    assert result.keys() >= KEYS
    assert result["finished"]
    assert math.isfinite(result["final"])
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["wire_bytes"] == result["wire_bytes_sent_per_rank"] > 0
    assert 0 <= result["data_share"] < 1

    saved = json.loads((out / "spec.json").read_text())
    assert (saved["workers"], saved["course"]["steps"]) == (2, result["steps"])
    assert Spec.from_dict(saved).as_dict().items() <= saved.items()
    # What may be open: the rows decide the penalty, and the others mean that there is no such thing.
    left_open = {"l2", "held_out", "train_examples", "test_examples"}
    assert {key for key, value in saved["task"].items() if value is None} <= left_open


def test_under_torchrun_a_task_gives_the_same_bits(trained, tmp_path):
    under = laconic("train", "lm", *_options("lm"), "--out", tmp_path / "torchrun", "--json", by=TORCHRUN)
    assert under.returncode == 0, under.stderr
    there = _result(tmp_path / "torchrun")
    assert there["weights_sha256"] == _result(trained("lm"))["weights_sha256"]
    assert json.loads(under.stdout) == there | {"folder": str(tmp_path / "torchrun")}
    assert json.loads((tmp_path / "torchrun" / "environment.json").read_text())["backend"] == "gloo"
    assert sorted(p.name for p in (tmp_path / "torchrun" / "checkpoints").glob("step-*/*"))


def test_ctrl_c_keeps_what_was_done_and_a_resumed_run_ends_with_the_same_bits(tmp_path):
    options = [*SMALL["lm"], "--steps", "250", "--method", "sdagc", "--eval-every", "125"]
    straight = run_alone(2, _train, "lm", options, tmp_path / "straight", within_seconds=50)
    assert [rank.message for rank in straight] == ["", ""]

    out = tmp_path / "stopped"
    command = [*ALONE, "train", "lm", *options, "--out", str(out)]
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while len(read_lines(out / "steps.jsonl")) < 3 and started.poll() is None:
        time.sleep(0.02)
    # As a terminal does it: to all processes at once.
    os.killpg(started.pid, signal.SIGINT)
    said, complained = started.communicate(timeout=60)
    assert started.returncode == 130, complained
    assert f"laconic train --resume {out}" in said
    assert "waiting for data" in said
    stopped = _result(out)
    assert not stopped["finished"]
    assert 30 <= stopped["steps"] < 250
    last = time.monotonic() + 10
    while _left_of_session(started.pid) and time.monotonic() < last:
        time.sleep(0.05)
    assert _left_of_session(started.pid) == []

    laconic_here("train", "--resume", out, "--tensorboard", "--json")
    assert list((out / "tensorboard").iterdir())
    result, whole = _result(out), _result(tmp_path / "straight")
    same = ("weights_sha256", "best", "final", "wire_bytes_sent_per_rank", "steps", "clipped_share", "scores")
    assert {key: result[key] for key in same} == {key: whole[key] for key in same}
    steps = [line["step"] for line in read_lines(out / "steps.jsonl")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 250


def _left_of_session(session: int) -> list[str]:
    """Processes that are alive in a session, as Linux lists them: pid (name) state parent group session ..."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, belongs_to = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(belongs_to) == session and state != "Z":
            found.append(path.parent.name)
    return found


def test_ranks_that_slurm_started_join(tmp_path):
    port = str(20000 + os.getpid() % 20000)
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1", "MASTER_PORT": port}
    command = [*ALONE, "train", "logreg", "--steps", "3", "--json", "--out", str(tmp_path / "run")]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | step | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_TASKS_PER_NODE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert json.loads(outputs[0][0])["steps"] == 3
    assert outputs[1][0] == "", "the first rank speaks"
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["ranks"] == 2


def test_what_only_the_ranks_can_see_wrong_reaches_the_user_in_a_line(tmp_path):
    done = laconic("train", "lm", "--data", "ptb", "--data-home", tmp_path, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert re.search(r"^laconic: ptb is not in .*laconic data get ptb", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
