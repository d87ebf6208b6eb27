"""Trainings of the laboratory's language model, many rows and seeds of them: run, kept in one file, gone on with.

Every run is real ranks over gloo in processes of their own; bytes are those handed to the collectives by one rank.
No time is measured here.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import laconic
from laconic.lab.folder import RunFolder
from laconic.lab.launch import run_ranks
from laconic.lab.loop import Loop
from laconic.lab.session import place_of, prepare
from laconic.lab.show import Show
from laconic.lab.signals import noted_wishes
from laconic.lab.spec import Spec
from laconic.lab.talk import Talk
from laconic.lab.tasks import Lm
from laconic.lab.training import Course, Training


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a row is trained, with what, on what."""

    training: Training
    method: laconic.Method
    task: Lm = field(default_factory=Lm)


Rows = Mapping[tuple[str, str], Row]


@dataclass(frozen=True, kw_only=True)
class ManyRuns:
    """Train every row with every seed; what is done is kept, and a second call goes on where a first broke off."""

    out: Path = Path("results.json")
    """Where the results go; rewritten after every run."""
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    seeds: int = 3
    """Seeds 0, 1, ..."""
    ranks: int = 4
    """Processes a run."""
    jobs: int = 1
    """Runs at a time; a run uses as many cores as it has ranks."""
    within_seconds: int = 86400
    """Begin no run after so many seconds."""
    data_home: Path = Path()
    """Where data sets lie, for rows that need one."""
    one: str | None = None
    """Run this one (group/row/seed) and print its result. The benchmark calls itself this way."""

    def one_row(self, rows: Rows) -> None:
        """Run the one that was named, and write down its result."""
        group, name, seed = (self.one or "").split("/")
        row = rows[group, name]
        training = replace(row.training, seed=int(seed))
        done = run_ranks(self.ranks, _work, training, row.method, row.task, str(self.data_home))
        about = {"group": group, "row": name, "seed": int(seed), "method": repr(row.method)}
        about |= {"torch": torch.__version__, "cores": os.cpu_count()}
        self.out.write_text(json.dumps(about | {"training": asdict(training)} | done))

    def all_rows(self, rows: Rows, script: Path) -> dict[str, Any]:
        """Run all that are not yet in the file; return it."""
        console = Console()
        result: dict[str, Any] = {
            "command": f"python benchmarks/{script.name} {' '.join(sys.argv[1:])}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "ranks": self.ranks,
            "runs": [],
        }
        names = [f"{group}/{row}/{seed}" for seed in range(self.seeds) for group, row in rows]
        if self.out.exists():
            before = json.loads(self.out.read_text())
            if before["ranks"] != self.ranks:
                raise SystemExit(f"{self.out} has runs of {before['ranks']} ranks, not {self.ranks}: name another.")
            result["runs"] = before["runs"]
            done = {f"{r['group']}/{r['row']}/{r['seed']}" for r in result["runs"]}
            names = [name for name in names if name not in done]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with ThreadPoolExecutor(self.jobs) as pool, tempfile.TemporaryDirectory() as scratch:
            waiting = [
                pool.submit(self._apart, name, script, Path(scratch) / f"{i}.json", began)
                for i, name in enumerate(names)
            ]
            for future in as_completed(waiting):
                one = future.result()
                if one is None:
                    continue
                result["runs"].append(one)
                self.out.write_text(json.dumps(result, indent=1))
                console.print(
                    f"{len(result['runs'])} done, {one['group']}/{one['row']} seed {one['seed']}: "
                    f"valid {one['valid_loss']:.4f}, {one['ratio']:.1f}x"
                )
        return result

    def _apart(self, name: str, script: Path, out: Path, began: float) -> dict[str, Any] | None:
        """Run one in a process of its own: the launcher wants the main thread."""
        if time.monotonic() - began > self.within_seconds:
            return None
        command = [sys.executable, str(script), "--one", name, "--ranks", str(self.ranks), "--out", str(out)]
        command += ["--data-home", str(self.data_home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
            return None
        read: dict[str, Any] = json.loads(out.read_text())
        return read


def _work(training: Training, method: laconic.Method, task: Lm, data_home: str) -> dict[str, Any]:
    talk = Talk()
    spec = Spec(
        task=task,
        training=training,
        method=method.name,
        workers=talk.ranks,
        device="cpu",
        data_home=data_home,
        checkpoint_every=None,
    )
    place = place_of(spec, talk)
    work = prepare(spec, place)
    with tempfile.TemporaryDirectory() as scratch, Show(hidden=True, boards=False) as show, noted_wishes() as wish:
        course, folder = Course.of(spec.settled, work.steps_per_epoch), RunFolder(Path(talk.of_first(scratch)))
        watcher = show.begin(method.name, course.steps, work.metric, folder.path, False)
        outcome = Loop(work, course, method, place, talk, folder).run(watcher, wish, checkpoint_every=None)
        talk.wait()
    stats = outcome.stats
    return {
        "valid_loss": outcome.last["eval_loss"],
        "train_loss": outcome.last["loss"],
        "wire_bytes": stats.wire_bytes,
        "dense_bytes": stats.dense_bytes,
        "ratio": stats.ratio,
        "steps": stats.steps,
        "syncs": stats.syncs,
        "clipped_share": outcome.clipped_share,
        "skipped_steps": stats.skipped_steps,
        "layers": [asdict(layer) for layer in stats.layers],
    }
