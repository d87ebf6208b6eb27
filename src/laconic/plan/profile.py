"""The work's own step, timed: alone, and within a DDP that exchanges nothing; with its buckets and gradients."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from laconic.integrations.momentum import movable
from laconic.lab.peers.peer import in_ddp
from laconic.layout import rows_of
from laconic.plan.bucketed import Bucketed, note, now
from laconic.plan.facts import Profile
from laconic.plan.measure_link import talking_device
from laconic.plan.work import OfSize, Subject, in_buckets
from laconic.segments import Segments

# Gradients kept for rehearsals: of more steps only where they are small.
_KEPT_STEPS, _KEPT_ENTRIES = 8, 100_000_000
# DDP deals its buckets out anew after the first step.
_SETTLED = 3


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A profile, and what a rehearsal wants of the work: its buckets, some gradients, its running statistics."""

    profile: Profile
    buckets: tuple[Segments, ...]
    gradients: tuple[tuple[Tensor, ...], ...]
    buffers: tuple[int, ...] = ()
    momentum: float = 0.0


def profile(subject: Subject, *, group: dist.ProcessGroup, steps: int, warmup: int, seconds: float) -> Seen:
    """Time steps on every rank of the group at once, alone and within DDP in turn.

    All ranks begin a step together, and of those within DDP the slowest counts.
    """
    device = next(subject.model.parameters()).device
    optimizer = subject.optimizer or torch.optim.SGD(subject.model.parameters(), lr=0.01)
    ddp = in_ddp(subject.model, process_group=group, **_no_buffers())
    bucketed, until = Bucketed(), time.perf_counter() + seconds
    ddp.register_comm_hook(bucketed, note)
    alone: list[list[float]] = []
    wrapped: list[list[float]] = []
    ready: list[list[float]] = []
    kept: list[tuple[Tensor, ...]] = []
    most = min(_KEPT_STEPS, max(1, _KEPT_ENTRIES // sum(p.numel() for p in subject.model.parameters())))
    while len(wrapped) < max(warmup, _SETTLED) + steps and not _enough(group, wrapped, until):
        # DDP without gradients to exchange leaves them where they are, as if it were not there.
        with ddp.no_sync():
            alone.append(_timed(subject, ddp, optimizer, group, device))
        bucketed.keeps = len(wrapped) >= _SETTLED and len(kept) < most
        bucketed.clear()
        wrapped.append(_timed(subject, ddp, optimizer, group, device))
        ready.append([stamp - wrapped[-1][3] for stamp in bucketed.stamps])
        if bucketed.gradients:
            kept.append(tuple(bucketed.gradients))
    # The first steps have other buckets than the rest.
    alone, wrapped, ready = (steps_of[_SETTLED:][-steps:] for steps_of in (alone, wrapped, ready))
    seen = _seen(subject.model, group, alone, wrapped, ready, bucketed, kept)
    return replace(seen, momentum=_momentum(optimizer))


def invented(work: OfSize, *, entries: int, device: torch.device | None = None, seed: int = 0) -> Seen:
    """Lay an invented model out, with normal gradients; DDP's copies into buckets are timed here."""
    whole, draw = work.layout(), torch.Generator().manual_seed(seed)
    buckets = in_buckets(whole)
    kept = _within(buckets, entries)
    gradients, other = (tuple(torch.randn(b.numel, generator=draw).to(device) for b in kept) for _ in range(2))
    copy = _copying(gradients) * whole.numel / sum(b.numel for b in kept)
    forward, backward = work.parts()
    sizes, ready, done = tuple(b.numel for b in buckets), [], 0
    for size in sizes:
        done += size
        ready.append((backward + copy) * done / whole.numel)
    seen = Profile(
        forward=forward,
        ready=tuple(ready),
        backward=backward + copy,
        optimizer=work.step_seconds - forward - backward,
        alone=work.step_seconds,
        sizes=sizes,
        invented=True,
    )
    # Most who train with SGD have momentum.
    return cut(Seen(profile=seen, buckets=buckets, gradients=(gradients, other), momentum=0.9), kept)


def cut(seen: Seen, kept: tuple[Segments, ...]) -> Seen:
    """Leave only some buckets, for the whole model; gradients may be those of the kept already."""
    if len(kept) == len(seen.buckets):
        return seen
    places = [seen.buckets.index(bucket) for bucket in kept]
    factor = seen.profile.parameters / sum(b.numel for b in kept)
    sizes = tuple(round(b.numel * factor) for b in kept)
    last, ready, done = seen.profile.ready[-1], [], 0
    for size in sizes:
        done += size
        ready.append(last * done / sum(sizes))
    gradients = seen.gradients
    if len(gradients[0]) > len(kept):
        gradients = tuple(tuple(step[i] for i in places) for step in gradients)
    whole = seen.profile
    return replace(seen, profile=replace(whole, ready=tuple(ready), sizes=sizes), buckets=kept, gradients=gradients)


def _within(buckets: tuple[Segments, ...], entries: int) -> tuple[Segments, ...]:
    """Return buckets from all over the model that have so many entries, or one at least."""
    if sum(b.numel for b in buckets) <= entries:
        return buckets
    kept: list[int] = []
    # The middle first: the first bucket is a small one, and the last what was left over.
    for place in sorted(range(len(buckets)), key=lambda i: abs(i - len(buckets) / 2)):
        if not kept or sum(buckets[i].numel for i in [*kept, place]) <= entries:
            kept.append(place)
    return tuple(buckets[i] for i in sorted(kept))


def within(seen: Seen, entries: int) -> Seen:
    """Leave only so many entries to rehearse on."""
    return cut(seen, _within(seen.buckets, entries))


def _timed(
    subject: Subject, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup,
    device: torch.device,
) -> list[float]:  # fmt: skip
    """Return the seconds of forward, backward and the optimizer, and when backward began."""
    # Ranks begin together: what one lags behind is not another's step.
    if dist.get_world_size(group) > 1:
        dist.barrier(group)
    began = now(device)
    optimizer.zero_grad()
    loss = subject.loss(model)
    ahead = now(device)
    loss.backward()
    back = now(device)
    optimizer.step()
    return [ahead - began, back - ahead, now(device) - back, ahead]


def _seen(
    model: nn.Module, group: dist.ProcessGroup, alone: list[list[float]], wrapped: list[list[float]],
    ready: list[list[float]], bucketed: Bucketed, kept: list[tuple[Tensor, ...]],
) -> Seen:  # fmt: skip
    ranks = dist.get_world_size(group)
    everyone: list[list[list[float]]] = [[] for _ in range(ranks)]
    rows = [[*step[:3], *stamps] for step, stamps in zip(wrapped, ready, strict=True)]
    dist.all_gather_object(everyone, rows, group=group)
    # A step that exchanges is as long as the slowest rank's.
    slowest = [max(step, key=lambda row: sum(row[:3])) for step in zip(*everyone, strict=True)]
    forward, backward, optimizer, *stamps = (median(part) for part in zip(*slowest, strict=True))
    singles: list[float] = [0.0] * ranks
    dist.all_gather_object(singles, median(sum(step[:3]) for step in alone), group=group)
    places = {id(p): name for name, p in model.named_parameters()}
    sizes = {name: (p.numel(), rows_of(p)) for name, p in model.named_parameters()}
    buckets = []
    for ids in bucketed.parameters:
        names = [places[i] for i in ids]
        buckets.append(Segments.of(names, [sizes[n][0] for n in names], [sizes[n][1] for n in names]))
    return Seen(
        profile=Profile(
            forward=forward,
            ready=_rising(stamps),
            backward=max(backward, *stamps),
            optimizer=optimizer,
            alone=mean(singles),
            sizes=tuple(b.numel for b in buckets),
        ),
        buckets=tuple(buckets),
        gradients=tuple(kept),
        buffers=tuple(b.numel() for name, b in model.named_buffers() if name.endswith("running_mean")),
    )


def _enough(group: dist.ProcessGroup, done: Sequence[object], until: float) -> bool:
    """Whether time is up on the first rank, after six steps: all of them stop at the same."""
    if len(done) < 6:
        return False
    late = torch.tensor([float(time.perf_counter() > until)], device=talking_device())
    if dist.get_world_size(group) > 1:
        dist.broadcast(late, dist.get_global_rank(group, 0), group=group)
    return bool(late)


def _momentum(optimizer: torch.optim.Optimizer) -> float:
    """Return the momentum that a method could take over."""
    return float(optimizer.param_groups[0]["momentum"]) if movable(optimizer, scaled=False) else 0.0


def _copying(tensors: Sequence[Tensor]) -> float:
    """Return the seconds of copying these once."""
    into = [torch.empty_like(t) for t in tensors]
    seconds = []
    for _ in range(4):
        began = now(tensors[0].device)
        for to, t in zip(into, tensors, strict=True):
            to.copy_(t)
        seconds.append(now(tensors[0].device) - began)
    return median(seconds[1:])


def _rising(stamps: Sequence[float]) -> tuple[float, ...]:
    """Medians of moments, none before the one before it."""
    out: list[float] = []
    for stamp in stamps:
        out.append(max([stamp, *out[-1:]]))
    return tuple(out)


def _no_buffers() -> dict[str, Any]:
    """The setting with which DDP sends no buffers; its name changed in torch 2.13."""
    new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if new else "broadcast_buffers": False}
