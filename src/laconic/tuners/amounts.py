"""From a number of entries to a compressor that sends so many."""

from __future__ import annotations

from laconic.arguments import check_share
from laconic.tuners.movable import sparsifier
from laconic.types import Compressor, Observation, Thresholder

# The link is measured at the sizes that were sent: far beyond them nothing is known.
_GROWTH = 2.0
# A threshold's coefficient is moved by what the last step had beyond it: not far in one step.
_MOST_TURN = 4.0
_LEAST_C = 1e-3


def check_amounts(floor: float, ceiling: float) -> None:
    """Raise ``ValueError`` unless these are shares in order."""
    check_share("floor", floor, "For at least a thousandth write 0.001.")
    check_share("ceiling", ceiling, "With a position each, half of the entries cost what all of them do.")
    if floor > ceiling:
        raise ValueError(f"floor must be at most the ceiling, got {floor!r} and {ceiling!r}. Swap them.")


def choosable(seen: Observation) -> int:
    """Return how many entries a rank could choose from."""
    return seen.choosable // seen.ranks


def limited(count: float, seen: Observation) -> float:
    """Return the count, or where that is less twice what was sent."""
    return min(count, max(1.0, _GROWTH * seen.room))


def at_count(compressor: Compressor, count: float, seen: Observation) -> Compressor:
    """Return the compressor that sends about so many entries a rank.

    A threshold keeps its own idea of where to spend them: with one for all layers each gets what equals the gain of
    the last entry everywhere. Its coefficient moves by how far the wanted magnitude is from the one that as many
    entries exceeded as qualified.
    """
    if isinstance(compressor, Thresholder) and seen.spectrum is not None:
        now = seen.spectrum.beyond(max(1.0, seen.qualified / seen.ranks))
        turn = seen.spectrum.beyond(count) / now if now > 0 else 1.0
        turn = min(_MOST_TURN, max(1 / _MOST_TURN, turn))
        return compressor.at_c(max(_LEAST_C, compressor.c * turn))
    return sparsifier(compressor, "cat").at_density(min(1.0, count / choosable(seen)))
