"""The kernels' definition in plain torch. A fast kernel is a twin of a function here: same name, same bits.

All of them work on flat tensors and take every segment of a bucket in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.types import Segments


@dataclass(frozen=True, kw_only=True)
class SegmentSums:
    """What one pass learns of each segment.

    ``squares`` is the fresh gradient's sum of squares before scaling, ``largest`` the largest magnitude of
    what is then owed.
    """

    squares: Tensor
    largest: Tensor

    def finite(self) -> bool:
        """Whether all that is owed is finite: a gradient that is not, or a sum that overflows, shows here."""
        return bool(torch.isfinite(self.largest).all())


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Entries taken out of a vector, in index order. ``wanted`` counts those that qualified."""

    positions: Tensor
    values: Tensor
    wanted: int


def accumulate_(
    x: Tensor,
    owed: Tensor,
    scales: Sequence[float],
    segments: Segments,
    home: Segments,
    *,
    velocity: Tensor | None = None,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> SegmentSums:
    """Turn fresh gradients into what is owed: x becomes owed + step, owed is left alone.

    With g = scale * x, a segment's step is g; with ``velocity`` u it is, and u becomes,

        plain      u <- m u + g      step = u
        Nesterov   u <- m (u + g)    step = u + g

    ``segments`` says where a parameter lies in x, ``home`` where it lies in owed and velocity. ``owed`` is
    not written, so a step that turns out to be poisoned on another rank can still be dropped whole.
    """
    squares = torch.zeros(len(segments), dtype=owed.dtype, device=x.device)
    largest = torch.zeros(len(segments), dtype=owed.dtype, device=x.device)
    for i, (segment, scale) in enumerate(zip(segments, scales, strict=True)):
        if segment.size == 0:
            continue
        g = x[segment.offset : segment.offset + segment.size]
        at = slice(home[segment.name].offset, home[segment.name].offset + segment.size)
        squares[i] = torch.linalg.vector_norm(g).square()
        g.mul_(scale)
        if velocity is not None:
            u = velocity[at]
            if nesterov:
                u.add_(g).mul_(momentum)
                g.add_(u)
            else:
                u.mul_(momentum).add_(g)
                g.copy_(u)
        g.add_(owed[at])
        largest[i] = _largest(g)
    return SegmentSums(squares=squares, largest=largest)


def take_above_(
    x: Tensor,
    segments: Segments,
    thresholds: Sequence[float],
    capacity: int,
) -> Taken:
    """Take the entries with |x| > their segment's threshold, lowest index first, at most ``capacity``.

    What is taken becomes zero in x; what does not fit is left in x.

    >>> x = torch.tensor([3.0, -1.0, -4.0])
    >>> take_above_(x, Segments.of(["w"], [3]), [2.0], 1).wanted, x
    (2, tensor([ 0., -1., -4.]))
    """
    found = [
        torch.nonzero(x[s.offset : s.offset + s.size].abs() > threshold).flatten() + s.offset
        for s, threshold in zip(segments, thresholds, strict=True)
    ]
    positions = torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=x.device)
    return _take(x, positions[:capacity], wanted=positions.numel())


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
    return _take(x, positions, wanted=positions.numel())


def add_payloads_(out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Add each rank's values at its positions to out, rank after rank, so that every rank gets the same bits.

    Positions must be distinct within a rank; then the order of additions to an entry is the order of ranks.
    """
    for at, value in zip(positions, values, strict=True):
        out.index_add_(0, at, value)


def all_finite(x: Tensor) -> bool:
    """Whether all entries are finite: one pass, no temporary of x's size."""
    return x.numel() == 0 or bool(torch.isfinite(_largest(x)))


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


def _take(x: Tensor, positions: Tensor, *, wanted: int) -> Taken:
    values = x[positions]
    x[positions] = 0
    return Taken(positions=positions, values=values, wanted=wanted)
