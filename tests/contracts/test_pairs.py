"""Every codec with every compressor and every exchange: refused with a reason, or nothing is lost."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from contracts.registry import COMPRESSORS, EXCHANGES, accepts
from laconic import codecs
from laconic.compressors import Dense
from laconic.exchanges import GatherMean, InParts, SmallestMean, TwoLevel
from laconic.method import Method
from laconic.segments import Segments
from laconic.tuners import Constant
from laconic.types import Compressor, Exchange
from lockstep.world import World, gradients

RANKS, STEPS, RATE = 2, 3, 0.5
MODEL = Segments.of(["w", "b"], [14, 3], [2, 1])
HANDS_ON = (InParts, SmallestMean, TwoLevel)


def _one_of(cls: type) -> Compressor:
    """The instance that of a small model sends some parameters whole and chooses from others, if there is one."""
    return next((c for c in COMPRESSORS[cls] if getattr(c, "whole_below", 0) == 4), COMPRESSORS[cls][0])


def _carriers(cls: type, compressor: Compressor) -> list[Exchange]:
    """The exchange with values written in every way; one that writes none is alone.

    One that hands on to others which are examined here has a few of the ways, with other compressors others.
    """
    fields = {field.name for field in dataclasses.fields(cls)}
    written = [make() for make in codecs.WORDS.values()]
    if cls in HANDS_ON:
        written = written[list(COMPRESSORS).index(type(compressor)) % 4 :: 4]
    if "values" in fields:
        return [cls(values=codec) for codec in written]
    if "inner" in fields:
        # A node of one rank: what ranks of a node share is examined elsewhere.
        one = {"node_size": 1} if cls is TwoLevel else {"parts": 2, "block": 4}
        return [cls(inner=GatherMean(values=codec), **one) for codec in written]
    return [cls()]


def _made(compressor: Compressor, exchange: Exchange) -> Method:
    nothing_owed = isinstance(compressor, Dense) and exchange.lossless
    memory = "none" if nothing_owed else "gradient"
    scope = "model" if isinstance(exchange, InParts) else "layer"
    return Method(
        name="pair", compressor=compressor, exchange=exchange, tuner=Constant(), memory=memory, scope=scope
    )


@pytest.mark.parametrize("compressor", [_one_of(cls) for cls in COMPRESSORS], ids=lambda c: c.name)
@pytest.mark.parametrize("carrier", EXCHANGES, ids=lambda cls: cls.name)
def test_a_pair_is_refused_with_a_reason_or_loses_nothing(carrier, compressor):
    for exchange in _carriers(carrier, compressor):
        if not accepts(exchange, compressor):
            with pytest.raises(ValueError, match=rf"{exchange.name} .*{compressor.name}.*\. Use \w+"):
                _made(compressor, exchange)
            continue
        method = _made(compressor, exchange)
        world, given, handed = World(method, RANKS, model=MODEL), 0.0, 0.0
        for step in range(STEPS):
            grads = gradients(RANKS, step, numel=MODEL.numel)
            given = given + torch.stack(grads).sum(0)
            first, second = world.step(grads, rates=RATE)
            assert torch.equal(first, second), exchange
            handed = handed + RANKS * first
        owed = torch.stack(world.owed()).sum(0) if world.owed() else 0.0
        torch.testing.assert_close(
            handed + owed, given, rtol=1e-10, atol=1e-10, msg=lambda m, e=exchange: f"{e}: {m}"
        )
        assert bool(handed.any()), exchange


def test_what_goes_together_is_most_of_it():
    """Every compressor has an exchange that carries it, in every way of writing values."""
    for compressor in map(_one_of, COMPRESSORS):
        assert all(_made(compressor, exchange) for exchange in _carriers(GatherMean, compressor))
