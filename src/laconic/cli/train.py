"""``laconic train``: one training, by one method."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import subcommand

from laconic.arguments import check_whole
from laconic.cli.runs import Where, carry_out, check_board, end, first_here, print_json, resumed
from laconic.lab.folder import RunFolder
from laconic.lab.method_words import folder_name, make
from laconic.lab.report.amounts import plain, times
from laconic.lab.session import Trial
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm, Logreg, Speech, Vision
from laconic.lab.training import Training
from laconic.lab.tuning import in_words
from laconic.lab.waits import slow_rank

# What may differ where a run goes on.
_OF_THE_PLACE = ("workers", "device", "data_home")
# A word of the command line for each of the tasks.
TaskChoice = (
    Annotated[Lm, subcommand("lm")]
    | Annotated[Vision, subcommand("vision")]
    | Annotated[Speech, subcommand("speech")]
    | Annotated[Logreg, subcommand("logreg")]
)


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a task with a method: laconic train lm --method topk:density=0.01 --workers 2.

    Or go on with a run from its last checkpoint, to the same bits: laconic train --resume DIR.
    """

    task: TaskChoice
    method: str = "dense"
    """A method with its settings, NAME:SETTING=VALUE:...; laconic methods lists them. How a local method sends is a
    method within it, with + for the colons: celgc:every=16:send=topk+density=0.01."""
    elastic: bool = False
    """Begin the run, or go on with what --out has of it, on as many ranks as there are now: for torchrun, which
    starts the same command again when ranks are lost or come back."""
    where: Where = field(default_factory=Where)
    training: Training = field(default_factory=Training)

    def run(self) -> None:
        """Train, and say what came of it."""
        where, task = self.where, self.task
        spec = where.spec(task, self.training, self.method)
        if self.elastic and where.out is None:
            raise ValueError("elastic wants a folder to go on from. Give --out DIR, the same at every start.")
        if self.elastic and (local := make(self.method).local) is not None and local.delay:
            raise ValueError(
                f"elastic: {self.method} may be saved while an exchange is under way (delay={local.delay}), and no "
                f"other number of ranks can go on from that. Leave delay out."
            )
        if self.elastic and where.out is not None and (where.out / "spec.json").is_file():
            out, resume = where.out, True
            _check_same(spec, _begun(out), out)
        else:
            out, resume = where.folder(f"{task.name}-{folder_name(self.method)}"), False
        trial = Trial(spec=spec, folder=out, resume=resume, tensorboard=where.tensorboard)
        train_one(trial, json=where.json, timeout_seconds=where.timeout_seconds)


def _settings(spec: Spec) -> dict[str, Any]:
    """Return a run's settings by name, those within others too: training.seed."""
    outer = {name: value for name, value in spec.as_dict().items() if name not in _OF_THE_PLACE}
    inner = {name: value for name, value in outer.items() if isinstance(value, dict)}
    return {name: value for name, value in outer.items() if name not in inner} | {
        f"{name}.{key}": value for name, values in inner.items() for key, value in values.items()
    }


def _check_same(now: Spec, begun: Spec, folder: Path) -> None:
    """Refuse to go on with a run that is another one; the place it runs in may differ."""
    wanted, there = _settings(now), _settings(begun)
    unlike = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if unlike:
        said = ", ".join(f"{name} is {there.get(name)}, not {wanted.get(name)}" for name in unlike)
        raise ValueError(
            f"{folder} has another run: {said}. Give another --out, or the settings it was begun with."
        )


@dataclass(frozen=True, kw_only=True)
class ResumeTrain:
    """Go on with a run from its last checkpoint, to the same bits as if it had never stopped.

    On another number of ranks it goes on too, and what is owed is merged or shared out.
    """

    resume: Path
    """The run's folder."""
    workers: int | None = None
    """Ranks to go on with; by default as many as before, and under torchrun or srun those that were started."""
    timeout_seconds: float | None = None
    """How long an exchange waits for a rank that does not come; by default half an hour."""
    tensorboard: bool = False
    """Write TensorBoard's files too."""
    json: bool = False
    """Print the result as JSON, and no progress."""

    def run(self) -> None:
        """Train what is left, and say what came of it."""
        check_board(self.tensorboard)
        if self.workers is not None:
            check_whole("workers", self.workers, 1, "Write --workers 2.")
        spec = resumed(_begun(self.resume), workers=self.workers)
        trial = Trial(spec=spec, folder=self.resume, resume=True, tensorboard=self.tensorboard)
        train_one(trial, json=self.json, timeout_seconds=self.timeout_seconds)


def _begun(folder: Path) -> Spec:
    """Return the spec of a run that was begun in a folder."""
    saved = RunFolder(folder).spec()
    if "simulated" in saved:
        raise ValueError(f"{folder} is of a simulation, which keeps no checkpoints. Run laconic simulate anew.")
    return Spec.from_dict(saved)


def train_one(trial: Trial, *, json: bool, timeout_seconds: float | None) -> None:
    """Make one run, and say what came of it."""
    ending = carry_out((trial,), "laconic train", quiet=json, timeout_seconds=timeout_seconds)
    if first_here():
        for result in ending.results:
            if json:
                print_json(result | {"folder": str(trial.folder)})
            else:
                _print(result, trial.folder)
    end(ending)


def _print(result: dict[str, Any], folder: Path) -> None:
    """Say what came of a run; what is no number, of a run that diverged, is a dash."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    scores = ", ".join(f"{split} {plain(value)}" for split, value in result["scores"].items())
    ending = "done" if result["finished"] else f"stopped after step {result['steps']}"
    console.print(f"{result['label']} {ending}. {result['metric']}: {scores or 'not evaluated'}")
    syncs = f" in {result['syncs']:,} syncs" if result["syncs"] < result["steps"] else ""
    console.print(
        f"{result['wire_bytes_sent_per_rank']:,} bytes sent a rank{syncs}, {times(result['ratio'])} fewer than "
        f"dense; {result['seconds']:.1f} s of training, {result['data_share']:.2%} of it waiting for data"
    )
    if "tuning" in result:
        console.print(f"at the end {in_words(result['tuning'])}")
    if (slow := slow_rank(result)) is not None:
        console.print(f"a rank is slow: {slow}")
    more = f"laconic report {folder}" if result["finished"] else f"laconic train --resume {folder}"
    console.print(f"{folder}: spec.json, environment.json, steps.jsonl, checkpoints, result.json. Next: {more}")
