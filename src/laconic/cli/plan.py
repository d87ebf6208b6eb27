"""``laconic plan``: will it pay on my network, and which method?"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from math import inf, isinf
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, subcommand

from laconic.arguments import check_number, check_share, check_whole
from laconic.cli.places import joined, settle
from laconic.cli.runs import first_here
from laconic.lab.data.home import default_home
from laconic.lab.launch import Joined, Setting, run_joined, run_ranks
from laconic.lab.machine import machine
from laconic.lab.method_words import words_of
from laconic.lab.report.amounts import size
from laconic.lab.spec import Device
from laconic.lab.tasks import Lm, Logreg, Speech, Vision
from laconic.plan.advise import HALF, PLAIN, Advice, advise, rate
from laconic.plan.facts import Facts
from laconic.plan.observe import Effort, Observed, observe
from laconic.plan.page import write_page
from laconic.plan.predict import Link
from laconic.plan.work import OfFunction, OfSize, OfTask, Planned

_METHODS = "dense,topk,sdagc,cat,celgc,spartan,powersgd,qsgd"


@dataclass(frozen=True, kw_only=True)
class Module:
    """A function of your own that returns a model and its step: laconic plan module train.py:make."""

    function: Positional[str]
    """package.module:function or path/train.py:function. It returns laconic.plan.Subject(model=, loss=), or a pair
    of a model and a function that takes the model and returns the loss of a batch."""

    def work(self) -> Planned:
        """Return what is planned for."""
        return OfFunction(where=self.function)


@dataclass(frozen=True, kw_only=True)
class Params:
    """Nothing but a number of parameters and the seconds of a step; the layout of layers is invented."""

    params: int | None = None
    """How many parameters there are: 25_000_000, say."""
    step_seconds: float | None = None
    """What a step takes on one worker, alone."""
    layers: int = 12
    """Layers to deal them out to."""

    def work(self) -> Planned:
        """Return what is planned for."""
        if self.params is None or self.step_seconds is None:
            raise ValueError(
                f"a plan is for a size and a step's time, a module or a task, got params {self.params} and "
                f"step_seconds {self.step_seconds}. Write --params 25_000_000 --step-seconds 0.3, or module "
                f"train.py:make, or lm, vision, speech or logreg."
            )
        return OfSize(parameters=self.params, step_seconds=self.step_seconds, layers=self.layers)


WorkChoice = (
    Annotated[Params, subcommand("size")]
    | Annotated[Module, subcommand("module")]
    | Annotated[Lm, subcommand("lm")]
    | Annotated[Vision, subcommand("vision")]
    | Annotated[Speech, subcommand("speech")]
    | Annotated[Logreg, subcommand("logreg")]
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predict what a step takes with each method on your network, and say which to take, or none.

    laconic plan --params 25_000_000 --step-seconds 0.3 --bandwidth 100 --workers 8. Methods are rehearsed here with
    their own code; only the time on the link is computed.
    """

    work: WorkChoice = field(default_factory=Params)
    bandwidth: float | None = None
    """Megabits a second that a node can send; inf for no limit."""
    latency: float | None = None
    """Milliseconds from one node to another; by default 0.1."""
    workers: int | None = None
    """Ranks that train together: by default 2, under torchrun or srun those that were started."""
    gpus_per_node: int | None = None
    """Ranks that share a node, and its link to the others: by default 1, under torchrun or srun those of a host."""
    inside_bandwidth: float = inf
    """Megabits a second between ranks of a node; with --measure by default what is measured."""
    measure: bool = False
    """Measure the link between the ranks that torchrun or srun has started; alone, this machine's to itself."""
    methods: str = _METHODS
    """Methods between commas, with settings as laconic compare takes them."""
    density: float | None = None
    """Share that methods without settings send; by default each one's own."""
    batch: int | None = None
    """Examples a rank and step, for tasks; by default the task's own."""
    ranks_here: int | None = None
    """Ranks that will share a host, and its cores and memory: as many work at once while times are taken here. By
    default 1, under torchrun or srun those of a host."""
    threads: int = 1
    """Threads of each."""
    steps: int = 8
    """Timed steps of a rehearsal."""
    warmup: int = 12
    """Steps before those: thresholds and messages settle."""
    seconds: float = 8.0
    """A rehearsal that takes longer has fewer steps."""
    worlds: tuple[int, ...] = (2, 4)
    """Numbers of ranks to rehearse with; what lies beyond is drawn from them."""
    rehearse_params: int = 30_000_000
    """Of larger models only a part is rehearsed, and scaled up."""
    device: Device = "cpu"
    """cpu or cuda."""
    data_home: Path = field(default_factory=default_home)
    """Folder of the data sets that laconic data keeps (or LACONIC_DATA)."""
    json: str | None = None
    """File for everything that was measured and predicted; - prints it."""
    page: Path | None = None
    """File for a page with sliders for bandwidth and workers."""

    def __post_init__(self) -> None:
        for name in ("ranks_here", "threads", "steps", "rehearse_params", "gpus_per_node"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, f"Write --{name.replace('_', '-')} 1 or more.")
        check_whole("warmup", self.warmup, 0, "It counts steps.")
        check_number("seconds", self.seconds, 0.1, "Write --seconds 8.")
        if not self.worlds or min(self.worlds) < 2:
            raise ValueError(f"worlds must be numbers of 2 ranks or more, got {self.worlds}. Write --worlds 2 4.")
        if self.density is not None:
            check_share("density", self.density, "For 0.1% write --density 0.001.")
        words_of(self.methods)
        if self.bandwidth is None and not self.measure:
            raise ValueError(
                "the link is not known: write --bandwidth 100 for 100 Mbit/s, or --measure, under torchrun or srun "
                "on the hosts that will train."
            )
        if self.bandwidth is not None and self.measure:
            raise ValueError("give --bandwidth or --measure, not both.")
        if self.latency is not None and self.measure:
            raise ValueError("--measure finds the latency, too, got --latency. Leave it out, or give --bandwidth.")

    def run(self) -> None:
        """Measure, predict, print."""
        seen = self._observed()
        if not first_here():
            return
        link, advice = seen.link, advise(seen.facts, seen.link)
        told = self._told(seen, advice)
        if self.json == "-":
            print(json.dumps(told, indent=1))
        else:
            _print(seen.facts, link, advice)
        if self.json not in (None, "-"):
            Path(str(self.json)).parent.mkdir(parents=True, exist_ok=True)
            Path(str(self.json)).write_text(json.dumps(told, indent=1) + "\n")
        if self.page is not None:
            write_page(seen.facts, link, self.page)
            print(f"page: {self.page.resolve()}", file=sys.stderr if self.json == "-" else sys.stdout)

    def planned(self) -> Planned:
        """Return what is planned for; what cannot be found is refused before ranks are started."""
        if isinstance(self.work, Module | Params):
            work = self.work.work()
            if isinstance(work, OfFunction):
                work.find()
            return work
        return OfTask(task=self.work, batch=self.batch)

    def _observed(self) -> Observed:
        place, device = joined(os.environ), settle(self.device)
        effort = Effort(
            methods=tuple(words_of(self.methods)),
            density=self.density,
            sharing=self._sharing(),
            steps=self.steps,
            warmup=self.warmup,
            worlds=tuple(sorted(set(self.worlds))),
            entries=self.rehearse_params,
            seconds=self.seconds,
            data_home=str(self.data_home.resolve()),
            device=device,
            spread=place is not None,
            measured=self.measure,
            quiet=self.json == "-",
        )
        args = (self.planned(), effort, self._link())
        setting = Setting(threads=self.threads, device=device)
        if place is not None:
            return run_joined(place, observe, *args, setting=setting)
        # The host's own cost of talking wants two ranks at least.
        return run_ranks(max(2, self._sharing()), observe, *args, setting=setting)

    def _sharing(self) -> int:
        place = joined(os.environ)
        return (self.ranks_here or 1) if place is None else place.local_ranks

    def _link(self) -> Link:
        """Return the link as far as it is known before it is measured; what it cannot be is refused."""
        place, workers, node_size = joined(os.environ), self.workers, self.gpus_per_node
        if place is not None:
            self._check_started(place)
            workers = place.ranks
            # Ranks that are all on one host stand for hosts of their own, unless told otherwise.
            if place.local_ranks < place.ranks:
                # Unlike hosts are refused when all ranks have met: one that fails before leaves others waiting.
                node_size = place.local_ranks if place.ranks % place.local_ranks == 0 else 1
        link = Link(
            workers=2 if workers is None else workers,
            bandwidth=inf if self.bandwidth is None else self.bandwidth,
            latency=0.1 if self.latency is None else self.latency,
            node_size=node_size or 1,
            inside_bandwidth=self.inside_bandwidth,
        )
        if link.node_size == 1 and not isinf(self.inside_bandwidth):
            raise ValueError(
                f"--inside-bandwidth {self.inside_bandwidth:g} is for nodes of several ranks, got 1 a node. Write "
                f"--gpus-per-node 4, or leave it out."
            )
        return link

    def _check_started(self, place: Joined) -> None:
        """Refuse what differs from the ranks that a launcher has started."""
        if place.ranks < 2:
            raise ValueError("the launcher has started 1 rank, wanted are 2. Or run laconic plan alone.")
        started = {"workers": place.ranks, "ranks_here": place.local_ranks}
        if place.local_ranks < place.ranks:
            started["gpus_per_node"] = place.local_ranks
        for name, number in started.items():
            if getattr(self, name) not in (None, number):
                raise ValueError(
                    f"the launcher has started {number}, got --{name.replace('_', '-')} {getattr(self, name)}. "
                    f"Leave it out, or start laconic plan alone."
                )

    def _told(self, seen: Observed, advice: Advice) -> dict[str, Any]:
        about = machine("laconic plan", {}) | {"threads": self.threads, "ranks_here": self._sharing()}
        about.pop("options")
        below = None if isinf(advice.pays_below) else advice.pays_below
        said = {name: getattr(advice, name) for name in ("method", "text", "reached")}
        rows = [asdict(p) | _over(p.seconds, advice) for p in advice.predictions]
        return about | {
            "link": {key: None if value == inf else value for key, value in asdict(seen.link).items()},
            "advice": said | {"pays_below": below},
            "predictions": rows,
            "facts": seen.facts.as_dict(),
            "measured": seen.measured,
        }


