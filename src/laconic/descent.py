"""How much descent a message buys, and the count of entries that buys most for its cost.

Khirirat, Magnússon, Aytekin, Johansson, "A Flexible Framework for Communication-Efficient Machine Learning",
AAAI 2021. For F that is L-smooth with gradient g, sending T of d entries guarantees

    F(x+) <= F(x) - gain(T) / (2 L) * ||g||^2

    scheme                          step                     gain(T)
    T largest entries               1 / L                    alpha = sum of their g^2 / ||g||^2
    their signs x mean magnitude    1 / L                    beta  = (sum of their |g|)^2 / (T ||g||^2)
    each by chance p_j, as g_j/p_j  omega / L (expectation)  omega = ||g||^2 / sum of g_j^2 / p_j

and T is chosen for the largest gain(T) / cost(T). The formulas were derived anew and are tested as such. All is
exact, in float64, and free of g's scale; a gradient of zero has gain 1 throughout, since nothing of it is missed,
and one that is not finite has gain NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.arguments import check_whole
from laconic.costs import Cost
from laconic.sizes import Size

# Efficiencies that differ by less are equal but for rounding.
_TIE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How many entries to send, with their gain and what their message costs."""

    count: int
    gain: float
    cost: float

    @property
    def efficiency(self) -> float:
        """The gain for each unit of cost."""
        return self.gain / self.cost


def alpha(g: Tensor) -> Tensor:
    """Return the gain of the T largest entries, for T = 1..d: the share of ||g||^2 that they hold.

    >>> alpha(torch.tensor([1.0, -3.0, 0.0, 2.0]))
    tensor([0.6429, 0.9286, 1.0000, 1.0000], dtype=torch.float64)
    """
    held = _descending(g).square().cumsum(0)
    return _share(held, held[-1])


def beta(g: Tensor) -> Tensor:
    """Return the gain of the T largest entries sent as signs times their mean magnitude, for T = 1..d.

    It is at most ``alpha`` and falls again where entries are too unlike to share a magnitude.

    >>> beta(torch.tensor([1.0, -3.0, 0.0, 2.0]))
    tensor([0.6429, 0.8929, 0.8571, 0.6429], dtype=torch.float64)
    """
    a = _descending(g)
    return _share(a.cumsum(0).square() / _counts(a), a.square().sum())


def omega(g: Tensor) -> Tensor:
    """Return the gain of sparsification by chance with the best ``probabilities``, for T = 1..d.

    >>> omega(torch.tensor([1.0, -3.0, 0.0, 2.0]))
    tensor([0.3889, 0.7778, 1.0000, 1.0000], dtype=torch.float64)
    """
    a = _descending(g)
    counts, left, sure = _counts(a), _suffix_sums(a), _saturated(a)
    held = a.square().cumsum(0)
    total = held[-1]
    # What the first m entries hold; none hold nothing.
    held = torch.cat([torch.zeros_like(held[:1]), held[:-1]])
    second_moment = held[sure] + left[sure].square() / (counts - sure)
    # With all nonzero entries sent for sure nothing is left to chance, nor to rounding.
    return _share(total, torch.where(counts >= (a != 0).sum(), total, second_moment))


def probabilities(g: Tensor, count: int) -> Tensor:
    """Return p_j = min(1, lambda |g_j|) that sum to ``count``, or to the number of nonzeros where that is less.

    Of all probabilities with that sum they give the entries sent as g_j / p_j the least second moment.

    >>> probabilities(torch.tensor([1.0, -3.0, 0.0, 2.0]), 2)
    tensor([0.3333, 1.0000, 0.0000, 0.6667], dtype=torch.float64)
    """
    a = _descending(g)
    check_whole("count", count, 1, "It is the expected number of entries to send.")
    magnitudes = _relative(g.detach().abs())
    if count >= int((a != 0).sum()):
        return (magnitudes != 0).double()
    sure = _saturated(a)[count - 1]
    return ((count - sure) / _suffix_sums(a)[sure] * magnitudes).clamp(max=1.0)


def qsgd_count(g: Tensor) -> int:
    """Return the smallest T whose largest entries sum to at least ||g||_2, the rule of thumb CAT is compared with.

    >>> qsgd_count(torch.tensor([1.0, -3.0, 0.0, 2.0]))
    2
    """
    a = _descending(g)
    return _first(a.cumsum(0) >= a.square().sum().sqrt()) + 1


