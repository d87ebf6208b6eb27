"""``laconic simulate``: N ranks in this process, over a network that is not there, with a clock."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

import torch

from laconic.arguments import check_whole
from laconic.cli.compare import Plan
from laconic.cli.places import joined
from laconic.cli.runs import Where
from laconic.cli.train import TaskChoice
from laconic.lab.data.home import default_home
from laconic.lab.machine import machine
from laconic.lab.method_words import words_of
from laconic.lab.session import Ending, Trial
from laconic.lab.simulated import Batched, Scene, run_simulated
from laconic.lab.training import Training
from laconic.sim import Cable, Change, Network, Outage, Pace

_TIMES = "Seconds are simulated: what ranks compute, and what the network that was named takes for each collective."


@dataclass(frozen=True, kw_only=True)
class Place:
    """The network, and how fast ranks work."""

    workers: int = 8
    """Ranks, all of them in this process."""
    bandwidth: str = "100"
    """Megabits a second of a node's cable; or a list between commas, one a node; inf for no limit."""
    latency: float = 1.0
    """Milliseconds that a round of a collective takes beside sending."""
    changes: str = ""
    """When all cables change, SECOND:FACTOR,...: 60:0.5,120:1 has half the rate from second 60 to second 120."""
    gpus_per_node: int = 1
    """Ranks that share a node, and its cable."""
    inside_bandwidth: float = inf
    """Megabits a second within a node."""
    inside_latency: float = 0.0
    """Milliseconds of a round within a node."""
    compute_seconds: float | None = None
    """What a rank does itself in a step, selecting among it; by default what it takes here, measured."""
    stragglers: str = ""
    """SHARE:FACTOR: 0.1:3 has the last tenth of the ranks always take three times as long."""
    jitter: float = 0.0
    """Every step of a rank takes exp(jitter z) times as long, z normal, by seed, rank and step."""
    dropouts: str = ""
    """RANK:SECOND:SECONDS,...: a rank stands still for so long, and the others wait at their next exchange."""

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1, "Write --workers 8.")
        check_whole("gpus_per_node", self.gpus_per_node, 1, "Write --gpus-per-node 8.")

    def network(self) -> Network:
        """Return the network; a list that does not fit is refused."""
        rates = [_number(text, "bandwidth") for text in self.bandwidth.split(",")]
        nodes = self.workers / self.gpus_per_node
        if len(rates) not in (1, nodes):
            raise ValueError(
                f"bandwidth has {len(rates)} rates, and there are {nodes:g} nodes ({self.workers} ranks, "
                f"{self.gpus_per_node} a node). Give one rate for all, or one a node."
            )
        changes = _listed(self.changes, "changes", "60:0.5", 2)
        return Network(
            ranks=self.workers,
            cables=tuple(_cable(rate, self.latency) for rate in rates),
            inside=_cable(self.inside_bandwidth, self.inside_latency),
            node_size=self.gpus_per_node,
            changes=tuple(Change(second=second, factor=factor) for second, factor in changes),
        )

    def pace(self, seed: int) -> Pace:
        """Return how fast ranks work."""
        slow = _listed(self.stragglers, "stragglers", "0.1:3", 2)
        if len(slow) > 1:
            raise ValueError(f"stragglers is one SHARE:FACTOR, got {self.stragglers!r}. Write --stragglers 0.1:3.")
        share, factor = slow[0] if slow else (0.0, 1.0)
        outages = _listed(self.dropouts, "dropouts", "3:60:10", 3)
        if not all(rank.is_integer() for rank, _, _ in outages):
            raise ValueError(f"dropouts begin with a rank, got {self.dropouts!r}. Write --dropouts 3:60:10.")
        return Pace(
            ranks=self.workers,
            seconds=self.compute_seconds,
            slow_share=share,
            slow_factor=factor,
            jitter=self.jitter,
            outages=tuple(Outage(rank=int(rank), second=at, seconds=long) for rank, at, long in outages),
            seed=seed,
        )

    def in_words(self) -> str:
        """Say what the network is, in a few words."""
        rates = self.bandwidth.split(",")
        rate = rates[0] if len(rates) == 1 else f"{min(rates, key=float)} to {max(rates, key=float)}"
        return f"{self.workers} ranks at {rate} Mbit/s and {self.latency:g} ms"


@dataclass(frozen=True, kw_only=True)
class Simulate:
    """Train a task with several methods on ranks that share this process, over a network that is not there.

    Methods, bytes and what is learnt are the real ones; seconds are those of a clock that counts what ranks compute
    and what the network takes: laconic simulate lm --workers 64 --bandwidth 100 --latency 1.
    """

    task: TaskChoice
    methods: str = "dense,topk,sdagc"
    """Methods between commas, as for laconic compare."""
    place: Place = field(default_factory=Place)
    batched: Batched = "auto"
    """Whether all ranks compute in one call, where the model allows it: auto (from 16 ranks on), yes or no."""
    threads: int | None = None
    """Threads that compute; by default one a core. Bits may depend on it, as on any machine."""
    out: Path | None = None
    """Folder for what comes of it; by default a new one in runs/."""
    data_home: Path = field(default_factory=default_home)
    """Folder of the data sets that laconic data keeps (or LACONIC_DATA)."""
    json: bool = False
    """Print the summary as JSON, and no progress."""
    training: Training = field(default_factory=Training)

    def run(self) -> None:
        """Train with every method, write the files, and print the table."""
        if joined(os.environ) is not None:
            raise ValueError("simulate runs all its ranks in one process. Start it without torchrun or srun.")
        if self.threads is not None:
            check_whole("threads", self.threads, 1, "Write --threads 1.")
        words, place = words_of(self.methods), self.place
        where = Where(workers=place.workers, out=self.out, device="cpu", data_home=self.data_home, json=self.json)
        spec = where.spec(self.task, self.training, words[0])
        scene = Scene(network=place.network(), pace=place.pace(spec.settled.seed), batched=self.batched)
        plan = Plan(
            out=where.folder(f"{self.task.name}-simulate"),
            spec=spec,
            words=words,
            make=partial(_in_one_process, scene, self.threads or os.cpu_count() or 1),
            about={"simulated": scene.as_dict()},
            times=_TIMES,
            title=f"{self.task.name}, simulated: {place.in_words()}",
        )
        plan.carry_out(tensorboard=False, json=self.json)


def _in_one_process(scene: Scene, threads: int, trials: tuple[Trial, ...], *, quiet: bool) -> Ending:
    about = machine("laconic simulate", {})
    about.pop("options")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return run_simulated(trials, scene, about, quiet=quiet)
    finally:
        torch.set_num_threads(before)


def _cable(megabits: float, milliseconds: float) -> Cable:
    return Cable(bits_per_second=1e6 * megabits, latency=1e-3 * milliseconds)


def _listed(text: str, name: str, example: str, numbers: int) -> list[tuple[float, ...]]:
    """Return the numbers of NUMBER:NUMBER:...,..., so many in each."""
    parts = [tuple(part.split(":")) for part in text.split(",") if part]
    if any(len(part) != numbers for part in parts):
        raise ValueError(f"{name} wants {numbers} numbers with : between them, got {text!r}. Write {example}, say.")
    return [tuple(_number(number, name) for number in part) for part in parts]


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} wants numbers, got {text!r}.") from None
