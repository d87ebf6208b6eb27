"""Methods over a link that is simulated, so that nothing else disturbs: how soon each of them reaches losses.

    laconic data import ptb FOLDER
    python benchmarks/simulated_link.py --out benchmarks/results/simulated_link.json     # 4 minutes on 16 cores
    python benchmarks/simulated_link.py --table benchmarks/results/simulated_link.json

Ranks in one process train an LSTM on PTB; a step takes the same time to compute for all, and an exchange a latency
and what the link's rate makes of a rank's message. The rate changes in the middle. Methods that measure the link
are told these times. One run each; the loss is that of validation text, in nats a word.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional

from laconic.lab.data.home import default_home
from laconic.lab.data.store import load
from laconic.lab.folder import write_json
from laconic.lab.machine import machine
from laconic.lab.method_words import make
from laconic.pace import Pace
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports.lockstep import Lockstep

_TOPK = "topk:density={}:memory=update:scope=model"
METHODS = (
    "cat",
    "cat:memory=gradient",
    "cat:gain=alpha",
    "cat:gain=curvature",
    "cat:per=layer",
    "cat:share=0.05",
    *(_TOPK.format(density) for density in (0.0003, 0.0007, 0.001, 0.0015, 0.003, 0.01, 0.03)),
)
LOSSES = (6.6, 6.4, 6.3, 6.2, 6.1, 6.05)
_RANKS, _BATCH, _LENGTH, _WIDTH, _RATE, _CLIP = 2, 8, 35, 200, 30.0, 0.25


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train by each method in simulated time."""

    out: Path = Path("simulated_link.json")
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    methods: tuple[str, ...] = METHODS
    fast: float = 200.0
    """Megabits a second at first."""
    slow: float = 10.0
    """Megabits a second later."""
    change_at: float = 25.0
    """Second at which the link slows down."""
    seconds: float = 70.0
    """Seconds of training."""
    compute: float = 0.13
    """Seconds of a step beside its exchange."""
    latency: float = 0.002
    """Seconds of an exchange of nothing."""
    jobs: int = 13
    """Processes; no real time is measured."""


class Model(nn.Module):
    """Two LSTM layers between an embedding and a projection."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(words, _WIDTH), nn.Linear(_WIDTH, words)
        self.lstm = nn.LSTM(_WIDTH, _WIDTH, 2)
        for p in self.parameters():
            nn.init.uniform_(p, -0.1, 0.1)

    def loss(self, text: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the mean loss of the words after the first, and the state behind them."""
        hidden, state = self.lstm(self.embedding(text[:-1]), state)
        return functional.cross_entropy(self.out(hidden).flatten(0, 1), text[1:].flatten()), state


def train(work: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Train by one method; return what was seen every second and a half."""
    word, options = work
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train_text, valid = _texts()
    columns = _columns(train_text, _RANKS * _BATCH)
    model = Model(int(train_text.max()) + 1)
    named = dict(model.named_parameters())
    segments = Segments.of(list(named), [p.numel() for p in named.values()])
    reducers = [Reducer(make(word), segments, port) for port in Lockstep(_RANKS).ports]
    now, looked, seen, states = 0.0, 0.0, [], [None] * _RANKS
    for step in range(1_000_000):
        grads = []
        at = step * _LENGTH % (len(columns) - _LENGTH - 1)
        for rank, reducer in enumerate(reducers):
            text = columns[at : at + _LENGTH + 1, rank * _BATCH : (rank + 1) * _BATCH]
            loss, state = model.loss(text, states[rank] if at else None)
            states[rank] = tuple(part.detach() for part in state)
            grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(named.values()))]))
            reducer.begin_step(rates=dict.fromkeys(named, _RATE))
            reducer.begin(grads[-1], segments)
        before = reducers[0].transport.wire_bytes
        for reducer in reducers:
            reducer.end_step()
        size = reducers[0].transport.wire_bytes - before
        waited = options["latency"] + 8e-6 * size / options["fast" if now < options["change_at"] else "slow"]
        for reducer in reducers:
            reducer._watch.pace = Pace(waited=waited, rest=options["compute"])
        _descend(named, segments.views(grads[0]), float(grads[0].norm()))
        now += options["compute"] + waited
        if now >= looked + 1.5 or now >= options["seconds"]:
            looked = now
            seen.append({"seconds": now, "step": step + 1, "loss": _evaluated(model, valid),
                         "density": reducers[0].stats().density})  # fmt: skip
        if now >= options["seconds"]:
            return {"method": word, "seen": seen}
    raise AssertionError("time stands still")


def table(runs: list[dict[str, Any]]) -> str:
    """Lay the runs out in Markdown: the second at which each loss was first reached."""
    lines = [f"| method | {' | '.join(map(str, LOSSES))} | loss at the end, mean of five | steps |"]
    lines.append("|---" * (len(LOSSES) + 3) + "|")
    for run in runs:
        losses, ends = [s["loss"] for s in run["seen"]], run["seen"][-1]
        least = list(accumulate(losses, min))
        reached = [next((s["seconds"] for s, low in zip(run["seen"], least, strict=True) if low <= goal), None)
                   for goal in LOSSES]  # fmt: skip
        told = ["-" if second is None else f"{second:.1f}" for second in reached]
        lines.append(f"| {run['method']} | {' | '.join(told)} | {sum(losses[-5:]) / 5:.3f} | {ends['step']} |")
    return "\n".join(lines)


def _texts() -> tuple[Tensor, Tensor]:
    """Return the words of the training text and of some validation text, as numbers."""
    data: Any = load("ptb", default_home())
    first, second = (text.replace("\n", " <eos> ").split() for text in (data.train, data.valid))
    number = {word: i for i, word in enumerate(sorted(set(first)))}
    return torch.tensor([number[word] for word in first]), torch.tensor([number[word] for word in second[:20_000]])


def _columns(text: Tensor, count: int) -> Tensor:
    return text[: len(text) // count * count].view(count, -1).t().contiguous()


def _descend(named: dict[str, nn.Parameter], means: list[Tensor], norm: float) -> None:
    with torch.no_grad():
        for p, mean in zip(named.values(), means, strict=True):
            p.sub_(mean.view_as(p), alpha=_RATE * min(1.0, _CLIP / (norm + 1e-6)))


@torch.no_grad()
def _evaluated(model: Model, text: Tensor) -> float:
    columns, state, total, count = _columns(text, 20), None, 0.0, 0
    for at in range(0, len(columns) - 1, _LENGTH):
        part = columns[at : at + _LENGTH + 1]
        loss, state = model.loss(part, state)
        total, count = total + float(loss) * (len(part) - 1), count + len(part) - 1
    return total / count


def main() -> None:
    """Run, print and write."""
    options = tyro.cli(Options, description=__doc__)
    if options.table is None:
        facts = machine("python benchmarks/simulated_link.py", asdict(options))
        with ProcessPoolExecutor(options.jobs) as pool:
            runs = list(pool.map(train, [(word, asdict(options)) for word in options.methods]))
        write_json(options.out, {**facts, "runs": runs})
    else:
        runs = json.loads(options.table.read_text())["runs"]
    print(table(runs))


if __name__ == "__main__":
    main()
