"""Seeds: every random number of a run comes from the run's seed and a few named numbers.

| what | drawn from |
|---|---|
| the model's first weights | seed, the same on every rank |
| the split of the data over ranks | seed, the same on every rank |
| the order of a rank's examples in an epoch | seed, rank, epoch |
| which recordings a rank joins into strings of digits | seed, rank, step |
| dropout and augmentation in a step | seed, rank, step; the first rank's where all are computed at once |

So nothing depends on what was drawn before: a run that goes on from a checkpoint draws what it would have drawn.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

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


def seed_draws(device: torch.device, seed: int) -> None:
    """Seed what is drawn on a device."""
    if device.type == "cpu":
        # torch.manual_seed also leaves word for every kind of device that is not there, which takes a millisecond.
        torch.default_generator.manual_seed(seed)
    elif device.type == "cuda" and device.index is not None:
        torch.default_generator.manual_seed(seed)
        torch.cuda.default_generators[device.index].manual_seed(seed)
    else:
        torch.manual_seed(seed)
