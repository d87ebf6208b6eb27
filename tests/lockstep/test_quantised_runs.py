"""Every entry in a few bits: by the obvious loop, with the bits that the papers say, and they learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import laconic
from contracts.vectors import normal
from laconic import codecs
from laconic.method import Method
from laconic.segments import Segments
from lockstep.world import World, gradients

INPUTS, OUTPUTS, RANKS = 40, 10, 2
MODEL = Segments.of(["weight", "bias"], [INPUTS * OUTPUTS, OUTPUTS])
METHODS = {
    "qsgd": laconic.qsgd(7),
    "terngrad": laconic.terngrad(),
    "one_bit": laconic.one_bit(),
    "ef_sign": laconic.ef_sign(),
}
BITS = {"qsgd": 4, "terngrad": 2, "one_bit": 1, "ef_sign": 1}


def _gradient(model: Tensor, seed: int) -> tuple[Tensor, float]:
    """Of the squared error on a batch of a linear map with noise; the map is the same for all ranks."""
    truth = normal(INPUTS * OUTPUTS, 7).view(OUTPUTS, INPUTS)
    x, noise = normal(32 * INPUTS, seed).view(32, INPUTS), 0.1 * normal(32 * OUTPUTS, seed + 1).view(32, OUTPUTS)
    w = model.clone().requires_grad_(True)
    weight, bias = w.split([INPUTS * OUTPUTS, OUTPUTS])
    loss = (x @ weight.view(OUTPUTS, INPUTS).T + bias - x @ truth.T - 1.0 - noise).square().mean()
    return torch.autograd.grad(loss, w)[0], float(loss.detach())


def _losses(method: Method, steps: int = 40) -> list[float]:
    world, model, losses = World(method, RANKS, model=MODEL, dtype=torch.float32), torch.zeros(MODEL.numel), []
    for step in range(steps):
        grads, each = zip(*(_gradient(model, 10_000 * rank + 2 * step) for rank in range(RANKS)), strict=True)
        first, second = world.step(list(grads), rates=1.0)
        assert torch.equal(first, second)
        model = model - first
        losses.append(sum(each) / RANKS)
    return losses


@pytest.mark.parametrize("memory", ["gradient", "update"])
@pytest.mark.parametrize("recipe", [laconic.one_bit, laconic.ef_sign], ids=["one_bit", "ef_sign"])
def test_what_bits_cannot_say_is_remembered_by_the_obvious_loop(recipe, memory):
    """EF-SGD: p = owed + rate * g; send C(p); owed = p - C(p). In gradient units the rate comes last."""
    world, owed = World(recipe(memory=memory), 3, model=MODEL), [torch.zeros(MODEL.numel).double()] * 3
    for step, rate in enumerate([0.5, 0.25, 2.0]):
        grads = gradients(3, step, numel=MODEL.numel)
        unit = rate if memory == "update" else 1.0
        p = [o + unit * g for o, g in zip(owed, grads, strict=True)]
        sent = [torch.cat([_one_bit(part, recipe) for part in MODEL.views(each)]) for each in p]
        owed = [each - s for each, s in zip(p, sent, strict=True)]
        mean = world.step(grads, rates=rate)[0]
        torch.testing.assert_close(mean, torch.stack(sent).mean(0) / unit, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.stack(world.owed()), torch.stack(owed), rtol=1e-12, atol=1e-12)


def _one_bit(p: Tensor, recipe: object) -> Tensor:
    """PAPERS.md 5.12: the mean of either side of zero, or sign times |p|_1 / d."""
    over, below = p[p >= 0].abs().mean(), p[p < 0].abs().mean()
    if recipe is laconic.ef_sign:
        over = below = p.abs().sum() / p.numel()
    return torch.where(p < 0, -below, over)


@pytest.mark.parametrize("name", METHODS)
def test_messages_have_so_many_bits_an_entry(name):
    world = World(METHODS[name], 2, model=Segments.of(["w"], [80_000]), dtype=torch.float32)
    for step in range(3):
        world.step(gradients(2, step, numel=80_000, dtype=torch.float32))
    stats = world.reducers[0].stats()
    # A header and a few numbers beside.
    assert 0 <= stats.wire_bytes - 3 * BITS[name] * 80_000 // 8 < 3 * 256


@pytest.mark.parametrize("name", METHODS)
def test_they_learn(name):
    begin, *_, last = _losses(METHODS[name])
    assert begin > 30
    assert last < 0.02 * begin


def _mean_after(method: Method, steps: int = 20) -> float:
    """Where entries go that are pulled down by 4 in one of four steps, and up by 1 in the others."""
    world, at, source = (
        World(method, RANKS, model=MODEL),
        torch.zeros(MODEL.numel),
        torch.Generator().manual_seed(3),
    )
    for _ in range(steps):
        rare = [torch.rand(MODEL.numel, generator=source, dtype=torch.float64) < 0.25 for _ in range(RANKS)]
        at = at - 0.1 * world.step([torch.where(r, 4.0, -1.0).double() for r in rare], rates=0.1)[0]
    return float(at.mean())


def test_signs_alone_climb_where_a_few_large_gradients_outweigh_many_small_ones_and_memory_descends():
    """The counterexample of Karimireddy et al. 2019: the mean gradient is 1/4, most of its signs say otherwise."""
    assert _mean_after(laconic.ef_sign(memory="none")) > 1.0
    # What is still owed is at most what a few steps bring.
    assert _mean_after(laconic.ef_sign()) == pytest.approx(_mean_after(laconic.dense()), abs=0.15)
    assert _mean_after(laconic.dense()) == pytest.approx(-0.1 * 20 * 0.25, abs=0.1)


@pytest.mark.parametrize("word", list(codecs.WORDS))
def test_a_parameter_that_is_held_does_not_move_whatever_a_codec_makes_of_zeros(word):
    """A frozen layer in one vector with the others: a sign has no zero, and it got the mean magnitude."""
    model = Segments.of(["moves", "held"], [20, 20])
    method = replace(laconic.topk_sgd(0.9, values=word), name=word)
    world = World(method, RANKS, model=model, dtype=torch.float32)
    for step in range(2):
        given = [g.float() for g in gradients(RANKS, step, numel=40)]
        for mean in world.step(given, rates={"moves": 0.5, "held": 0.0}):
            assert not mean[20:].any()
            assert mean[:20].any()
