"""Where a rank stands in its rounds, and what it has counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from laconic.rounds.meeting import Meeting
from laconic.stats import Stats


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


def with_rounds(reduced: Stats, now: Progress, meeting: Meeting, *, every: int, dense_bytes: int) -> Stats:
    """Return the reducer's numbers with those of the rounds in their places."""
    return replace(
        reduced,
        steps=now.step,
        syncs=now.averaged + reduced.steps,
        skipped_steps=now.skipped + reduced.skipped_steps,
        wire_bytes=reduced.wire_bytes + meeting.wire_bytes - now.look_bytes,
        collectives=reduced.collectives + meeting.collectives,
        dense_bytes=dense_bytes,
        clipped_share=now.clipped / max(1, now.taken),
        drift=now.drift,
        drift_bound=now.drift_bound,
        every=every,
        look_bytes=now.look_bytes,
    )
