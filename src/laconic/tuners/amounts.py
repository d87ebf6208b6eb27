"""From a number of entries to a compressor that sends so many."""

from __future__ import annotations

from math import sqrt

from laconic.tuners.movable import sparsifier
from laconic.types import Compressor, Observation, Thresholder

# The link is measured at the sizes that were sent, with noise: far beyond them nothing is known.
_GROWTH = 2.0
# What is owed answers a new threshold late: a coefficient that follows fast would swing.
_POWER, _MOST_TURN = 0.2, 1.25
# Every layer sends an entry at least: a count below that is out of reach, and must not drive it on for ever.
_LEAST_C, _MOST_C = 1e-3, 1e4


def choosable(seen: Observation) -> int:
    """Return how many entries a rank could choose from."""
    return seen.choosable // seen.ranks


def approached(count: float, seen: Observation) -> float:
    """Return the count half way in factors from what was sent to this one, and at most twice what was sent."""
    sent = max(1.0, float(seen.room))
    return min(sqrt(max(1.0, count) * sent), _GROWTH * sent)


def at_count(compressor: Compressor, count: float, seen: Observation) -> Compressor:
    """Return the compressor that sends about so many entries a rank.

    A threshold keeps its own idea of where to spend them: with one for all layers the last entry gains the same
    everywhere. Its coefficient is turned by how many entries qualified, a little at each step.
    """
    if isinstance(compressor, Thresholder):
        turn = (max(0.5, seen.qualified / seen.ranks) / count) ** _POWER
        turned = compressor.c * min(_MOST_TURN, max(1 / _MOST_TURN, turn))
        return compressor.at_c(min(_MOST_C, max(_LEAST_C, turned)))
    return sparsifier(compressor, "cat").at_density(min(1.0, count / choosable(seen)))
