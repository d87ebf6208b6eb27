"""One exchange on several ranks in one process, and the pairs of exchange and compressor that are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.registry import accepts, compressors, exchanges, pairs
from contracts.vectors import segments_of
from laconic.averaging import dense
from laconic.compressors import Dense, StdThreshold, TopK
from laconic.exchanges import InParts, LedMean, ReduceMean, ShardedMean, SmallestMean
from laconic.exchanges.two_level import between_nodes
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Mean

SEGMENTS = segments_of([5, 0, 1, 30, 12])

# Those by which ranks do not send what they would choose alone: the largest sums are selected once more, or one
# rank chooses for all. Each compressor meets one of them, so that a kind meets as many as it has instances.
SELECT = [e for e in exchanges() if isinstance(e, LedMean | ShardedMean | SmallestMean)]
TAKEN = [c for c in [*compressors(), Dense(), Dense()] if accepts(ShardedMean(), c)]
AGAIN = [(fit[i % len(fit)], c) for i, c in enumerate(TAKEN) if (fit := [e for e in SELECT if accepts(e, c)])]
# Or all choose from a part of what they have: a share of it, or what is over a threshold.
PARTED = [
    (e, c)
    for e in exchanges()
    if isinstance(e, InParts)
    for c in (TopK(density=0.4, whole_below=0), StdThreshold(c=0.5, std_of="residual", whole_below=0))
]
ONCE = [(e, c) for e, c in pairs(accepted=True) if not (e in SELECT or isinstance(e, InParts))]
AGAIN += PARTED

every_pair = pytest.mark.parametrize(("exchange", "compressor"), [*ONCE, *AGAIN], ids=repr)
every_pair_once = pytest.mark.parametrize(("exchange", "compressor"), ONCE, ids=repr)
every_pair_again = pytest.mark.parametrize(("exchange", "compressor"), AGAIN, ids=repr)
every_world = pytest.mark.parametrize("ranks", [1, 2, 5])


def meet(
    exchange: Exchange,
    compressor: Compressor,
    xs: Sequence[Tensor],
    *,
    bad_rank: int | None = None,
    each: Sequence[dict[str, Any]] | None = None,
    **shared: Any,
) -> list[Mean]:
    """Run one exchange on as many ranks as there are vectors; return what each rank got."""
    world, futures = Lockstep(len(xs)), []
    for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
        own = {"rank": rank} | shared | (each[rank] if each else {})
        envelope = Envelope(
            step=3, world_size=len(xs), fingerprint=5, rates=9, finite=torch.tensor(rank != bad_rank), **own
        )
        futures.append(port.start(exchange.steps(x, SEGMENTS, compressor, envelope), label="the exam"))
    for port in world.ports:
        port.drain()
    means = [future.value() for future in futures]
    return [replace(mean, values=dense(mean.values, x)) for mean, x in zip(means, xs, strict=True)]


def bare(exchange: Exchange, compressor: Compressor) -> bool:
    """Whether nothing travels but the values, as in DDP."""
    return between_nodes(exchange) == ReduceMean() and compressor == Dense()
