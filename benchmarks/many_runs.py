"""Trainings of the laboratory's tasks, many rows and seeds of them: run, kept in one file, gone on with.

Every run is real ranks over gloo in processes of their own, or virtual ones that share a process (virtual_runs.py);
bytes are those handed to the collectives by one rank. No time is measured here.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from run_record import Lines, Ran
from runs_apart import ONE_THREAD, Errand, carried_out, shared_gpu
from virtual_runs import train_here

import laconic
from laconic.lab.data.home import default_home
from laconic.lab.folder import RunFolder
from laconic.lab.launch import run_ranks
from laconic.lab.loop import Loop
from laconic.lab.session import place_of, prepare
from laconic.lab.signals import noted_wishes
from laconic.lab.spec import Spec
from laconic.lab.talk import Talk
from laconic.lab.tasks import Lm, Task
from laconic.lab.training import Course, Training


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a row is trained, with what, on what.

    ``ranks`` None is the options' number; rows of more ``weight`` take longer, and are begun first.
    """

    training: Training
    method: laconic.Method
    task: Task = field(default_factory=Lm)
    ranks: int | None = None
    weight: float = 1.0


Rows = Mapping[tuple[str, str], Row]


@dataclass(frozen=True, kw_only=True)
class ManyRuns:
    """Train every row with every seed; what is done is kept, and a second call goes on where a first broke off."""

    out: Path = Path("results.json")
    """Where the results go; rewritten after every run."""
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    seeds: int = 3
    """How many seeds."""
    first_seed: int = 0
    """The first of them: others than those by which settings were looked for."""
    ranks: int = 4
    """Ranks a run, where the row does not say."""
    virtual: bool = False
    """Have all ranks of a run in one process, which uses one core; otherwise each has a process of its own."""
    device: Literal["cpu", "cuda"] = "cpu"
    """What runs compute on; cuda wants virtual ranks."""
    jobs: int = 1
    """Runs at a time; a run of ranks that are not virtual uses as many cores as it has ranks."""
    within_seconds: int = 86400
    """Begin no run after so many seconds, and end those that are under way: they are begun anew another time."""
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Run only what has this in its name, group/row/seed. May be given several times."""
    data_home: Path = field(default_factory=default_home)
    """Where data sets lie, for rows that need one."""
    one: str | None = None
    """Run this one (group/row/seed) and write down its result. The benchmark calls itself this way."""

    def __post_init__(self) -> None:
        if self.device == "cuda" and not self.virtual:
            raise ValueError("device cuda wants virtual ranks, got real ones. Write --virtual.")

    def one_row(self, rows: Rows) -> None:
        """Run the one that was named, and write down its result."""
        group, name, seed = _parts_of(self.one or "")
        row = rows[group, name]
        spec = self._spec(row, int(seed))
        if self.virtual:
            with noted_wishes() as wish:
                done = train_here(spec, row.method, wish)
        else:
            done = run_ranks(spec.workers, _work, spec, row.method)
        about = {"group": group, "row": name, "seed": int(seed), "method": repr(row.method)}
        about |= {"torch": torch.__version__, "cores": os.cpu_count(), "virtual": self.virtual}
        settled = spec.as_dict()
        _write(self.out, json.dumps(about | {key: settled[key] for key in ("task", "training")} | done))

    def _spec(self, row: Row, seed: int) -> Spec:
        return Spec(
            task=row.task,
            training=replace(row.training, seed=seed),
            method=row.method.name,
            workers=row.ranks or self.ranks,
            device=self.device,
            data_home=str(self.data_home),
            checkpoint_every=None,
        )

    def _as_given(self) -> str:
        """Return the arguments as they were given; where data lies on this machine is nobody's business."""
        home = str(self.data_home)
        return shlex.join("HOME" if word == home else word for word in sys.argv[1:])

    def all_rows(self, rows: Rows, script: Path) -> dict[str, Any]:
        """Run all that are not yet in the file; return it."""
        result: dict[str, Any] = {
            "command": f"python benchmarks/{script.name} {self._as_given()}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "ranks": self.ranks,
            "runs": [],
        }
        if self.out.exists():
            before = json.loads(self.out.read_text())
            if before["ranks"] != self.ranks:
                raise SystemExit(f"{self.out} has runs of {before['ranks']} ranks, not {self.ranks}: name another.")
            result["runs"] = before["runs"]
        names = self.still_to_run(rows, result["runs"])
        self.out.parent.mkdir(parents=True, exist_ok=True)
        gpu = shared_gpu() if self.device == "cuda" and names else nullcontext()
        with tempfile.TemporaryDirectory() as scratch, noted_wishes() as wish, gpu:
            errands = [self._errand(name, script, Path(scratch) / str(i)) for i, name in enumerate(names)]
            seconds = float(self.within_seconds)
            for done in carried_out(errands, jobs=self.jobs, wish=wish, seconds=seconds):
                one = json.loads(done.out.read_text())
                # What was stopped before gives way to what came now.
                result["runs"] = [run for run in result["runs"] if _name_of(run) != _name_of(one)] + [one]
                _write(self.out, _in_lines(result))
                _tell(result["runs"], len(names))
        return result

    def still_to_run(self, rows: Rows, runs: list[dict[str, Any]]) -> list[str]:
        """Return the names of what is chosen and not yet done, those that take longest first."""
        # A row that has come to be another one is not done.
        methods = {f"{group}/{name}": repr(row.method) for (group, name), row in rows.items()}
        whole = [run for run in runs if not run.get("stopped")]
        done = {_name_of(run) for run in whole if methods.get(f"{run['group']}/{run['row']}") == run["method"]}
        weights = {f"{group}/{name}": row.weight for (group, name), row in rows.items()}
        names = [f"{row}/{seed}" for seed in self._seeds for row in weights]
        chosen = [name for name in names if not self.only or any(part in name for part in self.only)]
        left = [name for name in chosen if name not in done]
        return sorted(left, key=lambda name: -weights[name.rpartition("/")[0]])

    @property
    def _seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def _errand(self, name: str, script: Path, scratch: Path) -> Errand:
        out = scratch.with_suffix(".json")
        command = [sys.executable, str(script), "--one", name, "--ranks", str(self.ranks), "--out", str(out)]
        command += ["--data-home", str(self.data_home), "--device", self.device]
        command.append("--virtual" if self.virtual else "--no-virtual")
        log, environment = scratch.with_suffix(".log"), ONE_THREAD if self.virtual else {}
        return Errand(name=name, command=command, out=out, log=log, environment=environment)


