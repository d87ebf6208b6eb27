"""What runs on every rank: make the task ready, train with each method in turn, write down what came of it."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from laconic import kernels
from laconic.lab import checkpoint
from laconic.lab.folder import RunFolder, finite
from laconic.lab.loop import Loop, Outcome, Ways
from laconic.lab.method_words import about, make, name_of
from laconic.lab.seeds import seed_for
from laconic.lab.show import Show
from laconic.lab.signals import StopWish, noted_wishes
from laconic.lab.spec import Spec
from laconic.lab.talk import AgreedError, Talk, Talking, together
from laconic.lab.training import Course
from laconic.lab.tuning import told
from laconic.lab.waits import told as waits_told
from laconic.lab.work import Place, Work


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run to make: its spec, its folder, and whether it goes on from that folder's last checkpoint."""

    spec: Spec
    folder: Path
    resume: bool = False
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What came of the trials: the results of those that ran, why the rest did not, and whether it was stopped."""

    results: tuple[dict[str, Any], ...]
    error: str | None = None
    stopped: bool = False


def run_trials(trials: tuple[Trial, ...], environment: dict[str, Any], quiet: bool) -> Ending:
    """Make runs one after the other; one that cannot be made is passed over. On every rank; all return the same."""
    talk = Talk()
    if talk.rank:
        # What warns, warns on every rank; the first says it.
        warnings.simplefilter("ignore")
    with noted_wishes() as wish, Show(hidden=quiet or talk.rank != 0, boards=talk.rank == 0) as show:
        seat = Seat(talk=talk, wish=wish, show=show)
        # Started one by one, ranks may name their folders by different seconds.
        return one_by_one(talk.of_first(trials), lambda trial: run_trial(trial, seat, environment))


def one_by_one(trials: Sequence[Trial], run: Callable[[Trial], dict[str, Any]]) -> Ending:
    """Make runs one after the other until one is stopped; one that cannot be made is passed over."""
    results: list[dict[str, Any]] = []
    errors: list[str] = []
    for trial in trials:
        try:
            results.append(run(trial))
        except AgreedError as failure:
            errors.append(f"{trial.spec.method}: {failure}" if len(trials) > 1 else str(failure))
            continue
        finally:
            gc.collect()
        if not results[-1]["finished"]:
            break
    stopped = bool(results) and not results[-1]["finished"]
    return Ending(results=tuple(results), error="\n".join(errors) or None, stopped=stopped)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a rank sits: whom it talks to, who shows its runs, and what else differs where ranks share a process.

    ``about`` goes into a run's spec.json, and what is ``told`` at its end into result.json. ``backend`` is what
    gradients travel by; by default that of the process group.
    """

    talk: Talking
    wish: StopWish
    show: Show
    ways: Ways = field(default_factory=Ways)
    work: Callable[[Work], Work] = lambda work: work
    about: Mapping[str, Any] = field(default_factory=dict)
    told: Callable[[], dict[str, Any]] = dict
    backend: str | None = None


def run_trial(trial: Trial, seat: Seat, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Make one run on this rank, and return what it came to. On every rank."""
    spec, folder, talk = trial.spec, RunFolder(trial.folder), seat.talk
    place = place_of(spec, talk)
    work = together(talk, lambda: seat.work(prepare(spec, place)))
    begun = together(talk, lambda: (folder.latest(), folder.course()) if trial.resume else (0, None))
    step, course = talk.of_first(begun)
    # On another number of ranks an epoch has other steps; the run keeps its own.
    course = course or Course.of(spec.settled, work.steps_per_epoch)
    try:
        method = make(spec.method, clip=course.clip)
        loop = Loop(work, course, method, place, talk, folder, resumes=step > 0, ways=seat.ways)
    except (ValueError, TypeError) as failure:
        # What attach refuses it refuses on every rank; later, others would wait for the rank that raised.
        raise AgreedError(str(failure)) from None
    if step:
        together(talk, partial(checkpoint.go_on, loop, step))
    settled = spec.as_dict() | {"course": asdict(course), "metric": asdict(work.metric)} | dict(seat.about)
    about = dict(environment) | _ran_on(place, seat.backend)
    together(talk, lambda: folder.begin(settled, about, from_step=step) if talk.rank == 0 else None)
    watcher = seat.show.begin(spec.method, course.steps, work.metric, trial.folder, trial.tensorboard)
    outcome = loop.run(watcher, seat.wish, checkpoint_every=spec.checkpoint_every)
    result: dict[str, Any] = finite(_result(trial, loop, outcome) | seat.told())
    together(talk, lambda: _finish(folder, result, loop.unwritten) if talk.rank == 0 else None)
    return result


def _finish(folder: RunFolder, result: dict[str, Any], unwritten: str | None) -> None:
    if unwritten is not None:
        raise OSError(unwritten)
    folder.finish(result)


def place_of(spec: Spec, talk: Talking) -> Place:
    """Return where this rank stands in a run."""
    device = torch.device("cuda", torch.cuda.current_device()) if spec.device == "cuda" else torch.device("cpu")
    return Place(
        rank=talk.rank,
        ranks=talk.ranks,
        device=device,
        seed=spec.settled.seed,
        batch=spec.settled.batch or 1,
        data_home=Path(spec.data_home),
    )


def prepare(spec: Spec, place: Place) -> Work:
    """Make a run's task ready, with weights that are the same on every rank."""
    torch.manual_seed(seed_for(place.seed, "weights"))
    work = spec.task.prepare(place)
    work.model.to(place.device)
    return work


def _ran_on(place: Place, backend: str | None) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else None
    return {
        "ranks": place.ranks,
        "threads": torch.get_num_threads(),
        "backend": backend or dist.get_backend(),
        "gpu": gpu,
        "kernels": kernels.in_use(place.device),
        "host": socket.gethostname(),
    }


def _result(trial: Trial, loop: Loop, outcome: Outcome) -> dict[str, Any]:
    """Put down what a run came to; the first ten keys are those of every summary."""
    word, stats, totals = trial.spec.method, outcome.stats, outcome.totals
    said = about(name_of(word))
    return {
        "metric": loop.work.metric.name,
        "best": totals.best,
        "final": outcome.scores.get(loop.work.splits[0]),
        "wire_bytes_sent_per_rank": stats.wire_bytes,
        "dense_bytes_per_rank": stats.dense_bytes,
        "ratio": stats.ratio,
        "steps": outcome.steps,
        "syncs": stats.syncs,
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
        "link_bytes_sent_per_rank": stats.link_bytes,
        "setup_bytes": stats.setup_bytes,
        "lab_bytes": totals.lab_bytes + stats.look_bytes,
        "weights_sha256": outcome.weights_sha256,
        "entries": {layer.name: layer.entries for layer in stats.layers},
        "what": said.what,
        "paper": said.paper,
        "settings": repr(loop.method),
        "waits": None if outcome.waits is None else waits_told(outcome.waits),
    } | ({} if stats.tuning is None else {"tuning": told(stats.tuning, curve=True)})
