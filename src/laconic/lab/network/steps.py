"""``laconic bench network steps``: what a training step takes over links of several rates, for all competitors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import laconic
from laconic import kernels
from laconic.arguments import check_number, check_share, check_whole
from laconic.lab.bench_step import BenchStep
from laconic.lab.folder import finite
from laconic.lab.launch import RankError
from laconic.lab.machine import introduce, machine, save
from laconic.lab.method_words import make
from laconic.lab.network.crew import run_crew
from laconic.lab.network.hosts import Hosts, missing, shaped_hosts
from laconic.lab.network.plots import write_page
from laconic.lab.network.step_rows import rows_of
from laconic.lab.network.step_table import floor, table
from laconic.lab.network.step_visits import Course, visit_all
from laconic.lab.peers import Ours, Peer, peer_of

_PEERS = (
    "alone", "ddp", "ddp-fp16", "powersgd-hook:1", "powersgd-hook:4", "post-local:4", "torchft-local",
    "torchft-diloco",
)  # fmt: skip
# What all others are measured by, and what none can be faster than.
_ALWAYS = ("ddp", "alone")
# The longest collective may take so many times what a link takes for all gradients: rings, and a rank that lags.
_PATIENCE, _LEAST_PATIENCE_SECONDS = 4, 60.0


@dataclass(frozen=True, kw_only=True)
class BenchSteps:
    """Time training steps of a multilayer perceptron over real sockets, on hosts behind links of several rates."""

    hosts: tuple[int, ...] = (2, 4)
    """Numbers of hosts, network namespaces of this machine, each with a rank of one thread."""
    rates: tuple[float, ...] = (math.inf, 1000.0, 100.0, 20.0)
    """Megabits a second that a host may send; inf or 0: as many as it can."""
    layers: int = 10
    """Linear layers, each with a ReLU."""
    width: int = 1024
    """Inputs and outputs of a layer."""
    batch: int = 16
    """Rows of input a rank."""
    warmup: int = 5
    """Steps before those that are timed, a competitor and round; at least two, and only two where they are slow."""
    steps: int = 12
    """Timed steps for each competitor and round."""
    rounds: int = 2
    """Times that all competitors are gone through: what slows the machine for a while then slows all of them."""
    seconds_a_method: float = 20.0
    """In a visit no step is begun after so many seconds of timed ones, unless it is the second."""
    peers: tuple[str, ...] = _PEERS
    """Peers by name, or the path of a Python file that defines PEER; ddp and alone are always there."""
    methods: tuple[str, ...] = ("dense", "topk", "sdagc", "spartan")
    """Methods of laconic: a name, which gets the density, or a word with settings such as topk:density=0.01."""
    density: float = 0.001
    """Share of the entries that methods send, in (0, 1]; sdagc moves its threshold until it does."""
    loopback: bool = False
    """Have all ranks on this machine's loopback instead: no root is needed, no rate kept, no interface counted."""
    json: Path | None = None
    """Where to write every number; rewritten after every pair of hosts and rate."""
    page: Path | None = None
    """Where to write a page with the plots."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "batch", "steps", "rounds"):
            check_whole(name, getattr(self, name), 1, f"Write --{name} {getattr(BenchSteps, name)}.")
        check_whole("warmup", self.warmup, 0, "It counts steps.")
        check_share("density", self.density, "For 0.1% write --density 0.001.")
        check_number("seconds-a-method", self.seconds_a_method, 0, "Write --seconds-a-method 20.")
        for number in self.hosts:
            check_whole("hosts", number, 1, "Write --hosts 2 4.")
        for rate in self.rates:
            if math.isnan(rate) or rate < 0:
                raise ValueError(f"rates must be megabits a second, or inf for no limit, got {rate}.")
        if not self.hosts or not self.rates:
            raise ValueError(
                "there must be at least one number of hosts and one rate. Write --hosts 2 --rates 100."
            )
        self.competitors()

    def competitors(self) -> dict[str, Peer]:
        """Return who is timed, by the name of its row: plain DDP first."""
        words = [*_ALWAYS, *(word for word in self.peers if word not in _ALWAYS)]
        found = [peer_of(word) for word in words]
        found += [Ours(name=word, method=self.method(word)) for word in self.methods]
        named = {peer.name: peer for peer in found}
        if len(named) < len(found):
            names = sorted(peer.name for peer in found)
            raise ValueError(f"peers and methods must be different ones, got {', '.join(names)}. Name each once.")
        return named

    def method(self, word: str) -> laconic.Method:
        """Return the method of a word; one without settings sends about the density from its first steps on."""
        return make(word) if ":" in word else BenchStep(methods=(), density=self.density).method(word)

    def run(self) -> None:
        """Measure pair by pair, print each table, and write the files."""
        lacking = "" if self.loopback else missing()
        if lacking:
            raise OSError(f"{lacking}. To time the same ranks without limits write --loopback.")
        for path in (self.json, self.page):
            # Found out now, not after an hour.
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        console = Console(width=150)
        about = machine("laconic bench network steps", asdict(self)) | {"kernels": kernels.in_use("cpu")}
        introduce(console, about, f"ranks of one thread over gloo, {self.layers} layers of {self.width}")
        result = about | {"parameters": self.parameters, "links": [], "rows": []}
        for number in self.hosts:
            for rate in (math.inf,) if self.loopback else self.rates:
                megabits = None if rate in (0, math.inf) else rate
                found = self._measured_or_failed(number, megabits)
                result["links"].append(found["link"])
                result["rows"] += found["rows"]
                save(self.json, finite(result))
                if not found["rows"]:
                    console.print(f"{_where(found['link'])}: {found['link']['failed']}", markup=False)
                    continue
                console.print(table(found["rows"], found["link"]))
                console.print(floor(found["rows"]), highlight=False, markup=False)
        if not result["rows"]:
            raise RankError("not one pair of hosts and rate came to its end: see above why.")
        if self.page is not None:
            write_page(self.page, result)
            console.print(f"plots: {self.page}")

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return self.layers * self.width * (self.width + 1)

    def _link(self, number: int, megabits: float | None) -> dict[str, Any]:
        return {"hosts": number, "megabits": megabits, "loopback": self.loopback}

    def _measured_or_failed(self, number: int, megabits: float | None) -> dict[str, Any]:
        """Measure a pair; if its crew fails there are no rows, and its link says why: others are still to come."""
        try:
            return self._measured(number, megabits)
        except RankError as error:
            return {"link": self._link(number, megabits) | {"failed": str(error).strip()}, "rows": []}

    def _measured(self, number: int, megabits: float | None) -> dict[str, Any]:
        if self.loopback:
            return self._crew(number, None, None)
        with shaped_hosts(number) as hosts:
            hosts.limit(megabits)
            return self._crew(number, hosts, megabits)

    def _crew(self, number: int, hosts: Hosts | None, megabits: float | None) -> dict[str, Any]:
        """Have one crew visit all who can run here; return the link by itself, and a row for each."""
        everyone = self.competitors()
        absent = {name: peer.missing() for name, peer in everyone.items() if peer.missing()}
        dense_seconds = 0.0 if megabits is None else 32 * self.parameters / (megabits * 1e6)
        patience = _LEAST_PATIENCE_SECONDS + _PATIENCE * number * dense_seconds
        course = Course(
            competitors={name: self._sent(name, peer) for name, peer in everyone.items() if name not in absent},
            layers=self.layers, width=self.width, batch=self.batch, warmup=self.warmup, steps=self.steps,
            rounds=self.rounds, seconds=self.seconds_a_method, patience_seconds=patience, megabits=megabits,
            interface=None if hosts is None else hosts.interface,
        )  # fmt: skip
        visits = 1 + self.rounds * len(course.competitors)
        link = self._link(number, megabits)
        with _Bar(link) as bar:
            seconds = 300 + visits * (self.seconds_a_method + 3 * patience)
            told = run_crew(number, visit_all, course, hosts=hosts, seconds=seconds, hear=bar.hear)
        rows = rows_of([rank["visits"] for rank in told], absent)
        return {"link": link | (told[0]["transfer"] or {}), "rows": [link | row for row in rows]}

    def _sent(self, name: str, peer: Peer) -> Peer | str:
        """Return a peer as ranks are sent it: what came out of a file goes as its path."""
        files = [word for word in self.peers if word.endswith(".py") and peer_of(word).name == name]
        return str(Path(files[0]).resolve()) if files else peer


def _where(link: dict[str, Any]) -> str:
    rate = "no limit" if link["megabits"] is None else f"{link['megabits']:g} Mbit/s"
    return f"{link['hosts']} ranks, {'loopback' if link['loopback'] else rate}"


class _Bar:
    """How far a crew is, on standard error."""

    def __init__(self, link: dict[str, Any]) -> None:
        self._where = _where(link)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self._show = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        self._task = self._show.add_task(self._where, total=None)

    def hear(self, said: str) -> None:
        """Note what a rank said: visits done, of how many, and whom it visits."""
        done, total, name = said.split(" ", 2)
        self._show.update(self._task, completed=int(done), total=int(total), description=f"{self._where}: {name}")

    def __enter__(self) -> _Bar:
        self._show.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._show.stop()
