"""Entries by chance, the larger the likelier, and unbiased: the stochastic sparsification (SS) of the CAT paper.

Khirirat et al., "A Flexible Framework for Communication-Efficient Machine Learning", AAAI 2021, toss a coin for
each entry; we draw a fixed number of them (Madow, 1949): the same formulas hold, and a message has a size.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.arguments import check_amounts, check_share, check_whole
from laconic.coding import Form
from laconic.compressors.selection import density_plan, fixed_plan, kept, rows_of, take_known_
from laconic.costs import Cost, Seconds
from laconic.descent import choose, omega, probabilities
from laconic.segments import Segment, Segments
from laconic.sizes import Size
from laconic.types import Fresh, Payload, Plan

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Beside the largest such entries are as good as zero, and their probabilities no numbers any more.
_NOTHING = 1e-200


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What the host must know of a segment: a digest of its bits, its number of nonzeros, whether all is finite."""

    digest: int
    nonzeros: int
    finite: bool


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """The places drawn from a segment, ascending, each one's chance, and how many it would have liked to draw."""

    places: Tensor
    chances: Tensor
    wanted: int


@dataclass(frozen=True, kw_only=True)
class Stochastic:
    """Send entry j of a segment with probability p_j = min(1, lambda |g_j|), as g_j / p_j: unbiased.

    lambda is such that the p_j sum to T, and exactly T entries are drawn. T is the ``density`` share of the
    segment. With a ``cost`` every rank chooses T of its own, the one that buys most expected descent for its cost
    (the multi-node form of CAT), between the shares ``floor`` and ``ceiling`` of the segment and at least 1;
    ``density`` is then the first guess of the room for it, and T never exceeds the room that was agreed on. For the
    cost a message has a header, what is sent whole and this segment's entries, their positions coded; of the codec
    and of what else travels a compressor knows nothing, and values count as if they were sent exactly.

    The draw depends on ``seed``, the step, the segment's name and its values: ranks whose gradients differ draw
    independently, and a step done again draws the same. x is left as g - sent: drop it (``memory="none"``), for
    what is unbiased owes nothing. Segments with fewer than ``whole_below`` entries are sent whole.

    >>> x, segments = torch.tensor([0.5, -3.0, 1.0, 2.0]), Segments.of(["w"], [4])
    >>> rule = Stochastic(density=0.5, whole_below=0)
    >>> plan = rule.plan(segments, step=0, rooms={})
    >>> rule.compress_(x, segments, plan, kernels.fresh_of(x, segments)).values, x
    (tensor([-3.2500,  3.2500]), tensor([ 0.5000,  0.2500,  1.0000, -1.2500]))
    """

    name: ClassVar[str] = "stochastic"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = False
    reads_before: ClassVar[bool] = False
    density: float
    cost: Cost | None = None
    whole_below: int = 1024
    seed: int = 0
    floor: float = 1e-5
    ceiling: float = 0.5

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write Stochastic(density=0.001).")
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")
        check_whole("seed", self.seed, 0, "Another one is another draw.")
        check_amounts(self.floor, self.ceiling)
        _check_cost(self.cost)
        # Only where each rank chooses T of its own, whatever the class says.
        object.__setattr__(self, "counts_vary", self.cost is not None)

    def at_density(self, density: float) -> Stochastic:
        """Return the same draw of another share."""
        return replace(self, density=density)

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Say that small segments are sent whole, and what room the others have: with a cost, the agreed one."""
        if self.cost is not None:
            return density_plan(
                segments, step=step, rooms=rooms, whole_below=self.whole_below, density=self.density
            )
        return fixed_plan(
            segments, whole_below=self.whole_below, room=lambda size: kept(size, self.density), step=step
        )

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:
        """Take g_j / p_j out of each entry that is drawn; leave the rest in x."""
        known = take_known_(x, plan)
        frame = wire.Frame(plan=plan, form=Form(kind="float"), dtype=x.dtype)
        views, largest = plan.choosing.views(x), fresh.largest[rows_of(segments, plan.choosing, x.device)]
        drawn = []
        for i, facts in enumerate(_facts(views, largest)):
            segment, g = plan.choosing.items[i], _relative(views[i], largest[i])
            drawn.append(self._draw(g, facts, frame, room=plan.rooms[i], share=self._share(segment, plan, facts)))
        passed = [
            torch.zeros_like(v, dtype=torch.bool).index_fill_(0, d.places, 1)
            for v, d in zip(views, drawn, strict=True)
        ]
        taken = kernels.take_where_(x, plan.choosing, passed, plan.rooms, turn=plan.step)
        # Behind what was drawn there may be unused room.
        chances = torch.ones_like(taken.values, dtype=torch.float64)
        chances[: sum(d.places.numel() for d in drawn)] = torch.cat([chances[:0], *(d.chances for d in drawn)])
        sent = (taken.values / chances).to(x.dtype)
        x.index_add_(0, taken.positions, taken.values - sent)
        wanted = torch.tensor([d.wanted for d in drawn], dtype=torch.int64).to(x.device, non_blocking=True)
        return Payload(known=known, positions=taken.positions, values=sent, wanted=wanted)

    def _share(self, segment: Segment, plan: Plan, facts: _Facts) -> float:
        """Return this segment's draw in [0, 1)."""
        text = f"{self.seed}/{plan.step}/{segment.name}/{facts.digest}"
        source = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        return float(torch.rand((), generator=source, dtype=torch.float64))

    def _draw(self, g: Tensor, facts: _Facts, frame: wire.Frame, *, room: int, share: float) -> _Drawn:
        """Draw from one segment, given its magnitudes; never more than there is room for."""
        if not facts.finite:
            # There are no probabilities, and all ranks will drop this step: anything will do.
            return _for_sure(torch.arange(room, device=g.device), wanted=room)
        wanted = room if self.cost is None else self._own_count(g, facts, frame)
        # To leave out what does not fit would be a bias: T is cut before the draw.
        count = min(wanted, room)
        if count < facts.nonzeros:
            chances = probabilities(g, count)
            places = _systematic(chances, count, share)
            return _Drawn(places=places, chances=chances[places], wanted=wanted)
        there = torch.nonzero_static(g, size=facts.nonzeros).flatten()
        # A room that is not counted must be full, as that of TopK is: with zeros, the first ones.
        zeros = torch.nonzero_static(g == 0, size=count - facts.nonzeros).flatten()
        return _for_sure(torch.cat([there, zeros]).sort().values, wanted=wanted)

    def _own_count(self, g: Tensor, facts: _Facts, frame: wire.Frame) -> int:
        """Return how many entries buy most descent for their cost."""
        if facts.nonzeros == 0 or self.cost is None:
            return 0
        least, most = (min(kept(g.numel(), share), facts.nonzeros) for share in (self.floor, self.ceiling))
        size = Size(fixed_bits=8 * frame.fixed, entry_bits=frame.value_bits, among=g.numel())
        return choose(omega(g), size, self.cost, floor=least, ceiling=most).count


