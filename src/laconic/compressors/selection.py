"""What selecting compressors share: how many to keep, and which parameters are too small to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from sys import maxsize

import torch
from torch import Tensor

from laconic import kernels
from laconic.kernels.copies import copy_on
from laconic.segments import Segment, Segments
from laconic.types import Fresh, Payload, Plan


def kept(size: int, density: float) -> int:
    """Return how many of ``size`` entries a density keeps: the nearest whole number, at least one of any.

    >>> kept(1000, 0.01), kept(10, 0.01), kept(0, 0.01)
    (10, 1, 0)
    """
    return min(size, max(1, round(size * density)))


@lru_cache(maxsize=1024)
def split_small(segments: Segments, below: int) -> tuple[Segments, Segments]:
    """Return the segments with fewer than ``below`` entries, and the others."""
    small = tuple(s for s in segments if s.size < below)
    large = tuple(s for s in segments if s.size >= below)
    return Segments(small), Segments(large)


@lru_cache(maxsize=1024)
def positions_of(segments: Segments) -> Tensor:
    """Return every position that the segments cover."""
    return torch.cat([torch.empty(0, dtype=torch.int64), *(_range(s) for s in segments)])


@lru_cache(maxsize=1024)
def rows_of(segments: Segments, chosen: Segments, device: torch.device) -> Tensor:
    """Return where the chosen ones stand among the segments, on the device: made once, copied never again."""
    place = {name: i for i, name in enumerate(segments.names)}
    return torch.tensor([place[name] for name in chosen.names], dtype=torch.int64, device=device)


def picked(numbers: Tensor, segments: Segments, chosen: Segments) -> Tensor:
    """Return those of a number a segment that are the chosen ones'."""
    # They have the order of the segments.
    return numbers if len(chosen) == len(segments) else numbers[rows_of(segments, chosen, numbers.device)]


def fixed_plan(segments: Segments, *, whole_below: int, room: Callable[[int], int], step: int = 0) -> Plan:
    """Return the plan of a compressor whose counts are fixed: small segments whole, of others their ``room``."""
    small, large = split_small(segments, whole_below)
    return Plan(
        known=positions_of(small),
        known_sizes=tuple(s.size for s in small),
        choosing=large,
        rooms=tuple(room(s.size) for s in large),
        step=step,
    )


def counted_plan(
    segments: Segments,
    *,
    step: int,
    rooms: Mapping[str, int],
    whole_below: int,
    first: Callable[[int], int],
) -> Plan:
    """Return the plan of a compressor whose counts vary: small segments whole, agreed rooms for the others.

    ``first`` guesses the room of a segment of a size that no rank has counted yet.
    """
    small, large = split_small(segments, whole_below)
    return Plan(
        known=positions_of(small),
        known_sizes=tuple(s.size for s in small),
        choosing=large,
        rooms=tuple(min(s.size, max(1, rooms.get(s.name, first(s.size)))) for s in large),
        counted=True,
        step=step,
    )


def density_plan(
    segments: Segments, *, step: int, rooms: Mapping[str, int], whole_below: int, density: float
) -> Plan:
    """Return the plan of a compressor that aims at a density: that share at first, and everything whole at 1."""
    below = whole_below if density < 1 else maxsize
    return counted_plan(segments, step=step, rooms=rooms, whole_below=below, first=lambda size: kept(size, density))


def spread(view: Tensor) -> tuple[Tensor, Tensor]:
    """Return the population deviation and the mean of a segment; zeros for an empty one."""
    if view.numel() == 0:
        return view.new_zeros(()), view.new_zeros(())
    deviation, mean = torch.std_mean(view, correction=0)
    return deviation, mean


def take_known_(x: Tensor, plan: Plan) -> Tensor:
    """Take the plan's known entries; x is left zero there."""
    if isinstance(plan.known, slice):
        values = x[plan.known].clone()
        x[plan.known].zero_()
    else:
        known = copy_on(x.device, plan.known)
        if not known.numel():
            return x.new_empty(0)
        values = x[known]
        # Assigning a number would make the host wait.
        x.index_fill_(0, known, 0)
    return values


def take_beyond_(x: Tensor, segments: Segments, plan: Plan, fresh: Fresh, thresholds: Tensor) -> Payload:
    """Take the known entries and what exceeds its threshold, of nothing the largest; leave the rest in x."""
    known = take_known_(x, plan)
    largest = picked(fresh.largest, segments, plan.choosing)
    taken = kernels.take_above_(x, plan.choosing, thresholds, plan.rooms, largest=largest, turn=plan.step)
    return Payload(
        known=known, positions=taken.positions, values=taken.values, wanted=taken.wanted, thresholds=thresholds
    )


def _range(segment: Segment) -> Tensor:
    return torch.arange(segment.offset, segment.offset + segment.size)
