"""Sums around a ring, of few entries on many ranks: the same bits as share by share."""

from __future__ import annotations

import pytest
import torch

from laconic.transports import lockstep


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("numel", [0, 1, 5, 83, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_entries_are_added_in_the_same_order(ranks, numel, dtype, monkeypatch):
    draw = torch.Generator().manual_seed(numel)
    tensors = [torch.randn(numel, dtype=dtype, generator=draw) for _ in range(ranks)]
    few = lockstep.ring_sum(tensors)
    monkeypatch.setattr(lockstep, "_FEW_ENTRIES", -1)
    assert torch.equal(few, lockstep.ring_sum(tensors))
