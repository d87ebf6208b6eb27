"""A pair that an exchange accepts loses nothing, at any size of segment."""

from __future__ import annotations

import pytest
import torch

from contracts.registry import accepts, compressors, exchanges, pairs
from contracts.vectors import segments_of
from laconic.averaging import dense
from laconic.compressors import TopK
from laconic.transports import Lockstep
from laconic.types import Envelope


@pytest.mark.parametrize("exchange", exchanges(), ids=repr)
def test_a_pair_is_refused_or_loses_nothing_of_a_segment_larger_than_the_check_looked_at(exchange):
    """``ReduceMean.check`` looked at a segment of 2^20 entries; this compressor chooses only from larger ones."""
    compressor, size = TopK(density=1e-6, whole_below=(1 << 20) + 1), (1 << 20) + 1
    x = torch.zeros(size)
    x[5] = 3.0
    world, sent = Lockstep(1), 0.0
    try:
        exchange.check(compressor)
        steps = exchange.steps(x, segments_of([size]), compressor, Envelope(step=0, world_size=1))
        future = world.ports[0].start(steps, label="a large segment")
        world.ports[0].drain()
        sent = float(dense(future.value().values, x)[5])
    except ValueError:
        pass
    assert sent + float(x[5]) == 3.0


@pytest.mark.parametrize(("exchange", "compressor"), pairs(accepted=False), ids=repr)
def test_a_pair_that_cannot_work_is_refused_before_any_rank_talks(exchange, compressor):
    with pytest.raises(ValueError, match=rf"{exchange.name} .*{compressor.name}.*\. Use \w+"):
        exchange.check(compressor)


@pytest.mark.parametrize("compressor", compressors(), ids=repr)
def test_every_compressor_has_an_exchange(compressor):
    assert any(accepts(exchange, compressor) for exchange in exchanges())
