"""DGC's selection: a threshold estimated from a sample, corrected where it is far off.

Lin et al., "Deep Gradient Compression", ICLR 2018; written from its formulas.

What passes is found in one of two ways, with the same result. One counts as published, segment by segment: each try
is a pass, and on a GPU a question to the device. The other asks nothing and does all segments at once: n entries
pass a threshold where the n-th largest reaches it, so a few ranks tell how every count would have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from math import ceil, inf
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_share, check_whole
from laconic.compressors.selection import density_plan, kept, take_known_
from laconic.kernels import reference
from laconic.kernels.copies import numbers_on
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan

_LEAST_SAMPLE = 256
# Times the wanted number: fewer are too few, more are too many.
_FEW, _MANY = 0.8, 1.3
# How often a threshold falls, and to what part of itself.
_FALLS, _FALL = 10, 0.8
# On CPU, where asking costs nothing, ranks are quicker if at most one entry of so many is wanted.
_LEAST_RATIO = 100


@dataclass(frozen=True, kw_only=True)
class SampledTopK:
    """Send about the ``density`` share of largest magnitude, never more, by a threshold from a sample.

    A random stride over ``sample`` of the entries (256 at least) gives the threshold. If more than 1.3 times
    the wanted number pass, the exact largest among them are taken; while fewer than 0.8 times pass, the
    threshold falls by a fifth, at most ten times.
    """

    name: ClassVar[str] = "sampled_topk"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = False
    density: float
    sample: float = 0.01
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write SampledTopK(density=0.001).")
        check_share("sample", self.sample, "For 1% of the entries write 0.01.")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def at_density(self, density: float) -> SampledTopK:
        """Return the same selection of another share."""
        return replace(self, density=density)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:  # noqa: ARG002
        """Say that small segments are sent whole, and that each other one sends its share at most."""
        below, density = self.whole_below, self.density
        return density_plan(segments, step=step, rooms={}, whole_below=below, density=density)

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take the entries that pass; leave in x exactly what was not taken."""
        known = take_known_(x, plan)
        few = _LEAST_RATIO * plan.capacity <= plan.choosing.numel
        found = _by_rank_(x, plan, self.sample) if x.is_cuda or few else _by_count_(x, plan, self.sample)
        # What was cut off above the share is not owed room later: the share is all that is ever wanted.
        wanted = torch.minimum(found.taken.wanted, numbers_on(x.device, plan.rooms))
        return Payload(
            known=known,
            positions=found.taken.positions,
            values=found.taken.values,
            wanted=wanted,
            thresholds=found.thresholds,
        )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What was taken, and the threshold of each segment that it passed."""

    taken: kernels.Taken
    thresholds: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sample:
    """Which entries are looked at, one segment's behind the other's, if every stride begins at its first entry.

    ``ends`` has for each the end of its segment. A segment's sample has the size told, or one entry less where the
    stride begins late.
    """

    strides: tuple[int, ...]
    sizes: tuple[int, ...]
    first: Tensor
    ends: Tensor


@lru_cache(maxsize=64)
def _sample(choosing: Segments, share: float, device: torch.device) -> _Sample:
    strides = tuple(max(1, s.size // max(_LEAST_SAMPLE, ceil(s.size * share))) for s in choosing)
    firsts = [torch.arange(s.offset, s.offset + s.size, d) for s, d in zip(choosing, strides, strict=True)]
    sizes = tuple(first.numel() for first in firsts)
    ends = torch.tensor([s.offset + s.size for s in choosing]).repeat_interleave(torch.tensor(sizes))
    return _Sample(
        strides=strides,
        sizes=sizes,
        first=torch.cat(firsts).to(device, non_blocking=True),
        ends=ends.to(device, non_blocking=True),
    )


def _seen(x: Tensor, plan: Plan, sample: _Sample) -> Tensor:
    """Return the samples of all segments: each stride begins at a random entry."""
    begins = [_draw(plan.step, s.name) % stride for s, stride in zip(plan.choosing, sample.strides, strict=True)]
    begin = torch.tensor(begins, dtype=torch.int64).to(x.device, non_blocking=True)
    at = _each(begin, sample.sizes).add_(sample.first)
    # A zero in the stead of an entry too many is never among the largest that are asked for.
    outside = at >= sample.ends
    return x.index_select(0, at.masked_fill_(outside, 0)).masked_fill_(outside, 0)


def _draw(step: int, name: str) -> int:
    return int.from_bytes(blake2b(f"{step}/{name}".encode(), digest_size=8).digest(), "little")


def _each(numbers: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return for each entry of segments of these sizes its segment's number."""
    return numbers.repeat_interleave(numbers_on(numbers.device, sizes), output_size=sum(sizes))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ranks:
    """How many of the largest are looked at, a number a segment each.

    ``near``: one more than may pass before they are too many; ``many`` says where a segment has so many.
    ``enough``: the least that are not too few. ``sampled``: of the sample, the share. ``layout`` has the near, the
    near again and the samples.
    """

    near: tuple[int, ...]
    enough: tuple[int, ...]
    sampled: tuple[int, ...]
    many: Tensor
    layout: Segments


