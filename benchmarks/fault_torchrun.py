"""A training under torchrun that loses ranks: torchrun starts them again, and the run goes on by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from fault_bench import SAVE_EVERY, STEPS, FaultError, Scenario

from laconic.lab.folder import RunFolder

_LIMIT_SECONDS = 120.0
_RESTARTS = 2


def killed_under_torchrun(story: Scenario) -> str:
    """A rank is killed, once or twice: all of them start anew and come to the same bits."""
    kills = story.chance.randint(1, _RESTARTS)
    after = sorted(story.chance.sample(range(SAVE_EVERY, STEPS - SAVE_EVERY, SAVE_EVERY), kills))
    story.what = f"rank {story.victim} of {story.ranks} is killed after the checkpoints of steps {after}"
    straight, spec = story.straight[0], story.job().trial.spec
    training, task = spec.training, ["--hidden", "8", "--length", "24"]
    settings = ["steps", "batch", "rate", "momentum", "clip", "log_every", "eval_every", "seed"]
    given = [word for name in settings for word in (f"--{name.replace('_', '-')}", str(getattr(training, name)))]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(story.ranks)]
    command += [
        "--max-restarts",
        str(_RESTARTS),
        "-m",
        "laconic",
        "train",
        "lm",
        *task,
        *given,
        "--method",
        story.word,
    ]
    command += ["--checkpoint-every", str(SAVE_EVERY), "--out", str(story.folder), "--elastic", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    log = story.bench.scratch / "torchrun.log"
    with log.open("w") as said:
        started = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
        )
    try:
        for step in after:
            _await_step(story.folder, step, started)
            os.kill(_ranks(started.pid)[story.victim], signal.SIGKILL)
        _watch(story.folder, after[-1], started)
        out, _ = started.communicate(timeout=_LIMIT_SECONDS)
    except (IndexError, ProcessLookupError):
        raise FaultError("NOT STRUCK: the run had ended, or its ranks were being started anew") from None
    except subprocess.TimeoutExpired:
        raise FaultError(f"HUNG: torchrun did not end: {log.read_text()[-500:]}") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    if started.returncode:
        raise FaultError(f"LOST: torchrun ended with {started.returncode}: {log.read_text()[-800:]}")
    if json.loads(out)["weights_sha256"] != straight["weights_sha256"]:
        raise FaultError("LOST: the run came to other bits")
    return "restarted"


def _await_step(folder: Path, step: int, started: subprocess.Popen[str]) -> None:
    last = time.monotonic() + _LIMIT_SECONDS
    while RunFolder(folder).latest() < step and started.poll() is None and time.monotonic() < last:
        time.sleep(0.005)


def _watch(folder: Path, step: int, started: subprocess.Popen[str]) -> None:
    """Raise if a run that is started anew goes back behind a checkpoint that it had."""
    last = time.monotonic() + _LIMIT_SECONDS
    while started.poll() is None and time.monotonic() < last:
        if RunFolder(folder).latest() < step:
            raise FaultError(f"LOST: the checkpoint of step {step} is gone")
        time.sleep(0.02)


def _ranks(launcher: int) -> list[int]:
    """Return the processes of the ranks, in their order."""
    children = [int(word) for word in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
    found = {}
    for child in children:
        with suppress(OSError):
            words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found |= {int(word.split(b"=")[1]): child for word in words if word.startswith(b"RANK=")}
    return [found[rank] for rank in sorted(found)]
