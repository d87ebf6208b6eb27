"""``laconic bench network target``: how soon each competitor trains to a stated figure over a slow link."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console

from laconic import kernels
from laconic.arguments import check_choice, check_number, check_whole
from laconic.lab.data.home import default_home
from laconic.lab.machine import introduce, machine
from laconic.lab.network import hosts
from laconic.lab.network.race_files import Tuned, best_of, read_tuned
from laconic.lab.network.race_page import write_page
from laconic.lab.network.race_stages import Course, Plan, choices, run_race, tune
from laconic.lab.network.race_table import closing, race_table, tuning_table
from laconic.lab.network.race_work import Racing
from laconic.lab.peers import Ours, peer_of
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

PEERS = (
    "ddp", "ddp-fp16", "powersgd-hook:1", "powersgd-hook:4", "post-local:4", "post-local:16", "torchft-local",
    "torchft-diloco",
)  # fmt: skip
METHODS = ("spartan", "sdagc", "topk:density=0.001", "celgc:every=16")
# Of the task's own rate, where no grid is given: an LSTM on PTB, whose own is 30, tries 10, 20, 30 and 45.
_AROUND = (1 / 3, 2 / 3, 1.0, 1.5)


@dataclass(frozen=True, kw_only=True)
class BenchTarget:
    """Train to a stated validation figure over a slow link by every method, and time it.

    First --stage tune, on loopback: every competitor at the same learning rates, for as many steps. Then
    --stage race --target FIGURE, on hosts behind a slow link: each at the rate that was first at the target.
    """

    task: Racing = field(default_factory=Lm)
    stage: Literal["tune", "race"] = "tune"
    """tune: find every competitor's rate. race: run each at its rate over the link."""
    target: float | None = None
    """The validation figure to reach: perplexity, bits a character or accuracy, the task's own."""
    hosts: int = 2
    """Hosts of the link, with one rank of one thread each."""
    megabits: float = 100.0
    """Megabits a second that a host may send; 0 or inf: as many as it can."""
    loopback: bool = False
    """Race on loopback, without hosts: needs no root, and shows no link."""
    peers: tuple[str, ...] = PEERS
    """What a user could pick instead: shipped names, or paths of Python files that define PEER."""
    methods: tuple[str, ...] = METHODS
    """Methods of laconic, NAME:SETTING=VALUE:...; those that clip local gradients get --clip."""
    rates_grid: tuple[float, ...] = ()
    """Learning rates to tune over; by default 1/3, 2/3, 1 and 3/2 of the task's own."""
    steps: int = 400
    """Steps of every run of tuning; a race has half as many more."""
    batch: int | None = None
    """Examples a rank and step (lm: streams of text); by default the task's own."""
    clip: float | None = None
    """Norm to which gradients are clipped, 0 for none; by default the task's own."""
    seed: int = 0
    """Seed of weights, order and dropout, the same for everybody."""
    eval_every: int = 16
    """Steps between evaluations; rounded up to a multiple of a competitor's period."""
    valid_examples: int = 8000
    """Tokens of the validation text or pictures of the test part that are scored, the first ones; 0 for all."""
    jobs: int = 1
    """Crews that tune at a time: on a machine of many cores about half as many as it has, with two hosts."""
    most_seconds: float = 1800.0
    """Seconds of training after which a race is over for a competitor; looked at with every evaluation."""
    give_up_seconds: float = 7200.0
    """Seconds, with evaluations and all, after which a run is killed."""
    tuned: Path = Path("tuned.json")
    """File of what tuning saw: written by tune, which goes on with it, and read by race."""
    json: Path | None = None
    """Where race writes its results after every run, and goes on from them."""
    page: Path | None = None
    """Where race writes a page with the curves."""
    data_home: Path = field(default_factory=default_home)
    """Folder of the data sets that laconic data keeps (or LACONIC_DATA)."""

    def __post_init__(self) -> None:
        check_choice("stage", self.stage, ("tune", "race"))
        check_whole("hosts", self.hosts, 1 if self.loopback or self.stage == "tune" else 2, "Write --hosts 2.")
        for name in ("steps", "eval_every", "jobs"):
            check_whole(
                name, getattr(self, name), 1, f"Write --{name.replace('_', '-')} {getattr(BenchTarget, name)}."
            )
        check_whole("valid_examples", self.valid_examples, 0, "Write --valid-examples 8000.")
        for name in ("most_seconds", "give_up_seconds"):
            check_number(name, getattr(self, name), 1, f"Write --{name.replace('_', '-')} 1800.")
        if not math.isinf(self.megabits):
            check_number("megabits", self.megabits, 0, "Write --megabits 100, or inf for a link without a limit.")
        for rate in self.rates_grid:
            check_number("rates_grid", rate, 1e-12, "Write --rates-grid 10 20 30.")
        words = (*self.peers, *self.methods)
        if not words or len(set(words)) < len(words) or len(set(self.rates_grid)) < len(self.rates_grid):
            raise ValueError(f"competitors and rates must be different ones, got {words} at {self.rates_grid}.")
        for word in words:
            _refuse_delay(word)

    def plan(self) -> Plan:
        """Settle what both stages have in common."""
        given = Training(batch=self.batch, clip=self.clip, seed=self.seed)
        training = given.filled(self.task.choice())
        grid = self.rates_grid or tuple(float(f"{share * (training.rate or 1.0):.3g}") for share in _AROUND)
        return Plan(
            task=self.task,
            training=training,
            data_home=self.data_home.resolve(),
            ranks=self.hosts,
            competitors=(*self.peers, *self.methods),
            grid=grid,
            steps=self.steps,
            eval_every=self.eval_every,
            valid_examples=self.valid_examples or None,
            give_up_seconds=self.give_up_seconds,
        )

    def run(self) -> None:
        """Run the stage chosen, print its table and write its files."""
        console, plan = Console(soft_wrap=True), self.plan()
        about = machine("laconic bench network target", asdict(self)) | {"kernels": kernels.in_use("cpu")}
        about["options"]["task"] = {"kind": self.task.name, **asdict(self.task.settled())}
        # Files of results travel; where one machine keeps its data says nothing elsewhere.
        del about["options"]["data_home"]
        if self.stage == "tune":
            plan.check_task()
            introduce(console, about, f"{self.hosts} ranks on loopback, {self.jobs} crews at a time")
            tuned = tune(plan, self.tuned, about, jobs=self.jobs, console=console)
            console.print(tuning_table(tuned, self.target))
            figure = " --target FIGURE" if self.target is None else ""
            following = _for_stage(about["command"], "race") + figure
            console.print(f"{self.tuned}: every curve. Next: {following}", markup=False, highlight=False)
            return
        first = _for_stage(about["command"], "tune")
        read = self._read(plan, first)
        target = self._target(read)
        chosen = choices(plan, read, target, first)
        lacking = "" if self.loopback else hosts.missing()
        if lacking:
            raise OSError(f"{lacking}. To race here, without a link, write --loopback.")
        plan.check_task()
        link = "loopback" if self.loopback else f"hosts that send {self._rate_in_words()}"
        introduce(console, about, f"{self.hosts} ranks, {link}")
        limit = None if self.megabits == 0 or math.isinf(self.megabits) else self.megabits
        course = Course(target=target, megabits=limit, loopback=self.loopback, most_seconds=self.most_seconds)
        whole = run_race(plan, course, chosen, read.metric, self.json, about, console=console)
        console.print(race_table(whole))
        console.print(closing(whole), highlight=False, markup=False)
        if self.page is not None:
            console.print(f"{write_page(whole, self.page)}: the curves", markup=False)

    def _read(self, plan: Plan, command: str) -> Tuned:
        tuned = read_tuned(self.tuned, plan.settings())
        if tuned is None:
            raise FileNotFoundError(
                f"a race wants the rates that tuning found, and there is no {self.tuned}. Tune first: {command}"
            )
        return tuned

    def _target(self, tuned: Tuned) -> float:
        if self.target is not None:
            return self.target
        known = self.peers[0] if self.peers and tuned.of(self.peers[0]) else tuned.runs[0].competitor
        best = best_of(tuned.of(known), tuned.metric)
        raise ValueError(
            f"a race needs a target, and got none. In {self.tuned} {known} came to {tuned.metric.name} "
            f"{best:.4g} within {self.steps} steps. Write --target {best:.3g}, or what is easier to reach."
        )

    def _rate_in_words(self) -> str:
        unlimited = self.megabits == 0 or math.isinf(self.megabits)
        return "as much as they can" if unlimited else f"{self.megabits:g} Mbit/s each"


def _for_stage(command: str, stage: str) -> str:
    """Return a command with all its options, for another stage: files of other settings would be refused."""
    words = shlex.split(command)
    given = [place for place, word in enumerate(words) if word == "--stage"]
    left = [
        word
        for place, word in enumerate(words)
        if place not in given and place - 1 not in given and not word.startswith("--stage=")
    ]
    return shlex.join([*left, "--stage", stage])


def _refuse_delay(word: str) -> None:
    """Refuse a competitor whose exchange goes on while others' clocks would stand still."""
    peer = peer_of(word)
    if isinstance(peer, Ours) and peer.method.local is not None and peer.method.local.delay:
        raise ValueError(
            f"{word} has an exchange under way when it is evaluated, and it would go on off the clock. "
            f"Leave its delay out."
        )
