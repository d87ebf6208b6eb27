"""The sparse all-reduce on a GPU: what it is on the CPU."""

from __future__ import annotations

import pytest
import torch

from contracts.vectors import normal
from laconic.averaging import dense
from laconic.codecs import WORDS
from laconic.compressors import Dense, StdThreshold, TopK
from laconic.exchanges import ShardedMean
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Envelope

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODEL = Segments.of(["w", "empty", "b", "v"], [60_000, 0, 40, 3_000])
RULES = [TopK(density=0.01, whole_below=100), StdThreshold(c=3.0, whole_below=100), Dense()]


def _meet(values, rule, device):
    xs, world, futures = [normal(MODEL.numel, rank).to(device) for rank in range(3)], Lockstep(3), []
    for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
        steps = ShardedMean(values=WORDS[values]()).steps(x, MODEL, rule, Envelope(step=3, world_size=3, rank=rank))
        futures.append(port.start(steps, label="the exam"))
    for port in world.ports:
        port.drain()
    means = [future.value() for future in futures]
    return means, [dense(mean.values, xs[0]).cpu() for mean in means], [x.cpu() for x in xs]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_exact_values_give_the_bits_of_the_cpu(rule):
    ours, values, left = _meet("exact", rule, "cuda")
    theirs, expected, rest = _meet("exact", rule, "cpu")
    for i in range(3):
        assert torch.equal(values[i], expected[i])
        assert torch.equal(left[i], rest[i])
        assert (ours[i].sent, ours[i].counts, ours[i].message_bytes) == (
            theirs[i].sent,
            theirs[i].counts,
            theirs[i].message_bytes,
        )
        assert torch.equal(ours[i].own.positions.cpu(), theirs[i].own.positions)


@pytest.mark.parametrize("values", WORDS)
def test_nothing_is_lost_and_all_ranks_agree(values):
    there = sum(normal(MODEL.numel, rank) for rank in range(3))
    _, means, left = _meet(values, RULES[0], "cuda")
    assert all(torch.equal(mean, means[0]) for mean in means)
    torch.testing.assert_close(sum(left) + 3 * means[0], there, rtol=1e-4, atol=1e-4)
