"""What a tuner can move, or a refusal that says what it got and what to use."""

from __future__ import annotations

from laconic.types import Compressor, Sparsifier, Thresholder


def sparsifier(compressor: Compressor, who: str) -> Sparsifier:
    """Return the compressor as one with a density."""
    if not isinstance(compressor, Sparsifier):
        raise ValueError(f"{who} moves a density, and {compressor.name} has none. Use Constant().")
    return compressor


def thresholder(compressor: Compressor, who: str) -> Thresholder:
    """Return the compressor as one with a coefficient of the deviation."""
    if not isinstance(compressor, Thresholder):
        raise ValueError(f"{who} moves a coefficient c, and {compressor.name} has none. Use StdThreshold.")
    return compressor
