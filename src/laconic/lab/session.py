"""What runs on every rank: make the task ready, train with each method in turn, write down what came of it."""

from __future__ import annotations

import gc
import os
import socket
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from laconic import kernels
from laconic.lab.folder import RunFolder, finite
from laconic.lab.loop import Loop, Outcome
from laconic.lab.method_words import about, make, name_of
from laconic.lab.seeds import seed_for
from laconic.lab.show import Show
from laconic.lab.spec import Spec
from laconic.lab.talk import StopWish, Talk
from laconic.lab.training import Course
from laconic.lab.work import Place


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run to make: its spec, its folder, and whether it goes on from that folder's last checkpoint."""

    spec: Spec
    folder: Path
    resume: bool = False
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of the orders: the results of those that ran, why the rest did not, and whether it was stopped."""

    results: tuple[dict[str, Any], ...]
    error: str | None = None
    stopped: bool = False


def run_orders(orders: tuple[Order, ...], environment: dict[str, Any], quiet: bool) -> Report:
    """Make runs one after the other. Runs on every rank; all return the same."""
    talk = Talk()
    if talk.rank:
        # What warns, warns on every rank; the first says it.
        warnings.simplefilter("ignore")
    results: list[dict[str, Any]] = []
    with StopWish() as wish, Show(hidden=quiet or talk.rank != 0) as show:
        # Started one by one, ranks may name their folders by different seconds.
        for order in talk.of_first(orders):
            try:
                loop, error = _prepare(order, talk), None
            except (ValueError, OSError, ImportError) as failure:
                loop, error = None, str(failure)
            error = talk.first_error(error)
            if error is not None or loop is None:
                return Report(results=tuple(results), error=error)
            outcome = _run(order, loop, talk, wish, show, environment)
            results.append(finite(_result(order, loop, outcome)))
            if talk.rank == 0:
                RunFolder(order.folder).finish(results[-1])
            del loop
            gc.collect()
            if outcome.stopped:
                return Report(results=tuple(results), stopped=True)
    return Report(results=tuple(results))


def _prepare(order: Order, talk: Talk) -> Loop:
    spec, training = order.spec, order.spec.settled
    device = torch.device("cuda", torch.cuda.current_device()) if spec.device == "cuda" else torch.device("cpu")
    place = Place(
        rank=talk.rank,
        ranks=talk.ranks,
        device=device,
        seed=training.seed,
        batch=training.batch or 1,
        data_home=Path(spec.data_home),
    )
    torch.manual_seed(seed_for(training.seed, "weights"))
    work = spec.task.prepare(place)
    work.model.to(device)
    course = Course.of(training, work.steps_per_epoch)
    return Loop(work, course, make(spec.method, clip=course.clip), place, talk, RunFolder(order.folder))


def _run(order: Order, loop: Loop, talk: Talk, wish: StopWish, show: Show, environment: dict[str, Any]) -> Outcome:
    step = talk.of_first(loop.folder.latest() if order.resume else 0)
    if step:
        loop.load(step)
    if talk.rank == 0:
        spec = order.spec.as_dict() | {"course": asdict(loop.course), "metric": asdict(loop.work.metric)}
        loop.folder.begin(spec, environment | _ran_on(loop.place), from_step=step)
    watcher = show.begin(order.spec.method, loop.course.steps, loop.work.metric, order.folder, order.tensorboard)
    return loop.run(watcher, wish, checkpoint_every=order.spec.checkpoint_every)


def _ran_on(place: Place) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else None
    return {
        "ranks": place.ranks,
        "threads": torch.get_num_threads(),
        "backend": dist.get_backend(),
        "gpu": gpu,
        "kernels": kernels.in_use(place.device),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def _result(order: Order, loop: Loop, outcome: Outcome) -> dict[str, Any]:
    """Put down what a run came to; the first ten keys are those of every summary."""
    word, stats, totals = order.spec.method, outcome.stats, outcome.totals
    said = about(name_of(word))
    return {
        "metric": loop.work.metric.name,
        "best": totals.best,
        "final": outcome.scores.get(loop.work.splits[0]),
        "wire_bytes_sent_per_rank": stats.wire_bytes,
        "dense_bytes_per_rank": stats.dense_bytes,
        "ratio": stats.ratio,
        "steps": outcome.steps,
        "syncs": stats.steps,
        "seconds": totals.seconds,
        "seed": loop.course.seed,
        "method": said.name,
        "label": word,
        "finished": not outcome.stopped,
        "train_loss": outcome.last.get("loss"),
        "final_loss": outcome.last.get("eval_loss"),
        "scores": outcome.scores,
        "density": totals.density_sum / max(1, totals.density_lines),
        "clipped_share": outcome.clipped_share,
        "skipped_steps": stats.skipped_steps,
        "data_share": totals.data_seconds / totals.seconds if totals.seconds else 0.0,
        "setup_bytes": stats.setup_bytes,
        "lab_bytes": outcome.lab_bytes,
        "weights_sha256": outcome.weights_sha256,
        "entries": {layer.name: layer.entries for layer in stats.layers},
        "what": said.what,
        "paper": said.paper,
        "settings": repr(loop.method),
    }
