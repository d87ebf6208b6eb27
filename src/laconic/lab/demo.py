"""``make demo``: the same language model trained with every gradient sent, and with one in a hundred."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.lab.launch import run_ranks
from laconic.lab.lm import CharLM, State, loss_of, validate
from laconic.lab.text import Corpus, embedded_corpus, streams, windows


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a character language model on the English text that CPython carries, with dense and with topk."""

    ranks: int = 4
    """Processes on this machine."""
    steps: int = 600
    """Optimizer steps for each method."""
    density: float = 0.01
    """Share of the entries that topk sends, in (0, 1]."""
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
        return [laconic.dense(), laconic.topk(self.density, memory="update")]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a method came to."""

    method: str
    train_loss: float
    valid_loss: float
    stats: laconic.Stats
    seconds: float


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
        return [train(demo, method, corpus, show) for method in demo.methods()]


def train(demo: Demo, method: laconic.Method, corpus: Corpus, show: Progress) -> Row:
    """Train one model with one method: an ordinary DDP loop with one line of ours."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(demo.seed)
    model = DistributedDataParallel(CharLM(len(corpus.alphabet)), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=demo.rate)
    link = laconic.attach(model, optimizer, method)

    rows = streams(corpus.train, rank=rank, ranks=ranks, batch=demo.batch)
    task = show.add_task(method.name, total=demo.steps, note="")
    began, step, mean_loss = time.perf_counter(), 0, 0.0
    while step < demo.steps:
        state: State | None = None
        for x, y in windows(rows, length=demo.length):
            scores, state = model(x, state)
            state = (state[0].detach(), state[1].detach())
            loss = loss_of(scores, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            mean_loss += 0.05 * (loss.item() - mean_loss) if step > 1 else loss.item()
            if step % 10 == 0 or step == demo.steps:
                sent = link.stats.wire_bytes / 1e6
                show.update(task, completed=step, note=f"loss {mean_loss:.3f}  {sent:.1f} MB sent")
            if step == demo.steps:
                break
    seconds = time.perf_counter() - began
    valid = validate(model.module, streams(corpus.valid, rank=0, ranks=1, batch=16), length=demo.length)
    return Row(method=method.name, train_loss=mean_loss, valid_loss=valid, stats=link.stats, seconds=seconds)


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
