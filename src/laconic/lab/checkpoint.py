"""A run's checkpoints: written by all ranks together, and gone on from by as many, or by another number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import laconic
from laconic.lab.folder import RunFolder
from laconic.lab.meter import Meter, Totals
from laconic.lab.talk import AgreedError, together
from laconic.resharding import mean_of, stretch

if TYPE_CHECKING:
    from laconic.lab.loop import Loop


def save(loop: Loop) -> None:
    """Write this rank's part, and once all have written theirs make it the checkpoint to go on from.

    If one of them cannot, a full disk say, all raise ``AgreedError``, and the last one stays the one to go on from.
    """
    try:
        together(loop.talk, partial(_write, loop))
        together(loop.talk, lambda: loop.folder.seal(loop.step) if loop.place.rank == 0 else None)
    except AgreedError as error:
        if loop.place.rank == 0:
            loop.folder.drop(loop.step)
        last = loop.talk.of_first(loop.folder.latest())
        there = f"The last one, of step {last}, is whole" if last else "There is none before it"
        raise AgreedError(
            f"the checkpoint of step {loop.step} could not be written: {error}. {there}: see to the cause, and go "
            f"on with laconic train --resume {loop.folder.path}."
        ) from None


def _write(loop: Loop) -> None:
    model, folder, place = loop.work.model, loop.folder, loop.place
    own = {"parameters": dict(model.named_parameters()), "optimizer": loop.optimizer.state_dict()}
    mine = {"buffers": dict(model.named_buffers()), "link": loop.link.state_dict()}
    mine |= {"work": loop.work.state_dict(), "meter": loop.meter.state_dict()}
    # Within a round of local steps every rank has its own.
    folder.save_rank(loop.step, _name(place.rank), mine if loop.method.local is None else mine | own)
    if place.rank == 0:
        shared = {"ranks": place.ranks, "totals": loop.totals.as_dict(), "scores": loop.scores, "last": loop.last}
        shared["epoch"] = loop.totals.epochs_at(loop.step, loop.work.steps_per_epoch)
        shared["waits"] = None if loop.waits is None else asdict(loop.waits)
        folder.save_rank(loop.step, "shared", own | shared)


def go_on(loop: Loop, step: int) -> None:
    """Go on from a checkpoint: on as many ranks as wrote it to the same bits, on others with nothing lost."""
    shared, place = loop.folder.load_rank(step, "shared"), loop.place
    # Before ranks were written down, as many had to go on.
    wrote = shared.get("ranks", place.ranks)
    if wrote == place.ranks:
        mine = loop.folder.load_rank(step, _name(place.rank))
    else:
        mine = regrouped(loop.folder, step, wrote=wrote, rank=place.rank, ranks=place.ranks)
    own = shared | mine
    loop.work.model.load_state_dict(own["parameters"] | mine["buffers"], strict=False)
    loop.optimizer.load_state_dict(own["optimizer"])
    loop.link.load_state_dict(mine["link"])
    loop.totals, loop.step = Totals(**shared["totals"]), step
    loop.meter = Meter(place.device, loop.totals, loop.ways.clock)
    loop.scores, loop.last = shared["scores"], shared["last"]
    # The link that counted them is gone.
    loop.totals.lab_bytes, loop.totals.waits_bytes = loop.totals.lab_bytes + loop.totals.waits_bytes, 0
    waits = shared.get("waits") if wrote == place.ranks else None
    loop.waits = None if waits is None else laconic.Waits(**waits)
    if wrote == place.ranks:
        loop.work.load_state_dict(mine["work"])
        loop.meter.load_state_dict(mine["meter"])
    else:
        # From here on an epoch has another number of steps.
        loop.totals.steps_before, loop.totals.epochs_before = step, shared["epoch"]


def _name(rank: int) -> str:
    return f"rank-{rank:05d}"


def regrouped(folder: RunFolder, step: int, *, wrote: int, rank: int, ranks: int) -> dict[str, Any]:
    """Return what this rank goes on from, of what another number of ranks wrote.

    What they owe is merged or shared out, and an optimizer that each had of its own is the mean of theirs. What a
    step leaves behind for the next of the same stream of data is left out: streams are others now.
    """
    parts = [folder.load_rank(step, _name(each)) for each in range(wrote)]
    local = "parameters" in parts[0]
    models = [part["parameters"] for part in parts] if local else None
    link = laconic.resharded([part["link"] for part in parts], ranks=ranks, models=models)[rank]
    shares = stretch(wrote, ranks, rank)
    nearest = parts[max(shares, key=lambda share: share.weight).rank]
    mine = {"buffers": nearest["buffers"], "link": link}
    if local:
        optimizers, weights = [parts[s.rank]["optimizer"] for s in shares], [float(s.weight) for s in shares]
        mine |= {"parameters": nearest["parameters"], "optimizer": mean_optimizer(optimizers, weights)}
    return mine


def mean_optimizer(states: Sequence[dict[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    """Return the mean of what optimizers remember of each parameter, over those that remember something finite.

    One that has taken no step yet, or was reset, remembers nothing. Counts and settings are the first one's.
    """
    known = sorted({index for each in states for index in each["state"]})
    return states[0] | {
        "state": {index: _mean([each["state"].get(index) for each in states], weights) for index in known}
    }


def _mean(each: Sequence[dict[str, Any] | None], weights: Sequence[float]) -> dict[str, Any]:
    """Return the mean of what is remembered of one parameter."""
    pairs = [
        (one, weight) for one, weight in zip(each, weights, strict=True) if one is not None and _is_finite(one)
    ]
    if not pairs:
        return {}
    total = sum(weight for _, weight in pairs)
    first = dict(pairs[0][0])
    for name, value in first.items():
        if _is_vector(value):
            first[name] = mean_of([one[name] for one, _ in pairs], [weight / total for _, weight in pairs])
    return first


def _is_finite(one: dict[str, Any]) -> bool:
    return all(bool(value.isfinite().all()) for value in one.values() if _is_vector(value))


def _is_vector(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0