@lru_cache(maxsize=64)
def _ranks(choosing: Segments, rooms: tuple[int, ...], sample: _Sample, device: torch.device) -> _Ranks:
    both = list(zip(choosing, rooms, strict=True))
    near = tuple(min(s.size, int(_MANY * room) + 1) for s, room in both)
    sizes = (*near, *near, *sample.sizes)
    return _Ranks(
        near=near,
        enough=tuple(ceil(_FEW * room) for room in rooms),
        sampled=tuple(
            kept(s.size // stride, room / max(1, s.size))
            for (s, room), stride in zip(both, sample.strides, strict=True)
        ),
        many=torch.tensor([n > _MANY * room for n, room in zip(near, rooms, strict=True)]).to(device),
        layout=Segments.of([str(i) for i in range(len(sizes))], sizes),
    )


@lru_cache(maxsize=64)
def _fallen(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return what part of itself a threshold is after each fall, in a column."""
    return torch.tensor([[_FALL**i] for i in range(_FALLS + 1)], dtype=dtype).to(device)


def _by_count_(x: Tensor, plan: Plan, share: float) -> _Found:
    """Take what passes, by counting; leave in x exactly what was not taken."""
    if not plan.capacity:
        return _nothing(x, plan)
    sample = _sample(plan.choosing, share, x.device)
    asked = _ranks(plan.choosing, plan.rooms, sample, x.device).sampled
    passed, thresholds = [], x.new_zeros(len(plan.rooms))
    parts = zip(plan.choosing.views(x), _seen(x, plan, sample).abs_().split(sample.sizes), asked, strict=True)
    for i, (view, seen, count) in enumerate(parts):
        guess = seen.topk(count, sorted=False).values.min() if count else thresholds[i]
        mask, thresholds[i] = _corrected(view.abs(), guess, plan.rooms[i])
        passed.append(mask)
    taken = kernels.take_where_(x, plan.choosing, passed, plan.rooms, turn=plan.step)
    return _Found(taken=taken, thresholds=thresholds)


def _corrected(magnitude: Tensor, guess: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Return which entries pass, and the threshold that they passed."""
    for threshold in (guess * _fallen(guess.device, guess.dtype)).flatten():
        passed = magnitude >= threshold
        count = int(torch.count_nonzero(passed))
        if count >= _FEW * room:
            break
    if count > _MANY * room:
        at = torch.nonzero(passed).flatten()
        # Among equals the first, as where they are ranked.
        top = at[reference.take_top_(magnitude[at], Segments.of([""], [count]), [room]).positions]
        passed, threshold = torch.zeros_like(passed).index_fill_(0, top, value=True), magnitude[top].min()
    return passed, threshold


def _by_rank_(x: Tensor, plan: Plan, share: float) -> _Found:
    """Take what passes, by ranks; leave in x exactly what was not taken."""
    if not plan.capacity:
        return _nothing(x, plan)
    sample = _sample(plan.choosing, share, x.device)
    asked = _ranks(plan.choosing, plan.rooms, sample, x.device)
    seen = _seen(x, plan, sample)
    near = kernels.take_top_(x, plan.choosing, asked.near)
    counts = (*plan.rooms, *asked.enough, *asked.sampled)
    ranked = kernels.take_top_(torch.cat([near.values, near.values, seen]), asked.layout, counts)
    magnitudes = torch.cat([near.values, ranked.values]).abs_()
    lengths = (*asked.near, *counts)
    if magnitudes.numel() != sum(lengths):
        # Where there is a NaN fewer may be found: such a step is dropped.
        x.index_copy_(0, near.positions, near.values)
        return _nothing(x, plan)
    bar = _bar(torch.segment_reduce(magnitudes, "min", lengths=numbers_on(x.device, lengths), unsafe=True), asked)
    # Where too many pass, infinity marks the largest: among equals no threshold tells who they are.
    # Elsewhere -0 is added, which changes no bit.
    mark = torch.full_like(bar.threshold, -0.0).masked_fill_(bar.crowd, inf)
    marked = near.values.masked_fill(_each(bar.crowd, asked.near), 0)
    marked.index_add_(0, ranked.positions[: plan.capacity], _each(mark, plan.rooms))
    x.index_copy_(0, near.positions, marked)
    taken = kernels.take_above_(x, plan.choosing, bar.below, plan.rooms, turn=plan.step)
    # What is not a number may have let others pass: they are not here, and their step is dropped.
    at = torch.searchsorted(near.positions, taken.positions).clamp_(max=near.positions.numel() - 1)
    values = torch.where(taken.values.isinf(), near.values.index_select(0, at), taken.values)
    # v - v is zero exactly, and an unused place takes away nothing: no index needs to be left out.
    x.index_copy_(0, near.positions, near.values).index_add_(0, taken.positions, values, alpha=-1)
    thresholds = torch.where(bar.crowd, bar.share, bar.threshold)
    # The least of no entries is infinite.
    thresholds = thresholds if all(plan.rooms) else thresholds.nan_to_num_(posinf=0.0)
    return _Found(taken=replace(taken, values=values), thresholds=thresholds)


@dataclass(frozen=True, kw_only=True)
class _Bar:
    """A segment's threshold, the number below it, whether too many pass, and the least magnitude of the share."""

    threshold: Tensor
    below: Tensor
    crowd: Tensor
    share: Tensor


def _bar(least: Tensor, asked: _Ranks) -> _Bar:
    """Let thresholds fall as far as they must, given the least of the near, the share, enough, and the sample."""
    near, share, enough, guess = least.view(4, -1).unbind()
    tried = guess * _fallen(least.device, least.dtype)
    # One fall for each try that the last of enough does not reach.
    threshold = tried.gather(0, (tried[:-1] > enough).sum(0, keepdim=True)).squeeze(0)
    crowd = asked.many & (near >= threshold)
    # To exceed the number below it is to reach it; every magnitude exceeds -1, infinity alone the largest number.
    below = torch.nextafter(threshold, torch.zeros_like(threshold)).masked_fill_(threshold == 0, -1)
    below.masked_fill_(crowd, torch.finfo(least.dtype).max)
    return _Bar(threshold=threshold, below=below, crowd=crowd, share=share)


def _nothing(x: Tensor, plan: Plan) -> _Found:
    none = x.new_zeros(len(plan.rooms))
    taken = kernels.Taken(positions=none[:0].to(torch.int64), values=x.new_empty(0), wanted=none.to(torch.int64))
    return _Found(taken=taken, thresholds=none)