def run_or_print(options: ManyRuns, rows: Rows, script: Path, printed: Callable[[Path], str]) -> None:
    """Do what the options ask of a script of rows: print a saved table, run one row, or run all and print."""
    if options.table is not None:
        print(printed(options.table))
    elif options.one is not None:
        options.one_row(rows)
    else:
        options.all_rows(rows, script)
        if not options.out.exists():
            raise SystemExit("no run came to its end: see what each said above.")
        print(printed(options.out))


def _parts_of(name: str) -> list[str]:
    """Split group/row/seed; a row may have strokes in its name."""
    group, _, rest = name.partition("/")
    row, _, seed = rest.rpartition("/")
    return [group, row, seed]


def _name_of(run: Mapping[str, Any]) -> str:
    return f"{run['group']}/{run['row']}/{run['seed']}"


def _in_lines(result: Mapping[str, Any]) -> str:
    """Write every run in a line of its own: thousands of numbers, each in one, would be of no use to anybody."""
    head = json.dumps({key: value for key, value in result.items() if key != "runs"}, indent=1)
    runs = ",\n  ".join(json.dumps(run) for run in result["runs"])
    return f'{head[:-2]},\n "runs": [\n  {runs}\n ]\n}}\n'


def _write(path: Path, text: str) -> None:
    """Write in one move: whoever is ended in the middle leaves what was there."""
    half = path.with_name(f".{path.name}.half")
    half.write_text(text)
    half.replace(path)


def _tell(runs: list[dict[str, Any]], wanted: int) -> None:
    one = runs[-1]
    scores = ", ".join(f"{split} {score:.4f}" for split, score in one["scores"].items() if score is not None)
    how = "diverged" if one["diverged"] else "stopped" if one["stopped"] else ""
    ratio = f"{one['ratio']:.1f}x" if one["ratio"] is not None else ""
    said = f"{time.strftime('%H:%M:%S')} {len(runs)} kept (of {wanted} to run), {_name_of(one)}: {how} "
    print(f"{said}{one['metric']} {scores}, {ratio}, {one['seconds']:.0f} s", flush=True)


def _work(spec: Spec, method: laconic.Method) -> dict[str, Any]:
    """Train on this rank, which has a process of its own."""
    talk, began = Talk(), time.perf_counter()
    place = place_of(spec, talk)
    work = prepare(spec, place)
    with tempfile.TemporaryDirectory() as scratch, noted_wishes() as wish:
        course, folder = Course.of(spec.settled, work.steps_per_epoch), RunFolder(Path(talk.of_first(scratch)))
        loop, lines = Loop(work, course, method, place, talk, folder), Lines(wish)
        outcome = loop.run(lines, wish, checkpoint_every=None)
        talk.wait()
    ran = Ran(loop=loop, lines=lines, outcome=outcome, seconds=time.perf_counter() - began)
    return ran.record() | {"layers": [asdict(layer) for layer in outcome.stats.layers]}
