"""Local clipping: what is accumulated is the clipped gradient, whatever the buckets, the scale and the scope."""

from __future__ import annotations

import pytest
import torch

import laconic
from contracts.vectors import normal, same_bits
from laconic.segments import Segments
from lockstep.world import MODEL, World, gradients

BUCKETS = [["s", "v"], ["empty"], ["b", "w"]]
SCOPES = pytest.mark.parametrize("clip_scope", ["layer", "model"])
CONVENTIONS = {"mean": lambda ranks: ranks**0.5, "sum": lambda ranks: ranks**-0.5, "local": lambda ranks: 1.0}


def _method(clip: float | None, **settings) -> laconic.Method:
    return laconic.sdagc(1.5, clip=clip, whole_below=4, **settings, scope="layer", values="exact")


def _norms(flat: torch.Tensor, clip_scope: str) -> list[float]:
    parts = [v for v in MODEL.views(flat) if v.numel()] if clip_scope == "layer" else [flat]
    return [float(torch.linalg.vector_norm(part)) for part in parts]


@SCOPES
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_no_rank_takes_in_more_than_the_norm_that_its_convention_says(clip_scope, convention, ranks):
    """With everything sent and one loud rank, the mean shows what that rank took in."""
    method = laconic.sdagc(
        0.0, clip=0.25, clip_scope=clip_scope, convention=convention, momentum=False, scope="layer", values="exact"
    )
    world = World(method, ranks)
    loud = [gradients(1, 3)[0] * 100] + [torch.zeros(MODEL.numel, dtype=torch.float64)] * (ranks - 1)
    most = 0.25 * CONVENTIONS[convention](ranks)
    for norm in _norms(world.step(loud)[0] * ranks, clip_scope):
        assert norm == pytest.approx(most, rel=1e-12)


@SCOPES
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_what_is_below_the_norm_enters_as_it_is(clip_scope, convention):
    clipping, plain = (
        World(_method(clip, clip_scope=clip_scope, convention=convention), 3) for clip in (1e6, None)
    )
    for step in range(4):
        grads = gradients(3, step)
        assert same_bits(clipping.step(grads, buckets=BUCKETS)[0], plain.step(grads, buckets=BUCKETS)[0])
    assert [layer.clipped_share for layer in clipping.reducers[0].stats().layers] == [0.0] * len(MODEL)


@SCOPES
def test_clipping_once_here_is_clipping_before(clip_scope):
    """The mean of gradients that the caller clipped, each rank its own."""
    method = _method(0.5, clip_scope=clip_scope, convention="local")
    inside, outside = World(method, 3), World(_method(None), 3)
    for step in range(6):
        grads = gradients(3, step)
        ours = inside.step(grads, buckets=BUCKETS)[0]
        theirs = outside.step([inside.clipped(g) for g in grads], buckets=BUCKETS)[0]
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@SCOPES
def test_thresholds_are_for_unscaled_gradients(clip_scope):
    plain, scaled = (World(_method(0.5, clip_scope=clip_scope), 2, dtype=torch.float32) for _ in range(2))
    for step, scale in enumerate([1024.0, 65536.0, 0.5]):
        grads = gradients(2, step, dtype=torch.float32)
        mean = plain.step(grads)[0]
        assert same_bits(scaled.step([g * scale for g in grads], grad_scale=scale)[0], mean * scale)
    assert scaled.reducers[1].stats().layers[0].clipped_share == 1.0


@SCOPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_norm_does_not_depend_on_how_parameters_are_dealt_into_buckets(clip_scope, dtype):
    """Sums of squares in another order have other last bits, and bits must not follow the buckets."""
    names = [f"p{i}" for i in range(12)]
    model = Segments.of(names, [7 * i + 1 for i in range(12)])
    method = laconic.sdagc(0.0, clip=0.25, clip_scope=clip_scope, momentum=False, scope="layer", values="exact")
    for seed in range(8):
        grads = [normal(model.numel, 50 * seed + rank, dtype) for rank in range(2)]
        whole = World(method, 2, model=model, dtype=dtype).step(grads)[0]
        for dealt in ([names[::-1]], [names[6:], names[:6]], [[n] for n in names[::-1]], [names[::2], names[1::2]]):
            assert same_bits(World(method, 2, model=model, dtype=dtype).step(grads, buckets=dealt)[0], whole)


@SCOPES
def test_clipped_share_counts_the_steps_in_which_a_parameter_was_clipped(clip_scope):
    world = World(_method(0.5, clip_scope=clip_scope, convention="local"), 2)
    small, counts = [gradients(2, step)[0] * 1e-3 for step in range(6)], torch.zeros(len(MODEL))
    for step in range(6):
        grads = [small[step], gradients(2, step)[1] * (1.0 if step % 3 == 0 else 1e-3)]
        clipped = world.clipped(grads[1])
        for i, (a, b) in enumerate(zip(MODEL.views(clipped), MODEL.views(grads[1]), strict=True)):
            counts[i] += not torch.equal(a, b)
        world.step(grads)
    shares = [[layer.clipped_share for layer in r.stats().layers] for r in world.reducers]
    assert shares[0] == [0.0] * len(MODEL)
    expected = (counts / 6).tolist()
    if clip_scope == "model":
        # The whole gradient was clipped, and with it a parameter without entries.
        expected = [max(expected)] * len(MODEL)
    assert shares[1] == pytest.approx(expected)
    assert max(expected) == pytest.approx(2 / 6)


@SCOPES
def test_skipped_steps_do_not_count_as_steps_in_which_it_could_have_been_clipped(clip_scope):
    world = World(_method(1e-3, clip_scope=clip_scope), 2)
    bad = gradients(2, 1)
    bad[0][0] = torch.nan
    for grads in (gradients(2, 0), bad, gradients(2, 2)):
        world.step(grads)
    shares = [layer.clipped_share for layer in world.reducers[0].stats().layers if layer.entries]
    assert shares == [1.0] * len(shares)


@SCOPES
def test_a_norm_of_zero_clips_nothing(clip_scope):
    world = World(_method(0.5, clip_scope=clip_scope), 2)
    mean = world.step([torch.zeros(MODEL.numel, dtype=torch.float64)] * 2)[0]
    assert not mean.any()
    assert not world.reducers[0].outcome.skipped


@pytest.mark.parametrize(("clip_scope", "waits"), [("layer", False), ("model", True)])
def test_only_the_norm_of_the_whole_model_waits_for_the_last_bucket(clip_scope, waits):
    world = World(_method(0.5, clip_scope=clip_scope), 2)
    reducer, port = world.reducers[0], world.lockstep.ports[0]
    reducer.begin_step()
    reducer.begin(torch.ones(14, dtype=torch.float64), Segments.of(["w"], [14]))
    assert port.collectives == (0 if waits else 1)
    reducer.begin(torch.ones(13, dtype=torch.float64), Segments.of(["b", "empty", "v", "s"], [3, 0, 9, 1]))
    reducer.end_step()
    assert port.collectives == 2