def _check_cost(cost: object) -> None:
    if isinstance(cost, Seconds) and cost.measured:
        raise ValueError(
            f"cost must be one that is known beforehand, got {cost!r}. Write "
            f"Seconds(latency_seconds=1e-4, bits_per_second=1e9), or Bits()."
        )
    if cost is not None and (isinstance(cost, type) or not isinstance(cost, Cost)):
        raise ValueError(f"cost must be a cost or None, got {cost!r}. Write Bits() or Packets.ethernet_tcp().")


def _facts(views: list[Tensor], largest: Tensor) -> list[_Facts]:
    """Look at every segment; one copy to the host for all of them."""
    if not views:
        return []
    # Sums of whole numbers are the same in any order, so that the draw does not depend on threads or devices.
    digests = [v.view(_BITS[v.element_size()]).sum(dtype=torch.int64) for v in views]
    nonzeros = [torch.count_nonzero(_relative(v, top)) for v, top in zip(views, largest, strict=True)]
    rows = torch.stack([torch.stack(digests), torch.stack(nonzeros), torch.isfinite(largest).long()]).tolist()
    return [_Facts(digest=d, nonzeros=n, finite=bool(f)) for d, n, f in zip(*rows, strict=True)]


def _relative(view: Tensor, largest: Tensor) -> Tensor:
    """Return the magnitudes as shares of the largest, in float64."""
    share = view.abs().double() / torch.where(largest == 0, 1.0, largest)
    return torch.where(share < _NOTHING, 0.0, share)


def _for_sure(places: Tensor, *, wanted: int) -> _Drawn:
    return _Drawn(places=places, chances=torch.ones_like(places, dtype=torch.float64), wanted=wanted)


def _systematic(chances: Tensor, count: int, share: float) -> Tensor:
    """Return ``count`` different places, ascending: place j for a ``share`` of [0, 1) as long as its chance.

    The chances, which sum to ``count``, are laid end to end; each of the points share, 1 + share, 2 + share, ...
    takes the place that it falls on. In whole numbers, where sums are exact and so no place is hit twice.
    """
    one = 1 << (62 - count.bit_length())
    ends = (chances * one).round().long().cumsum(0)
    # Rounding may end the row a little early, and the last point must fall on it.
    free = (ends[-1] - (count - 1) * one).clamp(max=one)
    start = torch.minimum((share * free.double()).long(), free - 1)
    return torch.searchsorted(ends, start + one * torch.arange(count, device=ends.device), right=True)
