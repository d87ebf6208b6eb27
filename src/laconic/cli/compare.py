"""``laconic compare``: several methods with the same seeds, data and evaluation, and a page that shows them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from laconic.cli.places import joined
from laconic.cli.runs import PLAN, Where, carry_out, check_board, end, first_here, print_json, resumed
from laconic.cli.train import TaskChoice
from laconic.lab.folder import RunFolder, read_json, write_json
from laconic.lab.method_words import folder_name, words_of
from laconic.lab.report.page import write_page
from laconic.lab.report.read import Run, read_runs
from laconic.lab.report.tables import rich_table
from laconic.lab.session import Ending, Trial
from laconic.lab.spec import Spec
from laconic.lab.training import Training


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Train a task with several methods, one after the other, and write summary.json and report.html.

    Seeds, data and evaluation are equal. To go on with a comparison that was stopped: laconic compare --resume DIR.
    """

    task: TaskChoice
    methods: str = "dense,topk,sdagc"
    """Methods between commas, each with its settings: dense,topk:density=0.01,sdagc:c=20. How a local method sends
    is a method within it, with + for the colons: celgc:every=16:send=topk+density=0.01."""
    where: Where = field(default_factory=Where)
    training: Training = field(default_factory=Training)

    def run(self) -> None:
        """Train with every method, write the files, and print the table."""
        words, where = words_of(self.methods), self.where
        spec = where.spec(self.task, self.training, words[0])
        make = partial(_on_ranks, timeout_seconds=where.timeout_seconds)
        plan = Plan(out=where.folder(f"{self.task.name}-compare"), spec=spec, words=words, make=make)
        plan.carry_out(tensorboard=where.tensorboard, json=where.json)


@dataclass(frozen=True, kw_only=True)
class ResumeCompare:
    """Go on with a comparison: what is finished stays, the rest is trained."""

    resume: Path
    """The comparison's folder."""
    timeout_seconds: float | None = None
    """How long an exchange waits for a rank that does not come; by default half an hour."""
    tensorboard: bool = False
    """Write TensorBoard's files too."""
    json: bool = False
    """Print the summary as JSON, and no progress."""

    def run(self) -> None:
        """Train what is left, write the files, and print the table."""
        check_board(self.tensorboard)
        saved = read_json(self.resume / PLAN)
        if not saved:
            raise FileNotFoundError(f"{self.resume} has no {PLAN}: give a folder that compare has begun.")
        if "simulated" in saved:
            raise ValueError(
                f"{self.resume} is a simulation, which keeps no checkpoints. Run laconic simulate anew."
            )
        spec = Spec.from_dict(saved.get("spec", {}))
        going_on = resumed(spec, workers=None)
        if going_on.workers != spec.workers:
            raise ValueError(
                f"the comparison has {spec.workers} ranks, and {going_on.workers} were started. Start as many: its "
                f"runs would not be alike."
            )
        make = partial(_on_ranks, timeout_seconds=self.timeout_seconds)
        plan = Plan(out=self.resume, spec=spec, words=saved.get("methods", []), make=make)
        plan.carry_out(tensorboard=self.tensorboard, json=self.json)


def _on_ranks(trials: tuple[Trial, ...], *, quiet: bool, timeout_seconds: float | None) -> Ending:
    """Make the runs on ranks of their own."""
    return carry_out(trials, "laconic compare", quiet=quiet, timeout_seconds=timeout_seconds)


_TIMES = (
    "Between ranks of one machine sending costs next to nothing: times show the price of selecting, not the gain "
    "on a slow link."
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared, where it goes, and who makes the runs.

    ``about`` stands in the comparison's files beside the spec; ``times`` says what seconds mean, ``title`` is
    the page's, if it is not the usual one.
    """

    out: Path
    spec: Spec
    words: list[str]
    make: Callable[..., Ending]
    about: Mapping[str, Any] = field(default_factory=dict)
    times: str = _TIMES
    title: str | None = None

    def carry_out(self, *, tensorboard: bool, json: bool) -> None:
        """Make the runs that are not finished, write summary and page, and print what came of it."""
        if first_here():
            write_json(self.out / PLAN, {"methods": self.words, "spec": self.spec.as_dict()} | dict(self.about))
        trials = tuple(trial for trial in self.trials(tensorboard) if not _finished(trial.folder))
        ending = Ending(results=())
        try:
            # Under a launcher the others count on the first, whatever they see in the folder themselves.
            if trials or joined(os.environ) is not None:
                ending = self.make(trials or tuple(self.trials(tensorboard)), quiet=json)
        finally:
            # Whatever happens to one method, what the others came to is there to look at.
            if first_here() and any(self.out.glob("*/spec.json")):
                self.show(stopped=ending.stopped, json=json)
        end(ending)

    def show(self, *, stopped: bool, json: bool) -> None:
        """Write summary and page, and print what came of it."""
        summary, runs = write_summary(self), read_runs([self.out])
        page = write_page(runs, self.out / "report.html", title=self.title)
        if json:
            print_json(summary | {"folder": str(self.out), "report": str(page)})
            return
        _print(runs, self.times)
        if stopped and not self.about:
            print(f"stopped. To go on: laconic compare --resume {self.out}")
        print(f"page: {page.resolve()}")

    def trials(self, tensorboard: bool) -> list[Trial]:
        """Return a run a method, each of which goes on from what its folder has."""
        return [
            Trial(
                spec=replace(self.spec, method=word),
                folder=self.out / folder_name(word),
                resume=True,
                tensorboard=tensorboard,
            )
            for word in self.words
        ]


def write_summary(plan: Plan) -> dict[str, Any]:
    """Write summary.json: what each method came to, of those that have begun to come to something."""
    folders = {word: RunFolder(plan.out / folder_name(word)) for word in plan.words}
    results = {word: folder.result() for word, folder in folders.items()}
    done = {word: result for word, result in results.items() if result is not None}
    first = next((folders[word].spec() for word in done), {})
    summary = {"metric": first.get("metric"), "spec": plan.spec.as_dict(), "methods": done}
    summary |= {"course": first.get("course")} | dict(plan.about)
    write_json(plan.out / "summary.json", summary)
    return summary


def _finished(folder: Path) -> bool:
    result = RunFolder(folder).result()
    return result is not None and bool(result["finished"])


def _print(runs: Sequence[Run], times: str) -> None:
    # In a file there is room for whole names of methods.
    console = Console(highlight=False, soft_wrap=True, markup=False, width=None if sys.stdout.isatty() else 120)
    console.print(rich_table(runs))
    shares = [f"{run.label} {run.result['data_share']:.2%}" for run in runs if "data_share" in run.result]
    console.print(f"waiting for data: {', '.join(shares)} of the training time")
    console.print(f"bytes a rank: handed to the collectives by one rank. {times}")
