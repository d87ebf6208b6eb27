"""An ordinary DDP training loop with one line of ours, and what a method came to in it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from rich.progress import Progress
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.lab.lm import CharLM, State, loss_of, validate
from laconic.lab.text import Corpus, streams, windows


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the character language model is trained, whatever the method.

    ``clip`` clips the averaged gradient in the loop, unless the method clips local ones itself. In the second
    half the rate falls in a straight line to ``final`` times what it was.
    """

    steps: int = 600
    batch: int = 8
    length: int = 48
    rate: float = 8.0
    final: float = 1.0
    momentum: float = 0.0
    clip: float = 1.0
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        fallen = max(0.0, 2 * step / self.steps - 1)
        return self.rate * (1 - (1 - self.final) * fallen)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a method came to."""

    method: str
    train_loss: float
    valid_loss: float
    stats: laconic.Stats
    seconds: float


def train(training: Training, method: laconic.Method, corpus: Corpus, show: Progress) -> Row:
    """Train one model with one method. Runs on every rank; ``show`` follows the progress."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(training.seed)
    model = DistributedDataParallel(CharLM(len(corpus.alphabet)), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=training.rate, momentum=training.momentum)
    link = laconic.attach(model, optimizer, method)

    rows = streams(corpus.train, rank=rank, ranks=ranks, batch=training.batch)
    task = show.add_task(method.name, total=training.steps, note="")
    began, step, mean_loss = time.perf_counter(), 0, 0.0
    while step < training.steps:
        state: State | None = None
        for x, y in windows(rows, length=training.length):
            scores, state = model(x, state)
            state = (state[0].detach(), state[1].detach())
            loss = loss_of(scores, y)
            for group in optimizer.param_groups:
                group["lr"] = training.rate_at(step)
            if method.tuner.needs_loss:
                link.observe(loss)
            loss.backward()
            if method.clip is None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            mean_loss += 0.05 * (loss.item() - mean_loss) if step > 1 else loss.item()
            if step % 10 == 0 or step == training.steps:
                sent = link.stats.wire_bytes / 1e6
                show.update(task, completed=step, note=f"loss {mean_loss:.3f}  {sent:.1f} MB sent")
            if step == training.steps:
                break
    seconds = time.perf_counter() - began
    stats = link.stats
    link.detach()
    valid = validate(model.module, streams(corpus.valid, rank=0, ranks=1, batch=16), length=training.length)
    return Row(method=method.name, train_loss=mean_loss, valid_loss=valid, stats=stats, seconds=seconds)
