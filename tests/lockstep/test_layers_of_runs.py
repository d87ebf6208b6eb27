"""The numbers of each parameter: density, threshold, what waits and for how long, against counting by hand."""

from __future__ import annotations

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import normal
from laconic.segments import Segments
from lockstep.world import MODEL, World, gradients

BUCKETS = [["s", "v"], ["empty"], ["b", "w"]]
THRESHOLDED = [
    laconic.sdagc(1.5, running=0.0, whole_below=4, scope="layer", values="exact"),
    laconic.sdagc(1.5, std_of="residual", revision="none", whole_below=0, scope="layer", values="exact"),
    laconic.sdagc(2.0, running=0.9, clip=1.0, clip_scope="layer", whole_below=0, scope="layer", values="exact"),
]


def _sent(accs, owed) -> torch.Tensor:
    return torch.stack([(a - o).abs() > 1e-12 for a, o in zip(accs, owed, strict=True)])


@pytest.mark.parametrize("method", THRESHOLDED, ids=label)
def test_the_numbers_of_a_layer_are_those_counted_by_hand(method):
    world, running = World(method, 3), [{} for _ in range(3)]
    for step in range(6):
        grads = gradients(3, step)
        added = world.enters(grads)
        accs = [o + a for o, a in zip(world.owed(), added, strict=True)]
        world.step(grads, buckets=BUCKETS)
        sent = _sent(accs, world.owed())
        for rank, reducer in enumerate(world.reducers):
            layers = {layer.name: layer for layer in reducer.stats().layers}
            assert list(layers) == list(MODEL.names)
            for s in MODEL:
                here = slice(s.offset, s.offset + s.size)
                layer, deviation = (
                    layers[s.name],
                    float(added[rank][here].square().mean().sqrt()) if s.size else 0.0,
                )
                before = running[rank].get(s.name) or deviation
                assert layer.entries == s.size
                if s.size == 0:
                    continue
                assert layer.density == pytest.approx(float(sent[:, here].double().mean()))
                norm = float(torch.linalg.vector_norm(world.owed()[rank][here]))
                assert layer.owed_gradients == pytest.approx(norm / (deviation * s.size**0.5))
                rule = method.compressor
                if s.size < rule.whole_below:
                    assert layer.threshold is None
                elif rule.std_of == "residual":
                    x = accs[rank][here]
                    assert layer.threshold == pytest.approx(float(x.mean().abs() + rule.c * x.std(correction=0)))
                else:
                    assert layer.threshold == pytest.approx(rule.c * (before if rule.running else deviation))
                running[rank][s.name] = rule.running * before + (1 - rule.running) * deviation
                assert layer.c == rule.c


@pytest.mark.parametrize("method", recipes(), ids=label)
def test_every_method_has_numbers_for_every_parameter(method):
    world = World(method, 2)
    assert [layer.name for layer in world.reducers[0].stats().layers] == list(MODEL.names)
    for step in range(3):
        world.step(gradients(2, step), buckets=BUCKETS)
    stats = world.reducers[0].stats()
    for layer in stats.layers:
        assert 0.0 <= layer.density <= 1.0
        assert layer.oldest is None or method.damping
        assert layer.owed_gradients >= 0.0
    if method.scope == "layer" and method.exchange.name == "gather_mean":
        # A parameter's share counts by its entries in the whole.
        total = sum(layer.density * layer.entries for layer in stats.layers)
        assert total / MODEL.numel == pytest.approx(stats.density)


@pytest.mark.parametrize(
    "method",
    [
        laconic.sdagc(2.0, whole_below=4, scope="layer", values="exact"),
        laconic.dgc(0.2, whole_below=0),
        laconic.topk(0.2, whole_below=4),
    ],
    ids=label,
)
def test_ages_count_the_steps_since_an_entry_that_still_owes_was_sent(method):
    world = World(method, 2, track_age=True)
    last = torch.zeros(2, MODEL.numel)
    for step in range(9):
        grads = gradients(2, step)
        accs = [o + a for o, a in zip(world.owed(), world.enters(grads), strict=True)]
        world.step(grads, buckets=BUCKETS)
        last[_sent(accs, world.owed())] = step + 1
        for rank, reducer in enumerate(world.reducers):
            ages = torch.where(world.owed()[rank] != 0, step + 1 - last[rank], 0.0)
            expected = [int(view.max()) if view.numel() else 0 for view in MODEL.views(ages)]
            assert [layer.oldest for layer in reducer.stats().layers] == expected
    assert max(expected) > 2


def test_ages_survive_a_checkpoint_and_cost_nothing_where_not_asked_for():
    method = laconic.sdagc(2.0, whole_below=0, scope="layer", values="exact")
    first, second = World(method, 2, track_age=True), World(method, 2, track_age=True)
    for step in range(4):
        first.step(gradients(2, step))
    second.load(first.save())
    for world in (first, second):
        world.step(gradients(2, 4))
    assert first.reducers[1].stats().layers == second.reducers[1].stats().layers
    assert "sent_at" not in World(method, 2).save()[0]["memory"]


def test_damping_divides_what_was_chosen_by_the_root_of_its_mean_delay():
    method = laconic.sdagc(2.0, revision="damp", running=0.0, whole_below=4, scope="layer", values="exact")
    world, last = World(method, 2), torch.zeros(2, MODEL.numel, dtype=torch.float64)
    damped = 0
    for step in range(10):
        grads = gradients(2, step)
        accs = [o + a for o, a in zip(world.owed(), world.enters(grads), strict=True)]
        mean = world.step(grads, buckets=BUCKETS)[0]
        expected = torch.zeros(MODEL.numel, dtype=torch.float64)
        for rank, (acc, owed) in enumerate(zip(accs, world.owed(), strict=True)):
            # What was chosen leaves memory whole: what damping cuts off is not owed.
            chosen = (acc != 0) & (owed == 0)
            for s in MODEL:
                here = slice(s.offset, s.offset + s.size)
                if s.size < 4:
                    expected[here] += acc[here]
                    continue
                at = torch.nonzero(chosen[here]).flatten() + s.offset
                delay = (step + 1 - last[rank, at]).mean().clamp(min=1.0)
                expected[at] += acc[at] / delay.sqrt()
                last[rank, at] = step + 1
                damped += int(delay > 1)
        torch.testing.assert_close(mean, expected / 2, rtol=1e-12, atol=1e-12)
    assert damped > 4


def test_a_threshold_over_the_whole_model_is_one_number():
    world = World(laconic.sdagc(1.5, over="model", whole_below=4, scope="layer", values="exact"), 2)
    for step in range(3):
        world.step(gradients(2, step), buckets=BUCKETS)
    known = [layer.threshold for layer in world.reducers[0].stats().layers if layer.threshold is not None]
    assert len(set(known)) == 1
    assert len([layer for layer in world.reducers[0].stats().layers if layer.entries >= 4]) == len(known)


def test_a_layer_of_quiet_gradients_is_heard_per_layer_and_not_against_the_whole():
    model = Segments.of(["loud", "quiet"], [500, 500])
    shares = {}
    for over in ("layer", "model"):
        world = World(
            laconic.sdagc(3.0, over=over, momentum=False, whole_below=0, scope="layer", values="exact"),
            2,
            model=model,
        )
        sent = []
        for step in range(30):
            grads = [normal(1000, 10 * step + rank, torch.float64) for rank in range(2)]
            for g in grads:
                g[500:] *= 1e-3
            world.step(grads)
            sent.append(world.reducers[0].stats().layers[1].density)
        shares[over] = sum(sent[10:]) / 20
    assert shares["layer"] > 10 * shares["model"]
