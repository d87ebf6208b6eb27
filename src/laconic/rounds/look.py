"""A look at the model that all ranks agree on, in the middle of a round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from laconic.collectives import Traffic
from laconic.rounds.arena import Arena
from laconic.rounds.meeting import Meeting
from laconic.rounds.sync import Sync


@contextmanager
def agreed_model(
    arena: Arena, sync: Sync, meeting: Meeting, *, ranks: int, in_round: int, every_step: bool
) -> Iterator[Traffic]:
    """Have the anchor in the parameters, or within a round the mean of all ranks' models; afterwards as it was.

    Yields what was sent for it. Which of both is decided from what all ranks say: one that has given up
    a step is elsewhere in its round. Where gradients are averaged in ``every_step`` models are equal as they are.
    """
    mine, before = arena.values(), meeting.traffic
    # What is under way is waited for, or its bytes would be counted here.
    sync.arrive()
    table = sync.look([float(every_step), float(in_round)])
    if not any(any(row) for row in table):
        for fragment in sync.fragments:
            fragment.arena.set_values(fragment.anchor)
    elif not all(row[0] for row in table):
        arena.set_values(meeting.sum_(mine / ranks, "the mean of models"))
    try:
        yield meeting.traffic - before
    finally:
        arena.set_values(mine)
