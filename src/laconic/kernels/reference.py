"""The kernels' definition in plain torch. A fast kernel is a twin of a function here: same name, same bits.

All of them work on flat tensors and take every segment of a bucket in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from laconic.segments import Segments
from laconic.types import Fresh


@dataclass(frozen=True, kw_only=True)
class Accumulated:
    """What one pass learns, a number a segment.

    ``norms`` are those of unit * step, what this step adds; ``largest`` is the largest magnitude of what is
    then owed, NaN if there is one.
    """

    norms: Tensor
    largest: Tensor

    def finite(self) -> Tensor:
        """Whether all that is owed is finite: a gradient that is not, a sum or a norm that overflows shows here."""
        return torch.isfinite(self.largest).all() & torch.isfinite(self.norms).all()


@dataclass(frozen=True, kw_only=True)
class Inflow:
    """How gradients enter, a number a segment each, in the dtype of what is owed: g = gain * gradient, and

        velocity   u <- m u + g
        plain      step = u
        Nesterov   step = g + m u

    with m the momentum; without a velocity the step is g. What is owed grows by unit * step. ``gain`` undoes a
    loss scale and clips, ``unit`` is the learning rate where memory is in its units. This is
    ``torch.optim.SGD``'s velocity; DGC's u is m times it when Nesterov's form is used. ``nesterov`` is 0 or 1.
    """

    gain: Tensor
    unit: Tensor
    momentum: Tensor
    nesterov: Tensor

    @staticmethod
    def plain(count: int, *, like: Tensor) -> Inflow:
        """Return how gradients enter as they are."""
        ones = torch.ones(count, dtype=like.dtype, device=like.device)
        return Inflow(gain=ones, unit=ones, momentum=ones * 0, nesterov=ones * 0)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the same parameters lie, in the same order: in the gradient, in the vector x, and in memory."""

    grad: Segments
    x: Segments
    home: Segments


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Entries taken out of a vector, in index order; ``wanted`` counts a segment's entries that qualified.

    Behind the entries taken there may be zeros that stand for nothing.
    """

    positions: Tensor
    values: Tensor
    wanted: Tensor


def segment_norms(x: Tensor, segments: Segments, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return each segment's norm, summed up in ``dtype``."""
    dtype = dtype or x.dtype
    if not len(segments):
        return x.new_zeros(0, dtype=dtype)
    return torch.stack(list(torch._foreach_norm(segments.views(x), 2, dtype=dtype)))


def accumulate_(
    x: Tensor,
    grad: Tensor,
    inflow: Inflow,
    places: Places,
    *,
    owed: Tensor | None,
    velocity: Tensor | None = None,
    proposed: Tensor | None = None,
) -> Accumulated:
    """Turn fresh gradients into what is owed: x = owed + unit * step. One pass.

    ``grad`` may be x itself, or have another dtype. ``owed`` and ``velocity`` are left alone, so a step that turns
    out to be poisoned on another rank can still be dropped whole; the new velocity goes to ``proposed``, laid
    out as x.
    """
    norms, largest = x.new_zeros(len(places.x)), x.new_zeros(len(places.x))
    for i, (source, here, at) in enumerate(zip(places.grad, places.x, places.home, strict=True)):
        if here.size == 0:
            continue
        step = grad[source.offset : source.offset + source.size].to(x.dtype) * inflow.gain[i]
        home = slice(at.offset, at.offset + at.size)
        if velocity is not None and proposed is not None:
            u = velocity[home] * inflow.momentum[i] + step
            proposed[here.offset : here.offset + here.size] = u
            step = step + u * inflow.momentum[i] if inflow.nesterov[i] else u
        step = step * inflow.unit[i]
        norms[i] = torch.linalg.vector_norm(step)
        view = x[here.offset : here.offset + here.size]
        view.copy_(step if owed is None else step + owed[home])
        largest[i] = _largest(view)
    return Accumulated(norms=norms, largest=largest)


