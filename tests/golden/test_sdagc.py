"""Thresholds and companions against values worked out by hand or by another formula (PAPERS.md 2 and 5.1-5.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

import laconic
from contracts.vectors import Flat, taken_by
from laconic.clipping import LocalClip, clip_factors
from laconic.compressors import SampledTopK, StdThreshold, TopK
from laconic.compressors.selection import spread
from laconic.segments import Segments
from laconic.tuners import Warmup
from laconic.types import Momentum, Observation
from lockstep.world import World, gradients

V = torch.tensor([0.9, -0.1, 0.05, 0, -0.02, 0.03, -0.8, 0.01], dtype=torch.float64)
LAYER = Segments.of(["w"], [8])


def test_mean_and_population_deviation():
    deviation, mean = spread(V)
    assert float(mean) == pytest.approx(0.00875, abs=1e-15)
    assert float(deviation) == pytest.approx(0.427680883, abs=5e-10)


@pytest.mark.parametrize(
    ("c", "threshold", "kept"), [(1.0, 0.436430883, [0, 6]), (1.5, 0.650271324, [0, 6]), (2.0, 0.864111766, [0])]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_thresholds_and_kept_indices(c, threshold, kept, dtype):
    rule = StdThreshold(c=c, std_of="residual", whole_below=0)
    sent = taken_by(rule, Flat(V.to(dtype), LAYER), rooms={"w": 8})
    digits = 5e-10 if dtype == torch.float64 else 1e-7
    assert float(sent.payload.thresholds) == pytest.approx(threshold, abs=digits)
    assert sent.payload.positions.tolist() == kept
    expected = V.to(dtype).clone()
    expected[kept] = 0
    assert torch.equal(sent.left, expected)


@pytest.mark.parametrize(
    ("density", "golden"),
    [
        (0.25, 1.150),
        (0.0625, 1.863),
        (0.015625, 2.418),
        (0.004, 2.878),
        (0.001, 3.291),
        (1 / 866, 3.250),
        (1 / 4042, 3.665),
    ],
)
def test_the_gaussian_coefficient_of_a_density(density, golden):
    rule = StdThreshold(c=1.0, std_of="residual").at_density(density)
    assert rule.c == pytest.approx(golden, abs=5e-4)
    assert rule.density == pytest.approx(density, rel=1e-9)
    # Gaussian tails, counted by another road.
    assert math.erfc(rule.c / math.sqrt(2)) == pytest.approx(density, rel=1e-9)


@pytest.mark.parametrize(("c", "density"), [(3.0, 0.0027), (3.29, 0.001)])
def test_the_nominal_density_of_a_coefficient(c, density):
    assert StdThreshold(c=c, std_of="residual").density == pytest.approx(density, rel=0.002)


@pytest.mark.parametrize("compressor", [TopK(density=0.001), SampledTopK(density=0.001)], ids=lambda c: c.name)
def test_warm_up_passes_the_rows_of_dgc(compressor):
    """Sparsity 75%, 93.75%, 98.4375%, 99.6%, 99.9%, an epoch each."""
    steps_per_epoch, rows = 50, [0.25, 0.0625, 0.015625, 0.004, 0.001]
    tuner = Warmup.epochs(4, steps_per_epoch=steps_per_epoch)
    state = tuner.init(compressor)
    for epoch, row in enumerate(rows):
        seen = Observation(step=epoch * steps_per_epoch, entries=0, sent=0, wanted=0, skipped=False)
        assert tuner.update(state, seen, compressor)[1].density == pytest.approx(row, rel=0.015)


def test_warm_up_of_the_residual_threshold_passes_the_coefficients_of_the_table():
    rule = StdThreshold(c=3.2905, std_of="residual")
    tuner = Warmup(steps=4)
    state = tuner.init(rule)
    for step, golden in enumerate([1.150, 1.863, 2.418, 2.878, 3.291]):
        seen = Observation(step=step, entries=0, sent=0, wanted=0, skipped=False)
        assert tuner.update(state, seen, rule)[1].c == pytest.approx(golden, abs=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 4, 16])
def test_clipping_by_either_convention_is_the_same_rule(ranks):
    """DGC clips g / N at thr / sqrt(N); laconic clips g at sqrt(N) * thr. Mixing them clips N times too hard."""
    g, threshold = torch.tensor([3.0, 4.0], dtype=torch.float64), 0.25
    ours = LocalClip(norm=threshold, convention="mean").threshold(world_size=ranks)
    theirs = LocalClip(norm=threshold, convention="sum").threshold(world_size=ranks)
    assert ours == pytest.approx(math.sqrt(ranks) * threshold)
    assert theirs == pytest.approx(threshold / math.sqrt(ranks))
    averaged = g * clip_factors(g.norm(), ours)
    summed = (g / ranks) * clip_factors((g / ranks).norm(), theirs)
    torch.testing.assert_close(averaged / ranks, summed)
    wrong = g * clip_factors(g.norm(), theirs)
    torch.testing.assert_close(averaged, ranks * wrong)


def test_clipped_local_gradients_of_equal_size_average_to_the_threshold():
    """Independent gradients: the norm of their mean is 1 / sqrt(N) of theirs, so the mean comes out at thr."""
    ranks, size, threshold = 16, 20_000, 0.25
    source = torch.Generator().manual_seed(0)
    g = torch.randn(ranks, size, generator=source)
    at = LocalClip(norm=threshold).threshold(world_size=ranks)
    clipped = g * clip_factors(g.norm(dim=1), at).unsqueeze(1)
    assert float(clipped.mean(0).norm()) == pytest.approx(threshold, rel=0.02)


MOMENTUM = 0.9
MODEL = Segments.of(["w", "v"], [6, 5])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("revision", ["rescale", "none"])
def test_with_everything_sent_and_no_masking_it_is_sgd_with_momentum(nesterov, revision):
    method = laconic.sdagc(0, whole_below=0, masking=False, revision=revision, scope="layer", values="exact")
    momentum = Momentum(factor=MOMENTUM, nesterov=nesterov)
    world, ours = World(method, 3, model=MODEL, momentum=momentum), torch.zeros(11, dtype=torch.float64)
    theirs = torch.nn.Parameter(torch.zeros(11, dtype=torch.float64))
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=MOMENTUM, nesterov=nesterov)
    for step in range(8):
        grads = gradients(3, step, numel=11)
        # The rate is the same throughout: velocity in gradient units, as SGD has it.
        ours = ours - 0.1 * world.step(grads, rates=0.1)[0]
        theirs.grad = torch.stack(grads).mean(0)
        optimizer.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
def test_it_is_the_published_loop_of_dgc(nesterov, masking):
    """One worker by DGC's own formulas; with Nesterov's form its u is m times ours, what is sent is the same."""
    density, numel = 0.25, 12
    model, m = Segments.of(["w"], [numel]), MOMENTUM
    base = laconic.dgc(density, whole_below=0, warmup_steps=0, masking=masking)
    exact, momentum = TopK(density=density, whole_below=0), Momentum(factor=m, nesterov=nesterov)
    world = World(replace(base, compressor=exact), 1, model=model, momentum=momentum)
    u = v = torch.zeros(numel, dtype=torch.float64)
    for step in range(12):
        (g,) = gradients(1, step, numel=numel)
        if nesterov:
            u = m * (u + g)
            v = v + u + g
        else:
            u = m * u + g
            v = v + u
        top = torch.topk(v.abs(), 3).indices
        sent = torch.zeros_like(v)
        sent[top] = v[top]
        v = v - sent
        if masking:
            u = u.clone()
            u[top] = 0
        handed = world.step([g], rates=0.1)[0]
        torch.testing.assert_close(handed, sent, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(world.kept("owed")[0], v, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(world.kept("velocity")[0] * (m if nesterov else 1), u, rtol=1e-12, atol=1e-13)


def test_the_published_loop_of_the_reconstruction():
    """PAPERS.md 2.2 for two workers, residual form: clip, velocity, rescaled memory, threshold, masking."""
    numel, ranks, c, m = 30, 2, 1.5, MOMENTUM
    model = Segments.of(["w"], [numel])
    method = laconic.sdagc(c, std_of="residual", clip=0.5, whole_below=0, scope="layer", values="exact")
    world = World(method, ranks, model=model, momentum=Momentum(factor=m))
    u = [torch.zeros(numel, dtype=torch.float64) for _ in range(ranks)]
    v = [torch.zeros(numel, dtype=torch.float64) for _ in range(ranks)]
    rate_before, room = 0.1, math.ceil(numel / c**2)
    for step in range(10):
        rate = 0.1 if step < 5 else 0.02
        total = torch.zeros(numel, dtype=torch.float64)
        for k, g in enumerate(gradients(ranks, step, numel=numel)):
            clipped = g * min(1.0, 0.5 * math.sqrt(ranks) / float(g.norm()))
            u[k] = m * u[k] + clipped
            v[k] = v[k] * (rate_before / rate) + u[k]
            threshold = abs(float(v[k].mean())) + c * float(v[k].std(correction=0))
            found = (v[k].abs() > threshold).nonzero().flatten()
            found = found if len(found) else v[k].abs().argmax().unsqueeze(0)
            # What has no room waits: the first room is Chebyshev's, the next follow from what all counted.
            # Another place of the layer comes first in every step, spread by the golden ratio.
            start = math.floor(step * (math.sqrt(5) - 1) / 2 % 1 * numel)
            found = torch.cat([found[found >= start], found[found < start]])[:room]
            total[found] += v[k][found]
            v[k][found] = 0
            u[k][found] = 0
        handed = world.step(gradients(ranks, step, numel=numel), rates=rate)[0]
        torch.testing.assert_close(handed, total / ranks, rtol=1e-11, atol=1e-12)
        for k in range(ranks):
            torch.testing.assert_close(world.kept("owed")[k] / rate, v[k], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(world.kept("velocity")[k], u[k], rtol=1e-11, atol=1e-12)
        room = world.rooms()["w"]
        rate_before = rate


def test_the_quantile_of_gaussian_k():
    """0.1% of a normal distribution lies beyond 3.29 deviations, 1% beyond 2.576."""
    for density, golden in ((0.001, 3.2905), (0.01, 2.5758)):
        assert NormalDist().inv_cdf(1 - density / 2) == pytest.approx(golden, abs=1e-4)
        x = torch.randn(400_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        rule = laconic.GaussianK(density=density, whole_below=0)
        sent = taken_by(rule, Flat(x, Segments.of(["w"], [400_000])))
        assert float(sent.payload.thresholds) == pytest.approx(golden, rel=0.01)


@pytest.mark.parametrize(("density", "golden"), [(0.25, 1.3863), (0.01, 4.6052), (0.001, 6.9078)])
def test_the_exponential_fit_of_sidco(density, golden):
    """thr = -mean(a) ln(density): for a mean of 1, the logarithm itself."""
    x = torch.tensor([0.5, -1.5, 1.0, -1.0], dtype=torch.float64)
    sent = taken_by(laconic.Sidco(density=density, whole_below=0), Flat(x, Segments.of(["w"], [4])))
    assert float(sent.payload.thresholds) == pytest.approx(golden, abs=5e-5)


def test_the_stages_of_sidco_reach_the_density_of_an_exponential_tail():
    """A quarter, then equal factors: on exponential magnitudes every road leads to -ln(density)."""
    n = 200_000
    # The quantiles of the exponential distribution themselves.
    x = -torch.log1p(-(torch.arange(n, dtype=torch.float64) + 0.5) / n)
    for stages in (1, 2, 3, 5):
        rule = laconic.Sidco(density=0.001, stages=stages, whole_below=0)
        sent = taken_by(rule, Flat(x, Segments.of(["w"], [n])))
        assert float(sent.payload.thresholds) == pytest.approx(-math.log(0.001), rel=0.01)
