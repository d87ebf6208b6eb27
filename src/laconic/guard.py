"""A watch on runs that go wrong: what is owed runs away, the loss turns non-finite, every step is skipped."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isnan

from laconic.arguments import check_number, check_whole
from laconic.types import Observation

_FORGET = 0.999


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Every ``every`` steps, compare what is owed with the fresh gradients of the last thousand steps, by norm.

    Beyond ``limit`` times the largest, this rank raises an alarm that all ranks see; below half of that it
    goes back to rest. At density d what is owed settles near 1 / sqrt(d) gradients: the default is reached
    when a method sends less than one entry in ten thousand.
    """

    limit: float = 100.0
    every: int = 50
    skipped: int = 20

    def __post_init__(self) -> None:
        check_number("limit", self.limit, 1.0, "It is a ratio of norms, say 100.")
        check_whole("every", self.every, 1, "It counts steps.")
        check_whole("skipped", self.skipped, 1, "It counts steps that were skipped in a row.")


class Alarm:
    """One rank's side of a guard: whether it is alarmed, and what was already said."""

    def __init__(self, guard: Guard | None, *, rank: int) -> None:
        self.guard, self.rank = guard, rank
        self.raised, self._reference = False, 0.0
        self.skipped_in_a_row = 0
        self._said: set[str] = set()

    def due(self, step: int) -> bool:
        """Whether this step is one to compare norms in."""
        return self.guard is not None and step % self.guard.every == self.guard.every - 1

    def look(self, *, owed: float, fresh: float) -> None:
        """Compare the norm of what is owed with that of a fresh gradient."""
        assert self.guard is not None
        # A rate that falls to zero shrinks fresh updates before what is owed: not a run that goes wrong.
        self._reference = max(fresh, self._reference * _FORGET**self.guard.every)
        self.raised = owed > self.guard.limit * self._reference * (0.5 if self.raised else 1.0)

    def hear(self, seen: Observation) -> None:
        """Take in what all ranks agree on; the first rank warns, once of each kind."""
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if seen.skipped else 0
        if self.guard is None:
            return
        if seen.alarmed:
            self._say(
                "owed",
                f"at step {seen.step} what some rank owes is more than {self.guard.limit:g} of its gradients, by "
                f"norm. Too little is sent, and a late flush may ruin the model. Send more (a larger density; for "
                f"sdagc a smaller c, or fallback=True), and clip local gradients (clip=...).",
            )
        if not isnan(seen.loss) and not isfinite(seen.loss):
            self._say(
                "loss",
                f"the loss was not finite at step {seen.step - 1}. Lower the learning rate, or clip (clip=...).",
            )
        if self.skipped_in_a_row == self.guard.skipped:
            self._say(
                "skipped",
                f"{self.skipped_in_a_row} steps up to step {seen.step - 1} were skipped in a row: gradients are "
                f"not finite on some rank. Look at its data and loss, lower the learning rate, or clip (clip=...).",
            )

    def _say(self, kind: str, text: str) -> None:
        if self.rank == 0 and kind not in self._said:
            warnings.warn(f"laconic: {text}", stacklevel=4)
        self._said.add(kind)

    def state_dict(self) -> dict[str, float]:
        """Return what must outlive a restart."""
        return {"raised": self.raised, "reference": self._reference, "skipped_in_a_row": self.skipped_in_a_row}

    def check(self, state: Mapping[str, float]) -> None:
        """Raise ``ValueError`` if a saved state is not an alarm's."""
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise ValueError(f"the saved alarm lacks {missing}: it was not saved by link.state_dict().")

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        self.raised, self._reference = bool(state["raised"]), state["reference"]
        self.skipped_in_a_row = int(state["skipped_in_a_row"])
