"""How many local steps a round has: a fixed number, or one that follows the training.

Each is a pure pair as tuners are: the next number follows from a state of plain numbers and from what all ranks
agree on of the round before, so that every rank comes to the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, isfinite, isnan, nan, sqrt
from typing import ClassVar, Protocol, runtime_checkable

from laconic.arguments import check_number, check_whole

PeriodState = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class RoundSeen:
    """What all ranks agree on when a round ends.

    ``step`` counts local steps from the start of the run, ``every`` those of this round. ``loss`` is the mean of
    what ``link.observe`` was told in it (NaN: nothing), ``rate`` the mean learning rate, ``drift`` the root mean
    square over ranks of the distance walked, over the norm of the model.
    """

    step: int
    every: int
    loss: float = nan
    rate: float = 1.0
    drift: float = 0.0


@runtime_checkable
class Period(Protocol):
    """How many local steps the next round has."""

    name: ClassVar[str]

    @property
    def needs_loss(self) -> bool:
        """Whether it follows the loss."""
        ...

    @property
    def first(self) -> int:
        """The steps of the first round."""
        ...

    def init(self) -> PeriodState:
        """Return the state before the first round."""
        ...

    def update(self, state: PeriodState, seen: RoundSeen) -> PeriodState:
        """Return the next state; its ``every`` is the number of steps of the next round."""
        ...


@dataclass(frozen=True, kw_only=True)
class Every:
    """Always the same number of steps.

    >>> Every(steps=16).first
    16
    """

    name: ClassVar[str] = "every"
    needs_loss: ClassVar[bool] = False

    steps: int = 16

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 1, "It counts local steps: Every(steps=16).")

    @property
    def first(self) -> int:
        """The steps of every round."""
        return self.steps

    def init(self) -> PeriodState:
        """Nothing to remember but the number."""
        return {"every": self.steps}

    def update(self, state: PeriodState, seen: RoundSeen) -> PeriodState:  # noqa: ARG002
        """The same again."""
        return state


@dataclass(frozen=True, kw_only=True)
class Growing:
    """Few steps first, more and more later: from ``first`` to ``last`` by equal factors over ``steps`` steps.

    >>> grow = Growing(first=1, last=16, steps=400)
    >>> [grow.update({}, RoundSeen(step=s, every=1))["every"] for s in (0, 100, 200, 400, 1000)]
    [1, 2, 4, 16, 16]
    """

    name: ClassVar[str] = "growing"
    needs_loss: ClassVar[bool] = False

    first: int = 1
    last: int = 16
    steps: int = 1000

    def __post_init__(self) -> None:
        check_whole("first", self.first, 1, "It counts local steps, say 1.")
        check_whole("last", self.last, self.first, "Rounds grow: it is no less than first, say 16.")
        check_whole("steps", self.steps, 1, "It counts steps of the run, say 1000.")

    def init(self) -> PeriodState:
        """Begin with short rounds."""
        return {"every": self.first}

    def update(self, state: PeriodState, seen: RoundSeen) -> PeriodState:  # noqa: ARG002
        """Follow the steps done."""
        done = min(1.0, seen.step / self.steps)
        return {"every": round(self.first * (self.last / self.first) ** done)}


@dataclass(frozen=True, kw_only=True)
class AdaComm:
    """Rounds that shorten as the loss falls: AdaComm, Wang and Joshi 2019 (as recalled).

    After each block of ``block`` steps the period is ceil(sqrt(rate_0 / rate * loss / loss_0) * first), with the
    first block's loss and rate; where that is no less than before and the rate has not changed, half of what it
    was.
    """

    name: ClassVar[str] = "adacomm"
    needs_loss: ClassVar[bool] = True

    first: int = 16
    block: int = 200

    def __post_init__(self) -> None:
        check_whole("first", self.first, 1, "It counts local steps, say 16.")
        check_whole("block", self.block, 1, "It counts steps between two decisions, say 200.")

    def init(self) -> PeriodState:
        """Nothing seen yet."""
        return {"every": self.first, "until": self.block, "loss_0": nan, "rate_0": nan, "rate": nan, "sum": 0.0,
                "count": 0.0}  # fmt: skip

    def update(self, state: PeriodState, seen: RoundSeen) -> PeriodState:
        """Add the round to its block; at the block's end decide."""
        told = isfinite(seen.loss)
        state = state | {
            "sum": state["sum"] + (seen.loss * seen.every if told else 0.0),
            "count": state["count"] + (seen.every if told else 0.0),
        }
        if seen.step < state["until"] or not state["count"]:
            return state
        loss = state["sum"] / state["count"]
        after = state | {"sum": 0.0, "count": 0.0, "until": seen.step + self.block, "rate": seen.rate}
        if isnan(state["loss_0"]):
            return after | {"loss_0": loss, "rate_0": seen.rate}
        slower = state["rate_0"] / seen.rate if seen.rate else 1.0
        share = slower * loss / state["loss_0"] if state["loss_0"] else nan
        # Where that says nothing, the period is taken as no less than before.
        wanted = ceil(sqrt(max(0.0, share)) * self.first) if isfinite(share) else int(state["every"])
        if wanted >= state["every"] and seen.rate == state["rate"]:
            wanted = ceil(state["every"] / 2)
        return after | {"every": max(1, wanted)}


@dataclass(frozen=True, kw_only=True)
class DriftBudget:
    """As many steps as let ranks walk a given share of the model's norm away from the anchor.

    Each round's distance says how many steps the next may have; it changes by a factor of two at most.

    >>> DriftBudget(budget=0.02).update({"every": 8}, RoundSeen(step=8, every=8, drift=0.04))["every"]
    4
    """

    name: ClassVar[str] = "drift_budget"
    needs_loss: ClassVar[bool] = False

    budget: float = 0.02
    first: int = 4
    most: int = 64

    def __post_init__(self) -> None:
        check_number("budget", self.budget, 0.0, "It is a share of the model's norm, say 0.02.")
        check_whole("first", self.first, 1, "It counts local steps, say 4.")
        check_whole("most", self.most, self.first, "It counts local steps, no fewer than first, say 64.")

    def init(self) -> PeriodState:
        """Begin with the first guess."""
        return {"every": self.first}

    def update(self, state: PeriodState, seen: RoundSeen) -> PeriodState:
        """Take as many steps as the budget allows at the pace of this round."""
        # A round in which a rank walked to where numbers end was too long by any measure.
        pace = inf if isnan(seen.drift) else seen.drift
        fit = seen.every * self.budget / pace if pace > 0 else inf
        fit = min(max(fit, state["every"] / 2), 2.0 * state["every"])
        return {"every": min(max(1, int(fit)), self.most)}
