"""Intake: the loss scale, clipping, momentum and the unit of memory, in this order, by parameter name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.futures import Future

import laconic
from contracts.vectors import normal, same_bits
from laconic.clipping import LocalClip
from laconic.intake import Intake
from laconic.job import Job, Part
from laconic.memory import Memory
from laconic.segments import Segments
from laconic.types import Momentum

MODEL = Segments.of(["a", "b", "c"], [3, 4, 2])
PLAIN = Intake(model=MODEL, unit="gradient", rates={}, momenta={}, grad_scale=1.0, clip=None, world_size=4)


def _memory(**kinds: torch.dtype) -> Memory:
    kinds = {"owed": torch.float64, **kinds}
    memory = Memory(MODEL, kinds=kinds, device=torch.device("cpu"))
    for i, kind in enumerate(kinds):
        memory[kind].copy_(normal(MODEL.numel, 90 + i, torch.float64))
    return memory


def _job(names: tuple[str, ...] = ("a", "b", "c"), seed: int = 1) -> Job:
    segments = Segments.of(names, [MODEL[name].size for name in names])
    x = normal(segments.numel, seed, torch.float64)
    return Job(x, segments, parts=[Part(x, segments, segments, Future())])


def _entered(intake: Intake, job: Job, memory: Memory) -> Job:
    norms = intake.norms([job])
    intake.enter_(job, memory, None if norms is None else norms[0])
    return job


@pytest.mark.parametrize(("unit", "factor"), [("gradient", 1.0), ("update", 0.25)])
def test_what_is_owed_grows_by_the_gradient_in_memorys_unit(unit, factor):
    memory = _memory()
    job = _entered(replace(PLAIN, unit=unit, rates=dict.fromkeys(MODEL.names, 0.25)), _job(), memory)
    torch.testing.assert_close(job.x, normal(9, 90, torch.float64) + factor * normal(9, 1, torch.float64))
    assert same_bits(memory["owed"], normal(9, 90, torch.float64))
    assert bool(job.finite)


def test_the_loss_scale_is_undone_and_given_back_with_the_factors():
    intake = replace(PLAIN, unit="update", rates={"a": 0.5, "b": 0.25, "c": 0.0}, grad_scale=1024.0)
    job, memory = _job(), _memory()
    job.x.mul_(1024.0)
    _entered(intake, job, memory)
    views = dict(zip(MODEL.names, MODEL.views(job.x - memory["owed"]), strict=True))
    fresh = dict(zip(MODEL.names, MODEL.views(normal(9, 1, torch.float64)), strict=True))
    torch.testing.assert_close(views["a"], 0.5 * fresh["a"])
    torch.testing.assert_close(views["b"], 0.25 * fresh["b"])
    assert intake.factors == {"a": 2048.0, "b": 4096.0, "c": 1024.0}
    # Without memory there is no unit but the loss scale.
    assert replace(intake, unit="none").factors == dict.fromkeys(MODEL.names, 1024.0)


@pytest.mark.parametrize("unit", ["gradient", "update"])
def test_at_rate_zero_a_parameter_is_held_and_takes_nothing_in(unit):
    intake = replace(PLAIN, unit=unit, rates={"a": 0.5, "b": 0.0, "c": 0.5})
    memory, job = _memory(), _job()
    _entered(intake, job, memory)
    assert intake.held == {"b"}
    assert not MODEL.views(job.x)[1].any()
    torch.testing.assert_close(MODEL.views(job.held_back())[1], MODEL.views(memory["owed"])[1])


@pytest.mark.parametrize("nesterov", [False, True])
def test_velocity_is_built_of_gradients_and_what_is_owed_of_velocity(nesterov):
    momenta = {"a": Momentum(factor=0.9, nesterov=nesterov), "b": Momentum(factor=0.5)}
    memory, job = _memory(velocity=torch.float64), _job(("b", "a", "c"))
    owed, velocity, g = memory["owed"].clone(), memory["velocity"].clone(), job.x.clone()
    _entered(replace(PLAIN, momenta=momenta, unit="update", rates=dict.fromkeys("abc", 0.5)), job, memory)
    for name, here in zip(job.segments.names, job.segments, strict=True):
        at, span = slice(here.offset, here.offset + here.size), MODEL[name]
        home = slice(span.offset, span.offset + span.size)
        m = momenta.get(name, Momentum(factor=0.0))
        u = m.factor * velocity[home] + g[at]
        step = g[at] + m.factor * u if m.nesterov else u
        torch.testing.assert_close(job.velocity[at], u)
        torch.testing.assert_close(job.x[at], owed[home] + 0.5 * step)
    assert same_bits(memory["velocity"], velocity)
    assert same_bits(memory["owed"], owed)


def test_clipping_a_layer_looks_at_each_parameter_and_clipping_the_model_at_all_buckets():
    jobs = [_job(("c", "b")), _job(("a",), seed=2)]
    layer = replace(PLAIN, clip=LocalClip(norm=1.0, scope="layer")).norms(jobs)
    assert [len(n) for n in layer] == [2, 1]
    assert float(layer[0][0]) == pytest.approx(float(jobs[0].x[:2].norm()))
    model = replace(PLAIN, clip=LocalClip(norm=1.0, scope="model")).norms(jobs)
    whole = float(torch.cat([job.x for job in jobs]).norm())
    assert [n.tolist() for n in model] == [pytest.approx([whole] * 2), pytest.approx([whole])]
    assert PLAIN.norms(jobs) is None


def test_the_models_norm_is_the_same_to_the_bit_however_the_buckets_are_laid_out():
    """DDP lays them out anew after the first step: a run that is resumed there must clip alike."""
    sizes = [3, 1, 70, 5, 200, 9]
    model = Segments.of([str(i) for i in range(len(sizes))], sizes)
    intake = replace(PLAIN, model=model, clip=LocalClip(norm=1.0, scope="model"))
    grads = {s.name: normal(s.size, i, torch.float32) for i, s in enumerate(model)}
    seen = set()
    for layout in (
        [["0", "1", "2", "3", "4", "5"]],
        [["5", "4", "3", "2", "1", "0"]],
        [["4", "1"], ["0", "5", "3", "2"]],
    ):
        jobs = []
        for names in layout:
            segments = Segments.of(names, [model[name].size for name in names])
            x = torch.cat([grads[name] for name in names])
            jobs.append(Job(x, segments, parts=[Part(x, segments, segments, Future())]))
        norms = intake.norms(jobs)
        assert [len(n) for n in norms] == [len(names) for names in layout]
        seen.update(float(n) for norm in norms for n in norm)
    assert len(seen) == 1
    whole = torch.cat(list(grads.values())).norm()
    assert seen.pop() == pytest.approx(float(whole))


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_gradient_is_clipped_before_it_enters_whatever_the_loss_scale(scale):
    """Four ranks and the convention of the mean: each clips at twice the norm."""
    intake = replace(PLAIN, clip=LocalClip(norm=0.1), grad_scale=scale)
    memory, job = _memory(), _job()
    job.x.mul_(scale)
    _entered(intake, job, memory)
    added = job.x - memory["owed"]
    assert float(added.norm()) == pytest.approx(0.2)
    fresh = normal(9, 1, torch.float64)
    torch.testing.assert_close(added, fresh * 0.2 / fresh.norm())
    assert job.entered.clipped.tolist() == [1.0, 1.0, 1.0]
    loose = _entered(replace(intake, clip=LocalClip(norm=100.0)), _job(), _memory())
    assert loose.entered.clipped.tolist() == [0.0, 0.0, 0.0]


def test_what_entered_is_told_by_segment_in_memorys_unit():
    memory, job = _memory(), _job(("b", "c"))
    g = job.x.clone()
    _entered(replace(PLAIN, unit="update", rates=dict.fromkeys("abc", 0.5)), job, memory)
    entered = job.entered
    assert entered.segments == job.segments
    rms = [0.5 * math.sqrt(float(v.square().mean())) for v in job.segments.views(g)]
    assert entered.deviation.tolist() == pytest.approx(rms)
    assert entered.largest.tolist() == [float(v.abs().max()) for v in job.segments.views(job.x)]


@pytest.mark.parametrize("clip", [None, LocalClip(norm=1.0), LocalClip(norm=1.0, scope="layer")])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_number_is_seen_with_and_without_clipping(clip, bad):
    job = _job()
    job.x[4] = bad
    assert not _entered(replace(PLAIN, clip=clip), job, _memory()).finite


def test_it_is_made_of_a_method_and_a_rate_too_small_to_divide_by_is_none():
    rates = {"a": 0.5, "b": 1e-39, "c": 0.0}
    method, momenta = laconic.sdagc(clip=0.5, scope="layer", values="exact"), {"a": Momentum(factor=0.9)}
    intake = Intake.of(method, MODEL, rates, momenta, grad_scale=8.0, world_size=2)
    assert (intake.unit, intake.clip, intake.momenta) == ("update", method.clip, momenta)
    assert (intake.grad_scale, intake.world_size) == (8.0, 2)
    assert intake.rates == {"a": 0.5, "b": 0.0, "c": 0.0}
    assert intake.held == {"b", "c"}


def test_the_digest_is_of_rates_and_momenta():
    one = replace(PLAIN, rates=dict.fromkeys("abc", 0.5))
    others = [
        PLAIN,
        replace(one, rates={**one.rates, "c": 0.25}),
        replace(one, momenta={"a": Momentum(factor=0.9)}),
        replace(one, momenta={"a": Momentum(factor=0.8)}),
        replace(one, momenta={"a": Momentum(factor=0.9, nesterov=True)}),
    ]
    digests = {intake.digest for intake in (one, *others)}
    assert len(digests) == 1 + len(others)
    assert replace(one, rates=dict(reversed(one.rates.items())), grad_scale=8.0).digest == one.digest
