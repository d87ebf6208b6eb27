"""What ``train`` and ``compare`` share: options of where and how, and the care for a run's folder."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from laconic.arguments import check_whole
from laconic.cli.places import joined, run_everywhere, settle
from laconic.lab.data.home import default_home
from laconic.lab.folder import read_json
from laconic.lab.launch import Setting
from laconic.lab.machine import machine
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.show import board_in
from laconic.lab.spec import Device, Spec
from laconic.lab.tasks import Task
from laconic.lab.training import Training

# What a comparison's folder has, and a run's has not.
PLAN = "compare.json"


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where runs go, and on what."""

    workers: int = 2
    """Ranks to start on this machine; under torchrun or srun those that were started count."""
    out: Path | None = None
    """Folder for what comes of it; by default a new one in runs/."""
    device: Device = "auto"
    """cpu or cuda; auto takes a GPU where there is one."""
    data_home: Path = field(default_factory=default_home)
    """Folder of the data sets that laconic data keeps (or LACONIC_DATA)."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; by default at every evaluation. The last two are kept."""
    timeout_seconds: float | None = None
    """How long an exchange waits for a rank that does not come, before the run ends with an error that names it; by
    default half an hour."""
    tensorboard: bool = False
    """Write TensorBoard's files too."""
    json: bool = False
    """Print the result as JSON, and no progress."""

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1, "Write --workers 2.")
        Setting(timeout_seconds=self.timeout_seconds)
        check_board(self.tensorboard)

    def spec(self, task: Task, training: Training, method: str) -> Spec:
        """Return the spec of a run here."""
        place = joined(os.environ)
        return Spec(
            task=task,
            training=training,
            method=method,
            workers=self.workers if place is None else place.ranks,
            device=settle(self.device),
            data_home=str(self.data_home.resolve()),
            checkpoint_every=self.checkpoint_every,
        )

    def folder(self, name: str) -> Path:
        """Return the folder to write to; one that has something in it already is refused."""
        out = self.out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        if first_here() and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ValueError(f"{out} has something in it. {_remedy(out)}")
        return out


def _remedy(out: Path) -> str:
    """Say what to do about a folder that has something in it: simulations and other things are not gone on with."""
    begun = {word: read_json(out / name) for word, name in (("compare", PLAN), ("train", "spec.json"))}
    for word, saved in begun.items():
        if saved and "simulated" not in saved:
            return f"Give another --out, or go on with it: laconic {word} --resume {out}."
    return "Give another --out."


def resumed(spec: Spec, *, workers: int | None) -> Spec:
    """Return a saved spec if this place can go on with it: with a GPU if it had one, on as many ranks as there are.

    Under a launcher those that were started count; elsewhere ``workers``, or else as many as the run had.
    """
    place = joined(os.environ)
    if place is not None and workers is not None and place.ranks != workers:
        raise ValueError(f"workers is {workers}, and {place.ranks} ranks were started. Leave --workers out.")
    settle(spec.device)
    return replace(spec, workers=place.ranks if place is not None else workers or spec.workers)


def check_board(wanted: bool) -> None:
    """Refuse TensorBoard, if it is wanted and not installed, before anything runs."""
    if wanted:
        board_in(None)


def first_here() -> bool:
    """Whether this process is the one that speaks: it was started alone, or is rank 0."""
    place = joined(os.environ)
    return place is None or place.rank == 0


def carry_out(
    trials: tuple[Trial, ...], command: str, *, quiet: bool, timeout_seconds: float | None = None
) -> Ending:
    """Make the runs on every rank."""
    spec, about = trials[0].spec, machine(command, {})
    about.pop("options")
    setting = Setting(device=spec.device, timeout_seconds=timeout_seconds)
    return run_everywhere(spec.workers, setting, run_trials, trials, about, quiet)


def print_json(data: dict[str, Any]) -> None:
    """Print data for programs."""
    print(json.dumps(data, indent=1))


def fail(message: str, *, code: int = 2) -> NoReturn:
    """End the command with a message."""
    place = joined(os.environ)
    who = "laconic" if place is None or place.rank == 0 else f"laconic, rank {place.rank}"
    print(f"{who}: {message}", file=sys.stderr)
    raise SystemExit(code)


def end(ending: Ending) -> None:
    """End the command after its runs: with the error, if there was one, or as one that was stopped."""
    if ending.error is not None and first_here():
        fail(ending.error)
    if ending.error is not None or ending.stopped:
        raise SystemExit(130 if ending.stopped else 2)
