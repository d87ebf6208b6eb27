"""Methods that send few directions of each matrix."""

from __future__ import annotations

from laconic.compressors import Dense
from laconic.exchanges import LowRankMean
from laconic.method import Method, Unit
from laconic.tuners import Constant


def powersgd(rank: int = 4, *, memory: Unit = "gradient", seed: int = 0, least_ratio: float = 2.0) -> Method:
    """Send each matrix as two thin ones of this rank, refined from step to step, and remember the rest: PowerSGD.

    Vogels et al., NeurIPS 2019. Vectors go whole, and so do matrices that would not become ``least_ratio`` times
    smaller. Momentum stays the optimizer's, which is behind the exchange, where the authors have it.
    """
    return Method(
        name="powersgd",
        compressor=Dense(),
        exchange=LowRankMean(rank=rank, seed=seed, least_ratio=least_ratio),
        tuner=Constant(),
        memory=memory,
        scope="layer",
    )
