"""Seeds: every random number of a run comes from the run's seed and a few named numbers.

| what | drawn from |
|---|---|
| the model's first weights | seed, the same on every rank |
| the split of the data over ranks | seed, the same on every rank |
| the order of a rank's examples in an epoch | seed, rank, epoch |
| which recordings a rank joins into strings of digits | seed, rank, step |
| dropout and augmentation in a step | seed, rank, step |

So nothing depends on what was drawn before: a run that goes on from a checkpoint draws what it would have drawn.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Purpose = Literal["weights", "split", "order", "step"]
_NUMBER: dict[Purpose, int] = {"weights": 0, "split": 1, "order": 2, "step": 3}


def seed_for(seed: int, purpose: Purpose, *numbers: int) -> int:
    """Return a seed of 63 bits for one purpose.

    >>> seed_for(0, "order", 1, 7) == seed_for(0, "order", 1, 7)
    True
    >>> seed_for(0, "order", 1, 7) == seed_for(0, "step", 1, 7)
    False
    """
    words = np.random.SeedSequence([seed, _NUMBER[purpose], *numbers]).generate_state(1, np.uint64)
    return int(words[0]) >> 1
