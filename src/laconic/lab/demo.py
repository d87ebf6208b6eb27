"""``make demo``: the same language model trained with every gradient sent, and with few of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import laconic
from laconic.lab.launch import run_ranks
from laconic.lab.text import embedded_corpus
from laconic.lab.train import Row, Training, train


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a character language model on the English text that CPython carries, with dense, topk and sdagc."""

    ranks: int = 4
    """Processes on this machine."""
    steps: int = 600
    """Optimizer steps for each method."""
    density: float = 0.01
    """Share of the entries that topk sends, in (0, 1]."""
    c: float = 20.0
    """What sdagc sends exceeds this many deviations of the fresh gradient."""
    batch: int = 8
    """Streams of text a rank."""
    length: int = 48
    """Characters a stream and step."""
    rate: float = 8.0
    """Learning rate of plain SGD."""
    seed: int = 0
    """Seed of the model's first weights."""

    def __post_init__(self) -> None:
        for name in ("ranks", "steps", "batch", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}.")
        self.methods()

    def methods(self) -> list[laconic.Method]:
        """The methods to compare."""
        return [
            laconic.dense(),
            laconic.topk(self.density, memory="update"),
            laconic.sdagc(self.c, clip=self.training().clip),
        ]

    def training(self) -> Training:
        """How each of them trains."""
        return Training(steps=self.steps, batch=self.batch, length=self.length, rate=self.rate, seed=self.seed)


def main(demo: Demo) -> None:
    """Run the comparison and print it."""
    console = Console()
    console.print(
        f"[bold]laconic[/] demo: {demo.ranks} ranks on this machine, {demo.steps} steps for each method. "
        f"Starting the ranks ..."
    )
    try:
        rows = run_ranks(demo.ranks, compare, demo)
    except KeyboardInterrupt:
        console.print("stopped.")
        raise SystemExit(130) from None
    console.print(table(rows, demo))
    console.print(
        "bytes a rank: handed to the collectives by one rank. Loopback costs nothing to send on, so the seconds "
        "here show the price of selecting, not the gain on a slow link."
    )


def compare(demo: Demo) -> list[Row]:
    """Train with each method in turn, from the same weights, on the same text. Runs on every rank."""
    corpus = embedded_corpus()
    show = Progress(
        TextColumn("{task.description:>8}"),
        BarColumn(),
        TextColumn("step {task.completed}/{task.total}  {task.fields[note]}"),
        TimeElapsedColumn(),
        disable=dist.get_rank() != 0,
    )
    with show:
        return [train(demo.training(), method, corpus, show) for method in demo.methods()]


def table(rows: list[Row], demo: Demo) -> Table:
    """Lay the rows out for a person."""
    out = Table(title=f"character LSTM, {demo.ranks} ranks x {demo.steps} steps, SGD rate {demo.rate:g}")
    for heading in ("method", "train loss", "valid loss", "bytes a rank", "ratio", "density", "seconds"):
        out.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        out.add_row(
            row.method,
            f"{row.train_loss:.3f}",
            f"{row.valid_loss:.3f}",
            f"{row.stats.wire_bytes:,}",
            f"{row.stats.ratio:.1f}x",
            f"{row.stats.density:.2%}",
            f"{row.seconds:.1f}",
        )
    return out


if __name__ == "__main__":
    main(tyro.cli(Demo, prog="python -m laconic.lab.demo"))
