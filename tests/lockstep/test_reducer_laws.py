"""The reducer on one to five ranks: agreement, conservation, identity, and the obvious loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import laconic
from contracts.registry import label, recipes
from contracts.vectors import dyadic, same_bits
from covering import in_turn
from laconic.method import Method
from laconic.segments import Segments
from lockstep.world import MODEL, World, gradients, top_of

# Damping lets go of what it cuts off, as a lower learning rate does: it has an exam of its own. So has what fades.
REMEMBERING = [m for m in recipes() if m.memory != "none" and not m.damping and m.decay == 1]
# Clipping to a norm, mean magnitudes, most values of tau and directions round; the others add, halve and compare.
ROUNDS = ("adacomp", "strom")
EXACT = [m for m in REMEMBERING if m.clip is None and m.compressor.name not in ROUNDS and m.exchange.lossless]
EXACT += [laconic.strom(0.125, whole_below=0), laconic.strom(0.5, memory="gradient", whole_below=4)]

BUCKETS = [["s", "v"], ["empty"], ["b", "w"]]
RATES = [0.5, 0.25, 2.0, 0.5]
EVERYTHING = [
    laconic.dense(),
    laconic.topk(1.0, whole_below=4),
    laconic.topk(1.0, memory="none", scope="model"),
    laconic.topk(1.0, memory="update"),
    laconic.topk_sgd(1.0),
    laconic.randomk(1.0),
    laconic.randomk(1.0, memory="update"),
    laconic.sdagc(0.0, momentum=False, scope="layer", values="exact"),
    laconic.sdagc(0.0, momentum=False, std_of="residual", revision="none", scope="model", values="exact"),
    replace(laconic.dgc(1.0, warmup_steps=0, whole_below=0), momentum="optimizer", masking=False),
]


def _unit(method: Method, rate: float) -> float:
    """What one unit of gradient is in the units of what is owed."""
    return rate if method.memory == "update" else 1.0


class Books:
    """What all ranks took in, and what was handed back to them, in the units of what is owed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.given = self.handed = torch.zeros(MODEL.numel, dtype=torch.float64)

    def step(self, grads, *, rates, **options) -> list[torch.Tensor]:
        ranks = len(grads)
        self.given = self.given + torch.stack(self.world.enters(grads, rates=rates)).double().sum(0)
        means = self.world.step(grads, rates=rates, **options)
        self.handed = self.handed + means[0].double() * ranks * self.world.units(rates).double()
        return means

    def accounted(self) -> torch.Tensor:
        return self.handed + torch.stack(self.world.owed()).double().sum(0)


@pytest.mark.parametrize(("method", "ranks"), in_turn(recipes(), [2, 3, 5], ids=label))
def test_every_rank_is_handed_the_same_bits_in_every_step(method, ranks):
    world = World(method, ranks, dtype=torch.float32)
    for step in range(6):
        first, *others = world.step(gradients(ranks, step, dtype=torch.float32), buckets=BUCKETS)
        assert bool(torch.isfinite(first).all())
        for mean in others:
            assert same_bits(mean, first)


@pytest.mark.parametrize(("method", "ranks"), in_turn(EXACT, [2, 4], ids=label))
def test_what_was_handed_back_and_what_is_owed_is_everything_exactly(method, ranks):
    books, owing = Books(World(method, ranks)), False
    for step in range(12):
        books.step(gradients(ranks, step, draw=dyadic), rates=RATES[step % 4], buckets=BUCKETS)
        assert torch.equal(books.accounted(), books.given)
        owing |= any(bool(owed.any()) for owed in books.world.owed())
    assert owing


@pytest.mark.parametrize(
    ("method", "world"),
    in_turn(REMEMBERING, [(2, torch.float64), (3, torch.float32), (5, torch.float64)], ids=label),
)
def test_what_was_handed_back_and_what_is_owed_is_everything_to_rounding(method, world):
    ranks, dtype = world
    books = Books(World(method, ranks, dtype=dtype))
    for step in range(12):
        books.step(gradients(ranks, step, dtype=dtype), rates=RATES[step % 4])
    close = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(books.accounted(), books.given, rtol=close, atol=close)