def choose(gain: Tensor, size: Size, cost: Cost, *, floor: int = 1, ceiling: int | None = None) -> Choice:
    """Return the count t in [floor, ceiling] of the largest gain[t - 1] / cost, the smallest of those that tie.

    Gains that are not numbers, those of a poisoned gradient, choose the floor.

    >>> from laconic.costs import Affine
    >>> g = torch.tensor([4, -3, 2, -1.5, 1, -0.5, 0.25, 0.1])
    >>> choose(alpha(g), Size.pairs(8), Affine(fixed_bits=100)).count
    2
    """
    last = _checked_range(gain, floor, ceiling)
    gain = gain.double()
    counts = candidates(gain[floor - 1 : last], size, cost, floor=floor)
    efficiency = gain[counts - 1] / cost.of(size.bits(counts))
    count = int(counts[_first(efficiency >= efficiency.max() * (1 - _TIE))])
    if counts.numel() < last - floor + 1:
        # Of a step's counts only the largest was looked at; entries that add nothing need not be sent with it.
        count = floor + _first(gain[floor - 1 : count] >= gain[count - 1] * (1 - _TIE))
    spent = cost.of(size.bits(torch.tensor([count])))
    return Choice(count=count, gain=float(gain[count - 1]), cost=float(spent))


def candidates(gain: Tensor, size: Size, cost: Cost, *, floor: int = 1) -> Tensor:
    """Return the counts worth looking at among floor, floor + 1, ..., whose gains are given, ascending.

    Where the cost jumps, more entries are free up to the next jump: only the most that fit m steps matter, for each
    m, and the last of all. That holds while gains do not fall; otherwise every count matters.
    """
    last = floor + gain.numel() - 1
    step = cost.step_bits
    falls = gain[1:] < gain[:-1] * (1 - _TIE)
    if step is None or step <= size.entry_bits or bool(falls.any()):
        return torch.arange(floor, last + 1, device=gain.device)
    ends = size.bits(torch.tensor([floor, last], dtype=torch.float64)) / step
    steps = torch.arange(float(ends[0].ceil()), float(ends[1].ceil()) + 1, dtype=torch.float64, device=gain.device)
    most = size.most(steps * step).long()
    # A product may round over or under what the cost says fits: its neighbours are looked at too.
    near = torch.cat([most - 1, most, most + 1]).clamp(floor, last)
    return torch.unique(near, sorted=True)  # type: ignore[no-any-return]


def _checked_range(gain: Tensor, floor: int, ceiling: int | None) -> int:
    """Return the largest count to look at, or say what is wrong with the range."""
    if gain.ndim != 1 or not gain.numel():
        raise ValueError(
            f"gain must be a vector with the gains of 1, 2, ... entries, got shape {tuple(gain.shape)}. "
            f"Write alpha(g), beta(g) or omega(g)."
        )
    check_whole("floor", floor, 1, "To send at least one entry write 1.")
    last = gain.numel()
    if ceiling is not None:
        check_whole("ceiling", ceiling, 1, "For all entries write None.")
        last = ceiling
    if not floor <= last <= gain.numel():
        raise ValueError(
            f"floor and ceiling must be in 1..{gain.numel()}, whose gains are given, and in that order, "
            f"got {floor} and {ceiling}. For all counts leave both out."
        )
    return last


def _descending(g: Tensor) -> Tensor:
    """Return |g| over its largest, in float64, descending."""
    if g.ndim != 1 or not g.numel() or not g.is_floating_point():
        raise ValueError(
            f"g must be a vector of floats with at least one entry, got shape {tuple(g.shape)} of {g.dtype}. "
            f"For a gradient of any shape write g.flatten()."
        )
    return _relative(g.detach().abs().sort(descending=True).values)


def _relative(magnitudes: Tensor) -> Tensor:
    # Gains do not depend on the scale, but squares of very large or small numbers are not numbers any more.
    a = magnitudes.double()
    return torch.where(a.max() == 0, a, a / a.max())


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, at most 1; of nothing, all."""
    return torch.where(whole == 0, 1.0, part / whole).clamp(max=1.0)


def _counts(a: Tensor) -> Tensor:
    return torch.arange(1, a.numel() + 1, device=a.device)


def _suffix_sums(a: Tensor) -> Tensor:
    """Return what all but the first m entries sum to, for m = 0..d-1."""
    return a.flip(0).cumsum(0).flip(0)


def _saturated(a: Tensor) -> Tensor:
    """Return how many entries are sent for sure, for T = 1..d.

    The m + 1st joins them when T > m + (sum of all but the first m) / (its magnitude), which does not fall with m.
    """
    counts = _counts(a)
    joins = (counts - 1) + _suffix_sums(a) / a
    joins = torch.where(a == 0, torch.inf, joins)
    return torch.minimum(torch.searchsorted(joins, counts.double()), counts - 1)


def _first(found: Tensor) -> int:
    """Return the first place that holds, 0 where none does."""
    return int(found.to(torch.uint8).argmax())
