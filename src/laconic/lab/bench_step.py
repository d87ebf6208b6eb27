"""``laconic bench step``: what a whole training step takes with each method."""

from __future__ import annotations

import inspect
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.distributed as dist
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic import kernels
from laconic.arguments import check_share, check_whole
from laconic.lab.launch import run_ranks
from laconic.lab.machine import introduce, machine, save
from laconic.lab.models.perceptron import perceptron
from laconic.methods import METHODS

PLAIN, ALONE, AGAIN = "plain DDP", "no exchange", "plain DDP again"


@dataclass(frozen=True, kw_only=True)
class BenchStep:
    """Time training steps of a multilayer perceptron on ranks of this machine: plain DDP, no exchange, methods."""

    ranks: int = 2
    """Processes on this machine, of one thread each."""
    layers: int = 10
    """Linear layers, each with a ReLU."""
    width: int = 1024
    """Inputs and outputs of a layer."""
    batch: int = 16
    """Rows of input a rank."""
    warmup: int = 5
    """Steps before those that are timed, for each method and round."""
    steps: int = 15
    """Timed steps for each method and round."""
    rounds: int = 3
    """Times that all methods are gone through: what slows the machine down for a while then slows all of them."""
    methods: tuple[str, ...] = ("topk", "sdagc")
    """Methods besides dense."""
    density: float = 0.001
    """Share of the entries that methods send, in (0, 1]; sdagc moves its threshold until it does."""
    json: Path | None = None
    """Where to write every number."""

    def __post_init__(self) -> None:
        for name in ("ranks", "layers", "width", "batch", "steps", "rounds"):
            check_whole(name, getattr(self, name), 1, f"Write --{name} {getattr(BenchStep, name)}.")
        check_whole("warmup", self.warmup, 0, "It counts steps.")
        check_share("density", self.density, "For 0.1% write --density 0.001.")
        for name in self.methods:
            self.method(name)

    def method(self, name: str) -> laconic.Method:
        """Return a method that sends about the density from its first steps on."""
        if name == "sdagc":
            # The input never changes, so neither do gradients much: what waits soon exceeds c of them, and c must
            # begin higher and follow sooner than in training, where gradients differ from step to step.
            nominal = laconic.StdThreshold(c=1.0).at_density(self.density).c
            held = laconic.TargetDensity(density=self.density, every=1, factor=1.03)
            return replace(laconic.sdagc(2 * nominal, scope="layer", values="exact"), tuner=held)
        allowed = inspect.signature(METHODS[name]).parameters if name in METHODS else {}
        settings = {"density": self.density, "warmup_steps": 0}
        return laconic.by_name(name, **{key: value for key, value in settings.items() if key in allowed})

    def run(self) -> None:
        """Measure, print the table, and write the file."""
        console = Console()
        about = machine("laconic bench step", asdict(self)) | {"kernels": kernels.in_use("cpu")}
        introduce(
            console, about, f"{self.ranks} ranks over gloo on this machine, {self.layers} layers of {self.width}"
        )
        rows = [_summary(timing, self) for timing in run_ranks(self.ranks, _measure, self)]
        plain = rows[0]["milliseconds"]
        rows = [row | {"over_plain": row["milliseconds"] / plain} for row in rows]
        save(self.json, about | {"parameters": self.layers * self.width * (self.width + 1), "rows": rows})
        console.print(_table(rows, self))
        console.print(
            "over plain DDP: median over median; select and wait are parts of a step. Loopback costs little to "
            "send on: this shows the price of selecting and exchanging, not the gain on a slow link."
        )


@dataclass
class _Timing:
    """What rank 0 saw of one method over all rounds: seconds a step, and what link.stats grew by a step."""

    name: str
    setting: str | None = None
    seconds: list[float] = field(default_factory=list)
    densities: list[float] = field(default_factory=list)
    grown: list[dict[str, float]] = field(default_factory=list)


def _measure(options: BenchStep) -> list[_Timing]:
    """Time every method in turn, round after round. Runs on every rank."""
    methods = {"dense": laconic.dense()} | {name: options.method(name) for name in options.methods}
    timings = {name: _Timing(name) for name in (PLAIN, ALONE, *methods, AGAIN)}
    plan = [name for _ in range(options.rounds) for name in (PLAIN, ALONE, *methods)] + [AGAIN]
    show = Progress(
        TextColumn("{task.description:>15}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        disable=dist.get_rank() != 0,
        transient=True,
    )
    kernels.warm("cpu", torch.float32, [torch.float32])
    with show:
        task = show.add_task("", total=len(plan))
        for name in plan:
            show.update(task, description=name)
            _time(timings[name], methods.get(name), options)
            show.advance(task)
    return list(timings.values())


def _time(timing: _Timing, method: laconic.Method | None, options: BenchStep) -> None:
    """Time one method from the first weights on: a model, a DDP and a link of its own."""
    torch.manual_seed(0)
    model: nn.Module = perceptron(options.layers, options.width)
    if timing.name != ALONE:
        model = DistributedDataParallel(model)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(options.batch, options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    link = None if method is None else laconic.attach(model, optimizer, method)
    timing.setting = None if method is None else repr(method)
    for _ in range(options.warmup):
        _step(model, optimizer, x)
    before = None if link is None else link.stats
    for _ in range(options.steps):
        timing.seconds.append(_step(model, optimizer, x))
        if link is not None:
            timing.densities.append(link.stats.density)
    if link is not None and before is not None:
        after = link.stats
        names = ("wire_bytes", "collectives", "select_seconds", "wait_seconds", "skipped_steps")
        grown = {name: (getattr(after, name) - getattr(before, name)) / options.steps for name in names}
        timing.grown.append(grown)
        link.detach()


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
    # Ranks begin together: what one lags behind is not another's step.
    dist.barrier()
    began = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - began


def _summary(timing: _Timing, options: BenchStep) -> dict[str, Any]:
    p10, p50, p90 = (1e3 * torch.tensor(timing.seconds).quantile(torch.tensor([0.1, 0.5, 0.9]))).tolist()
    row = {"method": timing.name, "setting": timing.setting, "milliseconds": p50, "p10": p10, "p90": p90}
    if timing.grown:
        row |= {name: mean(grown[name] for grown in timing.grown) for name in timing.grown[0]}
        row["density"] = mean(timing.densities)
    else:
        alone = timing.name == ALONE
        # What plain DDP hands over is every gradient, in four bytes each.
        row["wire_bytes"] = 0 if alone else 4 * options.layers * options.width * (options.width + 1)
        row["density"] = 0.0 if alone else 1.0
    return row | {"seconds": timing.seconds, "densities": timing.densities}


def _table(rows: list[dict[str, Any]], options: BenchStep) -> Table:
    out = Table(title=f"one step, {options.rounds} rounds of {options.steps} steps", box=box.SIMPLE, padding=0)
    out.add_column("method")
    headings = (
        "ms",
        "p10",
        "p90",
        "over\nplain DDP",
        "bytes a step\nand rank",
        "density",
        "select\nms",
        "wait\nms",
    )
    for heading in headings:
        out.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{row[key]:.2f}" for key in ("milliseconds", "p10", "p90", "over_plain")]
        spent = [f"{1e3 * row[key]:.2f}" if key in row else "-" for key in ("select_seconds", "wait_seconds")]
        out.add_row(row["method"], *cells, f"{row['wire_bytes']:,.0f}", f"{row['density']:.2%}", *spent)
    return out