def take_above_(
    x: Tensor,
    segments: Segments,
    thresholds: Tensor,
    rooms: Sequence[int],
    *,
    largest: Tensor | None = None,
    turn: int = 0,
) -> Taken:
    """Take each segment's entries with |x| > its threshold, in index order, at most its room.

    What is taken becomes zero in x; what does not fit is left in x. Where not all fit, those from a place on
    that moves with ``turn`` come first, so that none waits for ever. With the segments' ``largest`` magnitudes
    given, a segment of which none passes gives one entry of that magnitude, unless it is zero. On CUDA
    nothing is copied to the host, and unused room comes back as zeros at the end.

    >>> x = torch.tensor([3.0, -1.0, -4.0])
    >>> take_above_(x, Segments.of(["w"], [3]), torch.tensor([2.0]), [1]).wanted, x
    (tensor([2]), tensor([ 0., -1., -4.]))
    """
    alone = torch.zeros_like(thresholds, dtype=torch.bool)
    if largest is not None:
        # Also where a fit has made no number of the threshold.
        alone = ~(largest > thresholds)
        thresholds = torch.where(alone, torch.nextafter(largest, torch.zeros_like(largest)), thresholds)
    passed = [v.abs() > t for v, t in zip(segments.views(x), thresholds, strict=True)]
    wanted = _counts(passed, x.device)
    return _take_passed_(x, segments, passed, rooms, torch.where(alone, wanted.clamp(max=1), wanted), turn)


def take_where_(
    x: Tensor, segments: Segments, passed: Sequence[Tensor], rooms: Sequence[int], *, turn: int = 0
) -> Taken:
    """Take each segment's entries that ``passed`` marks, in index order, at most its room, as ``take_above_`` does.

    What is taken becomes zero in x; what does not fit is left in x.
    """
    return _take_passed_(x, segments, passed, rooms, _counts(passed, x.device), turn)


def take_top_(x: Tensor, segments: Segments, counts: Sequence[int]) -> Taken:
    """Take each segment's ``count`` entries of largest magnitude; among equals the lowest index wins.

    What is taken becomes zero in x; positions come in index order.

    >>> take_top_(torch.tensor([1.0, -2.0, 2.0]), Segments.of(["w"], [3]), [1]).positions
    tensor([1])
    """
    found = [
        _top(x[s.offset : s.offset + s.size], count) + s.offset for s, count in zip(segments, counts, strict=True)
    ]
    positions = torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=x.device)
    wanted = torch.tensor([f.numel() for f in found], dtype=torch.int64, device=x.device)
    return _taken_(x, positions, wanted)


def store_(x: Tensor, owed: Tensor, places: Places) -> None:
    """Write what x holds to memory, and make x zero there."""
    for here, at in zip(places.x.views(x), places.home.views(owed), strict=True):
        at.copy_(here)
        here.zero_()


def add_payloads_(
    out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], *, scale: float = 1.0
) -> None:
    """Add each rank's values, times ``scale``, at its positions, rank after rank: every rank gets the same bits.

    Positions must be distinct within a rank; then the order of additions to an entry is the order of ranks.
    """
    for at, value in zip(positions, values, strict=True):
        out.index_add_(0, at, value * scale)


def fresh_of(x: Tensor, segments: Segments) -> Fresh:
    """Return what is known of a vector that is itself the fresh gradient, with no steps before."""
    views = segments.views(x)
    roots = x.new_tensor([max(1, s.size) for s in segments]).sqrt()
    deviation = segment_norms(x, segments) / roots
    largest = torch.stack([_largest(v) if v.numel() else x.new_zeros(()) for v in views]) if views else deviation
    nothing = torch.zeros_like(deviation)
    return Fresh(deviation=deviation, running=nothing, overall=x.new_zeros(()), largest=largest)


