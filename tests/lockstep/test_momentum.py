"""Momentum in the method: dense momentum SGD where all is sent, and a velocity that starts anew where some was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import label
from contracts.vectors import dyadic, normal, same_bits
from laconic.errors import GroupError
from laconic.segments import Segments
from laconic.types import Momentum
from lockstep.world import MODEL, World, gradients

FORMS = pytest.mark.parametrize(
    "momentum", [Momentum(factor=0.5), Momentum(factor=0.9, nesterov=True)], ids=["plain", "nesterov"]
)
RATES = [0.5, 0.25, 0.25, 2.0, 0.125, 1.0]
BUCKETS = [["s", "v"], ["empty"], ["b", "w"]]
EVERYTHING = [
    laconic.sdagc(0.0, masking=False, scope="layer", values="exact"),
    laconic.sdagc(0.0, masking=False, revision="none", scope="model", values="exact"),
    laconic.dgc(1.0, masking=False, warmup_steps=0, whole_below=0),
    replace(laconic.topk(1.0), momentum="method"),
]
# Every selector there is, with momentum of its own and the velocity of what was sent starting anew.
MASKED = [
    laconic.sdagc(1.5, whole_below=4, scope="layer", values="exact"),
    laconic.sdagc(1.5, std_of="residual", revision="none", whole_below=0, scope="layer", values="exact"),
    laconic.sdagc(1.5, over="model", scope="model", whole_below=0, values="exact"),
    laconic.sdagc(1.5, clip=1.0, clip_scope="layer", whole_below=0, scope="layer", values="exact"),
    laconic.dgc(0.3, warmup_steps=3, whole_below=4, clip=1.0),
    *(
        replace(method, momentum="method", masking=True)
        for method in (
            laconic.topk(0.3, whole_below=4),
            laconic.topk(0.3, scope="model", whole_below=0),
            laconic.gaussiank(0.3, whole_below=0),
            laconic.sidco(0.3, whole_below=4),
            laconic.strom(0.25, whole_below=0),
            laconic.adacomp(4, whole_below=0),
        )
    ),
]
masked = pytest.mark.parametrize("method", MASKED, ids=label)


def _sgd(momentum: Momentum, weights: torch.Tensor) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    p = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=momentum.factor, nesterov=momentum.nesterov)
    return p, optimizer


def _whole(method: laconic.Method) -> torch.Tensor:
    """Where the entries lie of which no rank chooses any: all of them are sent."""
    below = getattr(method.compressor, "whole_below", 0) if method.scope == "layer" else 0
    return torch.cat([torch.full((s.size,), s.size < below) for s in MODEL])


@FORMS
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("method", EVERYTHING, ids=label)
def test_with_everything_sent_and_nothing_masked_it_is_dense_momentum_sgd(method, momentum, ranks):
    world = World(method, ranks, momentum=momentum)
    weights = normal(MODEL.numel, 7, torch.float64)
    theirs, optimizer = _sgd(momentum, weights)
    for step, rate in enumerate(RATES):
        grads = gradients(ranks, step)
        optimizer.param_groups[0]["lr"] = rate
        theirs.grad = torch.stack(grads).mean(0)
        optimizer.step()
        weights = weights - rate * world.step(grads, rates=rate, buckets=BUCKETS)[0]
        torch.testing.assert_close(weights, theirs.detach(), rtol=1e-12, atol=1e-12)
        assert not any(owed.any() for owed in world.owed())


@pytest.mark.parametrize("ranks", [1, 3])
def test_with_everything_chosen_and_masked_it_is_sgd_without_momentum(ranks):
    """PAPERS' warning: masking at high density takes the momentum away."""
    method = replace(laconic.topk(1.0, whole_below=0), momentum="method", masking=True)
    world = World(method, ranks, momentum=Momentum(factor=0.9))
    for step in range(4):
        grads = gradients(ranks, step)
        torch.testing.assert_close(world.step(grads)[0], torch.stack(grads).mean(0), rtol=1e-12, atol=1e-14)
        assert not any(velocity.any() for velocity in world.kept("velocity"))


