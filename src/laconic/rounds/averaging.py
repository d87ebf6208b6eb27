"""Gradients averaged in a step: before local steps begin (post-local SGD), or always (parallel clipping)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import inf

import torch

from laconic.clipping import LocalClip
from laconic.errors import GroupError
from laconic.holding import Holding
from laconic.kernels import all_finite
from laconic.rounds.arena import Arena
from laconic.rounds.meeting import Meeting

# Sums of such numbers are exact in float32.
_DIGEST = 2048


class Averaging:
    """One dense exchange of gradients a step; the mean is clipped, not what it is made of."""

    def __init__(self, arena: Arena, meeting: Meeting, *, clip: LocalClip | None, holding: Holding) -> None:
        self._arena, self._meeting, self._holding = arena, meeting, holding
        self._threshold = inf if clip is None else clip.norm
        self.done = self.clipped = False

    def exchange(self, rates: Mapping[str, float], *, scale: float = 1.0) -> None:
        """Replace the gradients by their mean over the ranks that attend.

        ``scale`` is what a loss scaler has multiplied this rank's by; ranks' scales may differ.
        """
        digest = float(zlib.crc32(repr(sorted(rates.items())).encode()) % _DIGEST)
        total = self._arena.zeros(more=2 + len(self._arena.parameters))
        mean, used = self._parts(total)
        self._arena.gradients_(mean)
        mean.div_(scale)
        for i, p in enumerate(self._arena.parameters.values()):
            used[i] = p.grad is not None
        total[-2:] = torch.tensor([digest, 1.0])
        self._meeting.sum_(total, "the mean of gradients")
        digests, ranks = total[-2:].tolist()
        if digests != digest * ranks:
            raise GroupError(
                "ranks have unlike learning rates, and gradients are averaged. Use the same on all ranks."
            )
        self._arena.set_gradients(mean.mul_(scale / ranks), used=[bool(n) for n in used.tolist()])
        self.done = True

    def attend(self) -> bool:
        """Take part without a gradient: this rank has no more batches; return whether any rank has one."""
        total = self._arena.zeros(more=2 + len(self._arena.parameters))
        self._meeting.sum_(total, "the mean of gradients")
        return float(total[-1]) > 0

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
        norm = float(self._holding.whole(torch.linalg.vector_norm(mean)))
        self.clipped = norm > self._threshold
        if self.clipped:
            self._arena.set_gradients(mean.mul_(self._threshold / norm))
        return all_finite(mean)

    def _parts(self, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients, and which parameters have one."""
        size = self._arena.segments.numel
        return total[:size], total[size:-2]