def all_finite(x: Tensor) -> bool:
    """Whether all entries are finite: one pass, no temporary of x's size."""
    # What is not a number is both the least and the largest.
    return x.numel() == 0 or all(map(isfinite, torch.stack(torch.aminmax(x)).tolist()))


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude; NaN if there is one. A pass at memory speed, unlike the infinity norm on CPU."""
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high)


def _top(x: Tensor, count: int) -> Tensor:
    """Positions of the ``count`` largest magnitudes, ascending, ties by lowest index."""
    if count >= x.numel() or count == 0:
        return torch.arange(min(count, x.numel()), device=x.device)
    magnitude = x.abs()
    least = torch.topk(magnitude, count, sorted=False).values.min()
    above = torch.nonzero(magnitude > least).flatten()
    equal = torch.nonzero(magnitude == least).flatten()[: count - above.numel()]
    return torch.cat([above, equal]).sort().values


def _counts(passed: Sequence[Tensor], device: torch.device) -> Tensor:
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    return torch.stack([torch.count_nonzero(p) for p in passed]) if passed else nothing


def turned(size: int, turn: int) -> int:
    """Where in a segment to begin, by the turn."""
    return int(share_of(turn) * size)


def share_of(turn: int) -> float:
    """How much of a segment lies before the place to begin at: the golden ratio spreads successive turns evenly."""
    return turn * 0.6180339887498949 % 1.0


def _take_passed_(
    x: Tensor, segments: Segments, passed: Sequence[Tensor], rooms: Sequence[int], wanted: Tensor, turn: int
) -> Taken:
    if x.is_cuda:
        return _take_static_(x, segments, passed, rooms, wanted, turn)
    found = [torch.empty(0, dtype=torch.int64)]
    for segment, mask, room, most in zip(segments, passed, rooms, wanted.tolist(), strict=True):
        at = torch.nonzero(mask).flatten()
        limit = min(room, most)
        if at.numel() > limit:
            before = int(torch.searchsorted(at, turned(segment.size, turn)))
            first = at[before:][:limit]
            at = torch.cat([at[: min(before, limit - first.numel())], first])
        found.append(at + segment.offset)
    return _taken_(x, torch.cat(found), wanted)


def _taken_(x: Tensor, positions: Tensor, wanted: Tensor) -> Taken:
    values = x[positions]
    x[positions] = 0
    return Taken(positions=positions, values=values, wanted=wanted)


def _take_static_(
    x: Tensor, segments: Segments, passed: Sequence[Tensor], rooms: Sequence[int], wanted: Tensor, turn: int
) -> Taken:
    """The same without asking the device how many there are: fixed room, unused places at the end."""
    room = sum(rooms)
    places, used = [torch.empty(0, dtype=torch.int64, device=x.device)], []
    for i, (segment, mask, most) in enumerate(zip(segments, passed, rooms, strict=True)):
        begin, count = turned(segment.size, turn), torch.arange(most, device=x.device)
        taken = wanted[i].clamp(max=most)
        late = torch.minimum(torch.count_nonzero(mask[begin:]), taken)
        for part, start, share in ((mask[:begin], 0, taken - late), (mask[begin:], begin, late)):
            found = torch.nonzero_static(part, size=most, fill_value=0).flatten()
            places.append(found + (segment.offset + start))
            used.append(count < share)
    place, valid = torch.cat(places), torch.cat([torch.empty(0, dtype=torch.bool, device=x.device), *used])
    place = torch.where(valid, place, 0)
    values = torch.where(valid, x[place], 0.0) if x.numel() else x[:0]
    # x - x is zero exactly, and an unused place takes away nothing: no index needs to be left out.
    x.index_add_(0, place, -values)
    to = torch.where(valid, valid.cumsum(0) - 1, room)
    # A spare place behind the room collects what is unused.
    positions = torch.zeros(room + 1, dtype=torch.int64, device=x.device).scatter_(0, to, place)[:room]
    packed = torch.zeros(room + 1, dtype=x.dtype, device=x.device).scatter_(0, to, values)[:room]
    return Taken(positions=positions, values=packed, wanted=wanted)