@pytest.mark.parametrize("method", EVERYTHING, ids=label)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_with_everything_sent_it_is_the_dense_mean_step_for_step(method, ranks):
    world = World(method, ranks)
    for step in range(4):
        grads = gradients(ranks, step, draw=dyadic)
        for mean in world.step(grads, rates=RATES[step], buckets=BUCKETS):
            assert torch.equal(mean, torch.stack(grads).sum(0) / ranks)
        assert not any(owed.any() for owed in world.owed())


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("memory", ["none", "gradient", "update"])
@pytest.mark.parametrize("scope", ["layer", "model"])
def test_topk_is_the_obvious_loop(ranks, memory, scope):
    method = laconic.topk(0.3, memory=memory, scope=scope, whole_below=0)
    segments = MODEL if scope == "layer" else MODEL.merged()
    world, owed = World(method, ranks), [torch.zeros(MODEL.numel, dtype=torch.float64)] * ranks
    for step in range(6):
        rate = RATES[step % 4]
        grads = gradients(ranks, step)
        accs = [o + _unit(method, rate) * g for o, g in zip(owed, grads, strict=True)]
        sent = [top_of(acc, segments, 0.3) for acc in accs]
        if memory != "none":
            owed = [acc - s for acc, s in zip(accs, sent, strict=True)]
        mean = world.step(grads, rates=rate, buckets=BUCKETS)[0]
        torch.testing.assert_close(mean, torch.stack(sent).mean(0) / _unit(method, rate), rtol=1e-12, atol=1e-14)
        for ours, theirs in zip(world.owed(), owed, strict=memory != "none"):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_scopes_agree_on_a_model_of_one_parameter():
    model = Segments.of(["w"], [30])
    layer, whole = (World(laconic.topk(0.2, scope=s, whole_below=0), 3, model=model) for s in ("layer", "model"))
    for step in range(5):
        grads = gradients(3, step, numel=30)
        assert same_bits(layer.step(grads)[0], whole.step(grads)[0])


def test_a_layer_with_small_gradients_is_heard_per_layer_and_drowned_in_the_whole():
    grad = torch.ones(MODEL.numel, dtype=torch.float64)
    grad[MODEL["w"].offset : MODEL["w"].offset + 14] = 100.0
    layer = World(laconic.topk(0.3, whole_below=0), 1).step([grad])[0]
    whole = World(laconic.topk(0.3, scope="model", whole_below=0), 1).step([grad])[0]
    assert all(bool(view.any()) for view in MODEL.views(layer) if view.numel())
    assert bool(MODEL.views(whole)[0].any())
    assert not any(bool(view.any()) for view in MODEL.views(whole)[1:])


@pytest.mark.parametrize(
    ("method", "world"), in_turn(EXACT, [(1, torch.float16), (2, torch.bfloat16), (4, torch.float16)], ids=label)
)
def test_what_narrow_gradients_cannot_carry_stays_owed(method, world):
    ranks, narrow = world
    books = Books(World(method, ranks))
    for step in range(8):
        grads = [g.to(narrow) for g in gradients(ranks, step, draw=dyadic)]
        means = books.step(grads, rates=RATES[step % 4], buckets=BUCKETS)
        assert all(torch.equal(mean, means[0]) for mean in means)
        assert torch.equal(books.accounted(), books.given)


def test_gradients_in_half_precision_are_remembered_in_full():
    world = World(laconic.topk(0.1, whole_below=0), 2, dtype=torch.float32)
    for step in range(3):
        first = world.step([g.to(torch.bfloat16) for g in gradients(2, step)], buckets=BUCKETS)[0]
        assert first.dtype == torch.bfloat16
    owed = world.owed()[0]
    assert owed.dtype == torch.float32
    assert not torch.equal(owed, owed.to(torch.bfloat16).float())


def test_a_mean_beyond_half_precision_is_handed_back_in_pieces():
    model = Segments.of(["w"], [4])
    world, none = World(laconic.topk(1.0), 1, model=model, dtype=torch.float32), torch.zeros(4, dtype=torch.float16)
    most = torch.finfo(torch.float16).max
    handed = [world.step([torch.full((4,), most, dtype=torch.float16)], grad_scale=0.5)[0]]
    handed += [world.step([none.clone()], grad_scale=1.0)[0] for _ in range(2)]
    # Twice the largest number is owed, and half of it is handed back at a scale of 0.5.
    assert sum(float(h[0]) * scale for h, scale in zip(handed, [2.0, 1.0, 1.0], strict=True)) == 2 * most
