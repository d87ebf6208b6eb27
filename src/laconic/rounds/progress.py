"""Where a rank stands in its rounds, and what it has counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """Where this rank stands, and what it has counted; all of it is saved.

    ``step`` counts attempts, ``in_round`` those of this round, ``averaged`` the steps whose gradients were
    averaged. ``reach`` is how far the steps of this round can have gone; ``drift`` and ``drift_bound`` are of the
    last sync.
    """

    step: int = 0
    in_round: int = 0
    number: int = 0
    averaged: int = 0
    taken: int = 0
    skipped: int = 0
    clipped: int = 0
    worked: bool = False
    reach: float = 0.0
    drift: float = 0.0
    drift_bound: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    look_bytes: int = 0