def _over(seconds: float, advice: Advice) -> dict[str, float | None]:
    known = {p.name: p.seconds for p in advice.predictions}
    half = known[HALF] / seconds if HALF in known else None
    return {"times_faster": known[PLAIN] / seconds, "times_faster_than_half": half}


def _print(facts: Facts, link: Link, advice: Advice) -> None:
    # In a file there is room for whole names of methods.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    profile = facts.profile
    invented = " (layout invented: real layers and gradients may differ)" if profile.invented else ""
    console.print(f"{facts.work}: {profile.parameters:,} parameters, {1e3 * profile.alone:.3g} ms alone{invented}")
    nodes = f", {link.node_size} a node" if link.node_size > 1 else ""
    how = "measured" if link.measured else "given"
    console.print(f"{link.workers} workers{nodes}, {rate(link.bandwidth)}, {link.latency:.3g} ms, {how}")
    if facts.scale > 1:
        console.print(f"rehearsed on one part in {facts.scale:.1f} of the model, and scaled up")
    table = Table(box=box.SIMPLE, padding=0)
    table.add_column("method")
    for heading in ("ms a step", "communicating", "over DDP", "over fp16", "bytes a step"):
        table.add_column(heading, justify="right")
    for p in advice.predictions:
        over = _over(p.seconds, advice)
        half = over["times_faster_than_half"]
        name = p.name + (f" (one exchange in {p.every} steps)" if p.every > 1 else "")
        cells = [f"{1e3 * p.seconds:,.1f}", f"{p.communicating:.0%}", f"{over['times_faster']:.3g}x"]
        table.add_row(name, *cells, "-" if half is None else f"{half:.3g}x", size(p.link_bytes))
    console.print(table)
    console.print(advice.text)
    if advice.reached:
        console.print(advice.reached)
    console.print(
        "The planner knows time, not your task's accuracy. communicating: the share of a step not computing."
    )
