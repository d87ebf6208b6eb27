"""How a local gradient becomes a step: clipped by its norm, or corrected for unlike data (EPISODE)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from laconic.holding import Holding
from laconic.layout import here
from laconic.local import LocalSteps
from laconic.rounds.arena import Arena
from laconic.rounds.meeting import Meeting

# What is to become of the step: taken; not taken, because the gradient is not finite; not taken, because this
# batch only measured.
Verdict = Literal["step", "skip", "measured"]


@dataclass
class RuleState:
    """What a rule remembers from step to step; ``measured`` counts the gradients that this round has measured.

    ``begun``: EPISODE++ has measured those that it begins with.
    """

    measured: int = 0
    begun: bool = False
    mean_norm: float = 0.0
    clips: bool = False
    summed: int = 0


class Gradients:
    """One rank's rule: called before each optimizer's step that this rank takes part in."""

    def __init__(
        self, local: LocalSteps, arena: Arena, meeting: Meeting, *, world_size: int, holding: Holding
    ) -> None:
        self._local, self._arena, self._meeting, self._world = local, arena, meeting, world_size
        self._holding = holding
        self.threshold = inf if local.clip is None else local.clip.threshold(world_size=world_size)
        self.state = RuleState()
        # G_i, G and the sum of this round's gradients, for corrections.
        kinds = {"none": (), "resampled": ("own", "mean"), "stored": ("own", "mean", "sum")}[local.correction]
        self.vectors = {kind: arena.zeros() for kind in kinds}
        self.clipped = False

    @property
    def begins(self) -> bool:
        """Whether gradients at the first model are still being measured, on every rank (EPISODE++)."""
        return self._local.correction == "stored" and not self.state.begun

    def reach(self, rates: Mapping[str, float]) -> float:
        """Return how far a step may go at these learning rates; infinitely far where it is not clipped."""
        rate = max(rates.values(), default=1.0)
        clips = self._local.norm_by != "global_average" if self._local.correction == "none" else self.state.clips
        return (self.threshold if clips else inf) * rate if rate else 0.0

    def prepare_(self, *, first: bool, every: int, missed: bool = False) -> Verdict:
        """Leave in the gradients what the optimizer is to step along; ``first``: of this round.

        ``missed``: this rank has no finite gradient for this step, and says so where others wait for it.
        """
        grads = [here(p.grad) for p in self._arena.parameters.values() if p.grad is not None]
        norm = float(self._norm(grads))
        ok = not missed and isfinite(norm)
        self.clipped = False
        if self._local.correction == "resampled" and first and not self.state.measured:
            self._measure(ok=ok)
            return "measured"
        if self._local.correction == "stored" and self._begins(ok=ok, every=every):
            return "measured"
        if self._local.norm_by != "local" and first:
            self.state.mean_norm = self._mean_norm(ok=ok)
        if not ok:
            return "skip"
        if self._local.correction != "none":
            self._correct_()
        elif self._local.norm_of == "gradient":
            self._clip_(grads, norm)
        return "step"

    def pass_by(self) -> None:
        """Take part in what others exchange before a round's first step: this rank has no more batches."""
        if self.begins:
            self._has_begun()
        elif self._local.correction == "resampled" and not self.state.measured:
            self._measure(ok=False)
        elif self._local.norm_by != "local":
            self._mean_norm(ok=False)

    def end_round(self, senders: tuple[int, ...] | None, *, rank: int) -> None:
        """Take over what a round has shown: EPISODE++ stores the mean of its gradients."""
        self.state.measured = 0 if self._local.correction == "resampled" else self.state.measured
        if self._local.correction != "stored":
            return
        own, total = self.vectors["own"], self.vectors["sum"]
        takes_part = (senders is None or rank in senders) and self.state.summed > 0
        change = total / max(1, self.state.summed) - own if takes_part else torch.zeros_like(own)
        own += change
        if senders is None:
            moved = self._meeting.sum_(change, "the change of corrections")
        else:
            moved = self._meeting.gather(change, senders, "the change of corrections").sum(0)
        self.vectors["mean"] += moved / self._world
        total.zero_()
        self.state.summed = 0
        self._decide()

    def clip_update_(self, before: Tensor, rates: Mapping[str, float]) -> None:
        """Leave the parameters no further from where they were than the threshold times the rate."""
        self.clipped = False
        moved = before - self._arena.values()
        for segment, view in zip(self._arena.segments, self._arena.segments.views(moved), strict=True):
            rate = rates.get(segment.name, 0.0)
            view.mul_(1 / rate if rate else 0.0)
        norm = self._length(moved)
        if norm > self.threshold:
            self.clipped = True
            self._arena.set_values(torch.lerp(before, self._arena.values(), self.threshold / norm))

    def state_dict(self) -> dict[str, Any]:
        """Return what must outlive a restart."""
        return asdict(self.state) | {"vectors": {k: self._arena.by_name(v) for k, v in self.vectors.items()}}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if a saved state is not one of this rule."""
        if set(state.get("vectors", ())) != set(self.vectors) or not set(asdict(self.state)) <= set(state):
            raise ValueError("the saved rounds are those of another method. Attach the method that saved them.")
        for kind, saved in state["vectors"].items():
            self._arena.check(kind, saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.state = RuleState(**{name: state[name] for name in asdict(self.state)})
        for kind, saved in state["vectors"].items():
            self._arena.load_(self.vectors[kind], saved)

    def _clip_(self, grads: list[Tensor], norm: float) -> None:
        by = {"local": norm, "global_average": self.state.mean_norm, "max": max(norm, self.state.mean_norm)}
        used = by[self._local.norm_by]
        if used > self.threshold:
            self.clipped = True
            torch._foreach_mul_(grads, self.threshold / used)

    def _correct_(self) -> None:
        """Replace the gradient g by g - G_i + G, of length clip where the round clips: EPISODE."""
        g = self._arena.zeros()
        self._arena.gradients_(g)
        if "sum" in self.vectors:
            self.vectors["sum"] += g
            self.state.summed += 1
        g += self.vectors["mean"]
        g -= self.vectors["own"]
        norm = self._length(g)
        self.clipped = self.state.clips
        if self.state.clips and norm > 0:
            g *= self.threshold / norm
        self._arena.set_gradients(g)

    def _measure(self, *, ok: bool) -> None:
        """Take this batch's gradient as this rank's share of the round's correction."""
        self.vectors["own"].zero_()
        self.vectors["mean"].copy_(self._mean(ok=ok))
        if ok:
            self._arena.gradients_(self.vectors["own"])
        else:
            # Without a share of its own a rank is not corrected.
            self.vectors["own"].copy_(self.vectors["mean"])
        self.state.measured = 1
        self._decide()

    def _begins(self, *, ok: bool, every: int) -> bool:
        """EPISODE++ begins with as many gradients at the first model as a round has steps."""
        if not self.begins:
            return False
        if ok:
            g = self._arena.zeros()
            self._arena.gradients_(g)
            self.vectors["sum"] += g
            self.state.summed += 1
        self.state.measured += 1
        if self.state.measured >= every:
            self._has_begun()
        return True

    def _has_begun(self) -> None:
        self.end_round(None, rank=0)
        self.state.begun = True

    def _decide(self) -> None:
        self.state.clips = self._length(self.vectors["mean"]) > self.threshold

    def _mean_norm(self, *, ok: bool) -> float:
        return self._length(self._mean(ok=ok))

    def _norm(self, grads: list[Tensor]) -> Tensor:
        """Return the norm of the whole gradient; where nothing clips by it, of what is here of it."""
        here_of_it = norm_of(grads, self._arena.device)
        return here_of_it if self._local.clip is None else self._holding.whole(here_of_it)

    def _length(self, vector: Tensor) -> float:
        return float(self._holding.whole(torch.linalg.vector_norm(vector)))

    def _mean(self, *, ok: bool) -> Tensor:
        """Return the mean gradient over the ranks that have one."""
        total = self._arena.zeros(more=1)
        if ok:
            self._arena.gradients_(total[:-1])
            total[-1] = 1
        total = self._meeting.sum_(total, "the mean gradient at the start of a round")
        return total[:-1] / total[-1].clamp(min=1)


def norm_of(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Return the norm of tensors that lie on a device, of all together; it is summed up in float32 at least."""
    if not tensors:
        return torch.zeros((), device=device)
    wide = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    norms = torch._foreach_norm(tensors, 2.0, dtype=wide)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