@masked
@FORMS
@pytest.mark.parametrize("ranks", [1, 3])
def test_each_step_is_the_obvious_one_and_velocity_starts_anew_just_where_entries_were_chosen(
    method, momentum, ranks
):
    world, chosen_ever, spared = World(method, ranks, momentum=momentum), 0, 0
    for step in range(8):
        rate, grads = RATES[step % 6], gradients(ranks, step)
        accs = [
            o + a for o, a in zip(world.owed(), world.enters(grads, rates=rate, momentum=momentum), strict=True)
        ]
        moved = [momentum.factor * u + world.clipped(g) for u, g in zip(world.kept("velocity"), grads, strict=True)]
        mean = world.step(grads, rates=rate, buckets=BUCKETS)[0]
        # What left a rank's memory is what it sent.
        sent = [acc - owed for acc, owed in zip(accs, world.owed(), strict=True)]
        sent = [torch.where(s.abs() < 1e-13, 0.0, s) for s in sent]
        torch.testing.assert_close(mean * world.units(rate), torch.stack(sent).mean(0), rtol=1e-11, atol=1e-12)
        whole = _whole(method)
        for velocity, u, s in zip(world.kept("velocity"), moved, sent, strict=True):
            masked_here = (s != 0) & ~whole
            torch.testing.assert_close(velocity, torch.where(masked_here, 0.0, u), rtol=1e-12, atol=1e-12)
            assert bool((velocity[masked_here] == 0).all())
            chosen_ever += int(masked_here.sum())
            spared += int(torch.count_nonzero(velocity))
    assert chosen_ever
    assert spared


def test_without_masking_velocity_goes_on_everywhere():
    momentum, method = (
        Momentum(factor=0.5),
        laconic.sdagc(1.5, masking=False, whole_below=0, scope="layer", values="exact"),
    )
    world, velocity = World(method, 2, momentum=momentum), [torch.zeros(MODEL.numel, dtype=torch.float64)] * 2
    for step in range(5):
        grads = gradients(2, step, draw=dyadic)
        velocity = [0.5 * u + g for u, g in zip(velocity, grads, strict=True)]
        world.step(grads)
        assert all(torch.equal(a, b) for a, b in zip(world.kept("velocity"), velocity, strict=True))


def _literal(method: laconic.Method, grads: list[torch.Tensor], rates: list[float], momentum: Momentum):
    """PAPERS 2.2 for one rank and one layer, in gradient units, with v <- v * eta_{t-1} / eta_t (revision A).

    Return what is sent in each step. The threshold is c deviations of what the step adds, all in gradients.
    """
    u = v = torch.zeros_like(grads[0])
    before, handed = rates[0], []
    for g, rate in zip(grads, rates, strict=True):
        v = v * (before / rate)
        u = momentum.factor * u + g
        step = g + momentum.factor * u if momentum.nesterov else u
        v = v + step
        threshold = method.compressor.c * step.square().mean().sqrt()
        mask = v.abs() > threshold
        if not mask.any():
            mask = v.abs() == v.abs().max()
        handed.append(torch.where(mask, v, 0.0))
        v = torch.where(mask, 0.0, v)
        if method.masking:
            u = torch.where(mask, 0.0, u)
        before = rate
    return handed


@pytest.mark.parametrize("masking", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_memory_in_update_units_is_the_literal_revision_of_the_learning_rate(factor, nesterov, masking):
    momentum = Momentum(factor=factor, nesterov=nesterov)
    method = laconic.sdagc(2.0, running=0.0, masking=masking, whole_below=0, scope="layer", values="exact")
    # Room for all: the literal rule knows no rooms.
    model = Segments.of(["w"], [40])
    world = World(method, 1, model=model, momentum=momentum)
    rates = [0.5, 0.5, 0.05, 0.05, 2.0, 0.3, 0.3, 0.01] * 2
    grads = [normal(40, step, torch.float64) for step in range(len(rates))]
    owed = 0.0
    for step, expected in enumerate(_literal(method, grads, rates, momentum)):
        _give_room(world, {"w": 40})
        mean = world.step([grads[step]], rates=rates[step])[0]
        torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)
        owed = max(owed, float(world.owed()[0].abs().max()))
    assert owed > 0


