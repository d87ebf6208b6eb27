"""What a rank does with entries of its range: it adds them up, and tells the largest sums of every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.kernels.reference import share_of
from laconic.segments import Segments
from laconic.shards import Part, Shard
from laconic.types import Payload, Plan
from laconic.wire.values import on_device

# Fractions in whole numbers.
_ONE = 1 << 32


def fitting_(
    x: Tensor, taken: Payload, plan: Plan, shards: Sequence[Shard], *, turn: int
) -> tuple[wire.Entries, Tensor]:
    """Give back to x what the ranges have no room for; return the rest, and how many there were for each range.

    Where not all fit, those from a place on that moves with the ``turn`` come first, so that none waits for ever.
    Behind the last entry positions lie beyond x. Nothing is copied from the device.
    """
    device, numel = x.device, x.numel()
    ends = on_device([shard.part.span.stop for shard in shards], device)
    rooms = on_device([shard.part.room for shard in shards], device)
    place = torch.arange(taken.positions.numel(), device=device)
    count = torch.minimum(taken.wanted, on_device(plan.rooms, device)).sum()
    positions = torch.where(place < count, taken.positions.to(torch.int64), numel)
    stops = torch.searchsorted(positions, ends)
    starts = torch.cat([stops.new_zeros(1), stops[:-1]])
    had = stops - starts
    # Behind the last entry there is one range more, without room.
    owner = torch.searchsorted(ends, positions, right=True)
    rooms, many, starts = (torch.cat([t, t.new_zeros(1)]) for t in (rooms, had, starts))
    first = (many.to(torch.float64) * share_of(turn)).to(torch.int64)
    keeps = (place - starts[owner] - first[owner]) % many.clamp(min=1)[owner] < rooms[owner]
    if x.numel():
        x.index_add_(0, taken.positions, torch.where(keeps | (place >= count), 0, taken.values))
    most = min(place.numel(), sum(shard.part.room for shard in shards))
    # A spare place behind the room collects the others.
    to = torch.where(keeps, keeps.cumsum(0) - 1, most)
    at = positions.new_full((most + 1,), numel).scatter_(0, to, positions)[:most]
    values = taken.values.new_zeros(most + 1).scatter_(0, to, taken.values)[:most]
    return wire.Entries(known=taken.known, positions=at, values=values), had


def summed(heard: wire.Heard, part: Part, ranks: int, *, turn: int) -> tuple[wire.Entries, int]:
    """Return the mean over ranks: known entries, and of chosen ones the largest; and how many given ones that is.

    Ranks are divided for and added up in their order. Each piece of a parameter gets room for its share of the
    entries that came, so that none is starved by a louder one; no rank needs to know a threshold for that.
    """
    given, scale = heard.entries, 1.0 / ranks
    known = torch.zeros_like(given.known[: part.known])
    for row in given.known.view(ranks, part.known):
        known += row * scale
    union, place = torch.unique(given.positions, return_inverse=True)
    sums = torch.zeros_like(given.values[: union.numel()])
    kernels.add_payloads_(sums, place.split(heard.counts), given.values.split(heard.counts), scale=scale)
    edges = on_device([piece.stop for piece in part.pieces], union.device)
    came, there = (
        torch.bincount(torch.searchsorted(edges, at, right=True), minlength=len(part.pieces)).tolist()
        for at in (given.positions, union)
    )
    names = [str(i) for i in range(len(there))]
    top = kernels.take_top_(sums, Segments.of(names, there), quotas(came, there, part.room, turn=turn))
    count = int(top.wanted.sum())
    at, values = top.positions[:count], top.values[:count]
    chosen = torch.zeros(union.numel(), dtype=torch.bool, device=union.device)
    chosen[at] = True
    return wire.Entries(known=known, positions=union[at], values=values), int(chosen[place].sum())


def quotas(came: Sequence[int], there: Sequence[int], room: int, *, turn: int = 0) -> list[int]:
    """Share room out in proportion to what came; of each there are only so many, and others get what is over.

    Shares are rounded up or down such that each has its own over many turns; one below an entry comes now and then.

    >>> [quotas([6, 2, 1], [2, 2, 1], 3, turn=turn) for turn in range(3)]
    [[2, 0, 1], [2, 1, 0], [2, 0, 1]]
    """
    given, shift = [0] * len(there), int(share_of(turn) * _ONE)
    left = min(room, sum(there))
    while left:
        open_ = [i for i, most in enumerate(there) if given[i] < most]
        total = sum(came[i] for i in open_)
        ends = [(left * end * _ONE // total + shift) // _ONE for end in accumulate(came[i] for i in open_)]
        for i, (begin, end) in zip(open_, pairwise([0, *ends]), strict=True):
            given[i] = min(there[i], given[i] + end - begin)
        left = min(room, sum(there)) - sum(given)
    return given


def owe_(x: Tensor, plan: Plan, meant: wire.Entries, sent: wire.Entries, *, known: slice, times: int = 1) -> None:
    """Add to x what rounding lost, so many times; ``known`` says of which of the plan's known entries."""
    lost = (meant.known - sent.known) * times
    if isinstance(plan.known, slice):
        x[plan.known][known] += lost
    else:
        x.index_add_(0, plan.known[known].to(x.device, non_blocking=True), lost)
    if meant.values.numel():
        # Beyond x both are zero.
        x.index_add_(0, meant.positions.clamp(max=x.numel() - 1), (meant.values - sent.values) * times)


def found(positions: Tensor, among: Tensor) -> Tensor:
    """Return of each position whether it is among others, which ascend."""
    if not among.numel():
        return torch.zeros_like(positions, dtype=torch.bool)
    place = torch.searchsorted(among, positions).clamp(max=among.numel() - 1)
    return among[place] == positions
