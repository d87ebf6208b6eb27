"""Logistic regression with its rows shared out over ranks, and the course of a descent on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Goal = tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """mean log(1 + exp(-y x.w)) + l2/2 |w|^2; ``shares`` are the ranks' rows times labels, and their transposes."""

    name: str
    shares: tuple[tuple[Any, Any], ...]
    rows: int
    entries: int
    rate: float
    optimum: float = 0.0
    # What is to be reached: for each cost and share of the way to the optimum a loss.
    goals: dict[Goal, float] = field(default_factory=dict)
    # What messages of 1, 2, ... entries cost.
    prices: dict[str, Numbers] = field(default_factory=dict)

    def look(self, w: Numbers) -> tuple[float, list[Numbers]]:
        """Return the loss, and each rank's gradient; both come of the same margins."""
        total, gradients, l2 = 0.0, [], 1 / self.rows
        for rows, columns in self.shares:
            margins = rows @ w
            small = np.exp(-np.abs(margins))
            total += float(np.log1p(small).sum() - np.minimum(margins, 0).sum())
            gradients.append(columns @ (np.where(margins > 0, small, 1.0) / (1 + small)) / -len(margins) + l2 * w)
        return total / self.rows + l2 / 2 * float(np.square(w).sum()), gradients


@dataclass(frozen=True, kw_only=True)
class Course:
    """The loss before the first step and after each, and how many entries each sent."""

    losses: Numbers
    counts: NDArray[np.int64]

    def steps_to(self, loss: float) -> int | None:
        """Return after how many steps a loss was first reached."""
        reached = np.flatnonzero(self.losses <= loss)
        return int(reached[0]) if reached.size else None

    def spent_to(self, loss: float, prices: Numbers) -> float:
        """Return what the steps to a loss cost; infinity where it was never reached."""
        steps = self.steps_to(loss)
        return inf if steps is None else float(prices[self.counts[:steps] - 1].sum())
