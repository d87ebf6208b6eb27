"""What amounts gain for what they cost, and which of them are worth looking at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from laconic.costs import Cost
from laconic.sizes import Size
from laconic.spectrum import Numbers

# A finer grid would tell apart amounts whose efficiency is the same to a thousandth.
_POINTS = 512
# Hosts may round unlike in the last digits, and must choose alike.
_TIE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What sending so many entries gains and costs."""

    counts: Numbers
    gains: Numbers
    costs: Numbers

    @property
    def efficiency(self) -> Numbers:
        """The gain for each unit of cost."""
        return np.asarray(self.gains / self.costs)

    def points(self, most: int = 48) -> tuple[tuple[float, float], ...]:
        """Return some amounts with their efficiency."""
        some = np.unique(np.linspace(0, len(self.counts) - 1, most).round().astype(int))
        return tuple(zip(self.counts[some].tolist(), self.efficiency[some].tolist(), strict=True))

    def best(self) -> int:
        """Return where the most efficient amount stands, of equals the smallest."""
        efficiency = self.efficiency
        return int(np.argmax(efficiency >= efficiency.max() * (1 - _TIE)))


def candidates(low: float, high: float, size: Size, cost: Cost) -> Numbers:
    """Return the amounts worth looking at, ascending: evenly spaced in factors, and the most that fit packets."""
    counts = np.geomspace(np.ceil(low), np.floor(high), _POINTS).round() if high >= low + 1 else np.array([low])
    if cost.step_bits is not None:
        ends = size.bits(torch.tensor([low, high], dtype=torch.float64)) / cost.step_bits
        least, most = ends.ceil().clamp(min=1.0).tolist()
        packets = np.unique(np.geomspace(least, most, _POINTS).round())
        full = size.most(torch.from_numpy(packets * cost.step_bits)).numpy()
        counts = np.concatenate([counts, full[(full >= low) & (full <= high)]])
    return np.unique(counts)
