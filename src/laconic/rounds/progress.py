"""Where a rank stands in its rounds, and what it has counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from laconic.collectives import Traffic
from laconic.rounds.meeting import Meeting
from laconic.rounds.sync import Agreed, Standing
from laconic.stats import Stats


@dataclass
class Progress:
    """Where this rank stands, and what it has counted; all of it is saved.

    ``step`` counts attempts, ``in_round`` those of this round, ``averaged_steps`` those whose gradients were
    averaged. ``reach`` is how far the steps of this round can have gone; ``drift`` and ``drift_bound`` are of the
    last sync.
    """

    step: int = 0
    in_round: int = 0
    number: int = 0
    averaged_steps: int = 0
    taken: int = 0
    skipped: int = 0
    clipped: int = 0
    worked: bool = False
    told: bool = False
    reach: float = 0.0
    could_reach: float = 0.0
    drift: float = 0.0
    drift_bound: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    look_bytes: int = 0
    look_link_bytes: int = 0

    def observe(self, loss: float) -> None:
        """Take in a loss; one that is not finite counts for nothing."""
        self.told = True
        if isfinite(loss):
            self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1

    def look(self, sent: Traffic) -> None:
        """Count what a look at the model has cost, apart."""
        self.look_bytes += sent.wire_bytes
        self.look_link_bytes += sent.link_bytes

    def standing(self, *, rate: float, ends: float) -> Standing:
        """Return what the other ranks are told before a sync."""
        return Standing(
            number=self.number,
            step=self.step,
            in_round=self.in_round,
            ends=ends,
            loss_sum=self.loss_sum,
            loss_count=self.loss_count,
            rate=rate,
            reach=self.could_reach,
        )

    def end_round(self, agreed: Agreed | None) -> None:
        """Begin the next round; the bound of this one stays to be looked at."""
        if agreed is not None and any(agreed.worked):
            # No further from the mean than this rank has walked, and the furthest of the others.
            self.drift_bound = self.reach + agreed.reach
        self.reach = self.could_reach = 0.0
        self.number, self.in_round = self.number + 1, 0


def with_rounds(reduced: Stats, now: Progress, meeting: Meeting, *, every: int, dense_bytes: int) -> Stats:
    """Return the reducer's numbers with those of the rounds in their places."""
    told = meeting.traffic
    return replace(
        reduced,
        steps=now.step,
        syncs=now.averaged_steps + reduced.steps,
        skipped_steps=now.skipped + reduced.skipped_steps,
        wire_bytes=reduced.wire_bytes + told.wire_bytes - now.look_bytes,
        link_bytes=reduced.link_bytes + told.link_bytes - now.look_link_bytes,
        collectives=reduced.collectives + told.collectives,
        dense_bytes=dense_bytes,
        clipped_share=now.clipped / max(1, now.taken),
        drift=now.drift,
        drift_bound=now.drift_bound,
        every=every,
        look_bytes=now.look_bytes,
    )
