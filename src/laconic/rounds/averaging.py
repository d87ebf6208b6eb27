"""Gradients averaged in a step: before local steps begin (post-local SGD), or always (parallel clipping)."""

from __future__ import annotations

from math import inf

import torch

from laconic.clipping import LocalClip
from laconic.kernels import all_finite
from laconic.rounds.arena import Arena
from laconic.rounds.meeting import Meeting


class Averaging:
    """One dense exchange of gradients a step; the mean is clipped, not what it is made of."""

    def __init__(self, arena: Arena, meeting: Meeting, *, clip: LocalClip | None) -> None:
        self._arena, self._meeting = arena, meeting
        self._threshold = inf if clip is None else clip.norm
        self.done = self.clipped = False

    def exchange(self, *, attends: bool = True) -> bool:
        """Replace the gradients by their mean over the ranks that attend; return whether any did."""
        total = self._arena.zeros(more=1)
        if attends:
            self._arena.gradients_(total[:-1])
            total[-1] = 1
        self._meeting.sum_(total, "the mean of gradients")
        ranks = float(total[-1])
        if attends:
            self._arena.set_gradients(total[:-1].div_(ranks))
        self.done = attends
        return ranks > 0

    def catch_up(self, steps: int, *, rank: int) -> list[int]:
        """Give ranks that had no more batches the model of one that took most steps; return the steps of all."""
        taken = [int(row[0]) for row in self._meeting.table([float(steps)])]
        if min(taken) < max(taken):
            mine = self._arena.values() if rank == taken.index(max(taken)) else self._arena.zeros()
            self._arena.set_values(self._meeting.sum_(mine, "the model of ranks that had more batches"))
        return taken

    def finish_(self) -> bool:
        """Leave the mean clipped to the threshold in the gradients; return whether it is finite."""
        mean = self._arena.zeros()
        self._arena.gradients_(mean)
        norm = float(torch.linalg.vector_norm(mean))
        self.clipped = norm > self._threshold
        if self.clipped:
            self._arena.set_gradients(mean.mul_(self._threshold / norm))
        return all_finite(mean)
