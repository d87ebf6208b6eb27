"""The amount weighed by seconds that are really measured: ranks with unlike clocks agree on it all the same."""

from __future__ import annotations

from math import isfinite

import pytest

import laconic
from models import build, train

METHODS = {
    "model": laconic.cat(start=0.1, whole_below=0),
    "layer": laconic.cat(per="layer", start=0.1, whole_below=0),
    "budget": laconic.cat(share=0.2, start=0.1, whole_below=0),
}


def _measured(group, kind, method):
    model, optimizer, link = build(group, kind, method)
    amounts = []
    bits = train(model, optimizer, group, range(8), after=lambda: amounts.append(link.state_dict()["tuner"]))
    tuning = link.stats.tuning
    return bits, amounts, (tuning.count, tuning.latency_seconds, tuning.bits_per_second)


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_models_and_amounts_are_equal_after_every_step(pool, kind, method):
    (bits, amounts, told), other = pool.run(2, _measured, kind, method)
    assert other == (bits, amounts, told)
    assert len(set(bits)) == 8
    # The first exchange that is timed from end to end is the second; its time is heard with the third.
    assert ["count" in state for state in amounts] == [False] * 3 + [True] * 5
    count, latency, _ = told
    assert count >= 1
    assert isfinite(latency)