def _give_room(world: World, rooms: dict[str, int]) -> None:
    states = world.save()
    for state in states:
        state["ledger"]["rooms"] = dict(rooms)
    world.load(states)


def test_a_velocity_that_the_optimizer_had_is_gone_on_from():
    method, momentum = laconic.sdagc(0.0, masking=False, scope="layer", values="exact"), Momentum(factor=0.5)
    straight, later = World(method, 2, momentum=momentum), World(method, 2, momentum=momentum)
    straight.step(gradients(2, 0, draw=dyadic))
    mean = torch.stack(straight.kept("velocity")).mean(0)
    for reducer in later.reducers:
        reducer.start_velocity({s.name: mean[s.offset : s.offset + s.size] for s in MODEL})
    for step in range(1, 4):
        grads = gradients(2, step, draw=dyadic)
        assert torch.equal(straight.step(grads)[0], later.step(grads)[0])


def test_a_factor_that_changes_is_that_of_the_step():
    method = laconic.sdagc(0.0, masking=False, scope="layer", values="exact")
    world, velocity = World(method, 2), torch.zeros(MODEL.numel, dtype=torch.float64)
    for step, factor in enumerate([0.5, 0.25, 0.0, 0.75]):
        grads = gradients(2, step, draw=dyadic)
        velocity = factor * velocity + torch.stack(grads).mean(0)
        assert torch.equal(world.step(grads, momentum=Momentum(factor=factor))[0], velocity)


@pytest.mark.parametrize("other", [Momentum(factor=0.25), Momentum(factor=0.5, nesterov=True)], ids=str)
def test_ranks_with_unlike_momenta_are_told_so(other):
    world, grads = World(laconic.sdagc(1.5, whole_below=0, scope="layer", values="exact"), 2), gradients(2, 0)
    for rank, reducer in enumerate(world.reducers):
        mine = other if rank else Momentum(factor=0.5)
        reducer.begin_step(rates=dict.fromkeys(MODEL.names, 0.5), momenta=dict.fromkeys(MODEL.names, mine))
        reducer.begin(grads[rank], MODEL)
    world.reducers[0].end_step()
    with pytest.raises(GroupError, match="momenta"):
        world.reducers[1].end_step()


@masked
def test_at_a_rate_of_zero_velocity_gathers_and_nothing_starts_anew(method):
    """As in SGD at learning rate 0. Nothing was sent, so no entry may lose its velocity."""
    world = World(method, 2)
    world.step(gradients(2, 0))
    expected = [0.5 * u + world.clipped(g) for u, g in zip(world.kept("velocity"), gradients(2, 1), strict=True)]
    world.step(gradients(2, 1), rates=0.0)
    for velocity, u in zip(world.kept("velocity"), expected, strict=True):
        torch.testing.assert_close(velocity, u, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", [m for m in MASKED if m.clip is None], ids=label)
def test_a_velocity_that_overflows_does_not_enter_memory(method):
    world = World(method, 1, dtype=torch.float32, momentum=Momentum(factor=0.9))
    for _ in range(4):
        world.step([torch.full((MODEL.numel,), 3e38)])
        assert all(bool(torch.isfinite(v).all()) for v in (*world.kept("velocity"), *world.owed()))
    assert world.reducers[0].stats().skipped_steps


def test_momentum_and_loss_scale_do_not_meet():
    plain, scaled = (
        World(laconic.sdagc(1.5, whole_below=0, scope="layer", values="exact"), 2, dtype=torch.float32)
        for _ in range(2)
    )
    for step, scale in enumerate([1024.0, 1.0, 65536.0]):
        grads = gradients(2, step, dtype=torch.float32)
        mean = plain.step(grads)[0]
        assert same_bits(scaled.step([g * scale for g in grads], grad_scale=scale)[0], mean * scale)
        assert all(same_bits(a, b) for a, b in zip(scaled.kept("velocity"), plain.kept("velocity"), strict=True))
