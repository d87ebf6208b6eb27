"""Which examples a rank sees in a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laconic.lab.seeds import seed_for


class Order:
    """Every rank walks through its own part of the data, in a new order each epoch.

    An epoch has as many steps on every rank, those of the smallest part; what is left over waits for another
    epoch's order. A part smaller than a batch is refused.

    >>> Order([np.arange(4), np.arange(4, 8)], batch=2, seed=0, rank=1).steps_per_epoch
    2
    """

    def __init__(self, parts: Sequence[NDArray[np.int64]], *, batch: int, seed: int, rank: int) -> None:
        smallest = min(len(part) for part in parts)
        if smallest < batch:
            raise ValueError(
                f"the smallest part of the data has {smallest} examples, a batch wants {batch}. "
                f"Use a smaller batch, fewer workers or another split."
            )
        self.steps_per_epoch = smallest // batch
        self._part, self._batch, self._seed, self._rank = parts[rank], batch, seed, rank
        self._epoch, self._order = -1, self._part

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the examples of a step, a function of seed, rank and step alone."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return self.of_epoch(epoch)[within * self._batch : (within + 1) * self._batch]

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the examples of an epoch in their order, with those left over at the end."""
        if epoch != self._epoch:
            draw = np.random.default_rng(seed_for(self._seed, "order", self._rank, epoch))
            self._epoch, self._order = epoch, draw.permutation(self._part)
        return self._order
