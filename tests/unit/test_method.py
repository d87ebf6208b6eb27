"""What a method refuses when it is written, and what the recipes put together."""

from __future__ import annotations

from dataclasses import replace

import pytest

import laconic
from laconic.clipping import LocalClip
from laconic.compressors import Dense, SampledTopK, Sidco, StdThreshold, Strom
from laconic.costs import Bits
from laconic.exchanges import GatherMean
from laconic.guard import Guard
from laconic.tuners import Budget, Cat, Constant, Progress, Relief, Stages, TargetDensity, Warmup


@pytest.mark.parametrize(
    ("method", "change", "says"),
    [
        (laconic.topk(), {"momentum": "mine"}, "momentum must be one of optimizer, method; got 'mine'"),
        (
            laconic.dense(),
            {"clip": LocalClip(norm=1.0)},
            r"Dense is plain DDP to the bit: clip in the training loop",
        ),
        (laconic.dgc(), {"memory": "none"}, r"need memory: set memory='gradient' or 'update'"),
        (laconic.topk(memory="none"), {"damping": True}, r"momentum='method' and damping need memory"),
        (laconic.randomk(), {"damping": True}, r"damping needs entries that waited; with randomk none is chosen"),
        (
            laconic.sdagc(scope="layer"),
            {"compressor": StdThreshold(c=3.0, over="model")},
            r"one threshold over all layers needs all of them: give .*scope='model' .*running=0\.9 ",
        ),
        (
            laconic.randomk(),
            {"tuner": Budget(share=0.1)},
            r"budget moves how much each rank chooses.*reduce_mean and randomk",
        ),
        (
            laconic.randomk(),
            {"tuner": Cat(cost=Bits()), "exchange": GatherMean()},
            r"cat moves how much .* gather_mean and",
        ),
        (laconic.topk(), {"tuner": Progress()}, r"the law of progress moves a coefficient c, and topk has none"),
        (laconic.topk(), {"tuner": TargetDensity()}, r"a target density moves .* topk has none\. Use StdThreshold"),
        (laconic.topk(), {"tuner": Stages()}, r"stages are SIDCo's, and topk has none\. Use Sidco"),
        (laconic.strom(), {"tuner": Warmup()}, r"warm-up moves a density, and strom has none\. Use Constant"),
        (
            laconic.strom(),
            {"tuner": Relief(), "guard": Guard()},
            r"relief moves a density, and strom has none\. Use Constant",
        ),
        (laconic.topk(), {"tuner": Relief()}, r"Relief answers a guard's alarm: set guard=Guard\(\)"),
        (laconic.sdagc(fallback=True), {"guard": None}, r"Relief answers a guard's alarm: set guard=Guard\(\)"),
        (laconic.topk(), {"masking": True}, r"masking is of the method's own velocity: set momentum='method', or"),
        (laconic.dgc(), {"momentum": "optimizer"}, r"masking is of the method's own velocity: .*masking=False"),
        (
            laconic.dense(),
            {"guard": Guard()},
            r"reduce_mean carries no alarm, no loss and no spectrum: leave guard=None, or use",
        ),
        (
            laconic.randomk(),
            {"guard": Guard()},
            r"reduce_mean carries no alarm, no loss and no spectrum: .*GatherMean\(\)",
        ),
        (laconic.randomk(), {"tuner": Progress()}, r"reduce_mean carries no alarm, no loss and no spectrum"),
        (laconic.randomk(), {"tuner": Cat()}, r"reduce_mean carries no alarm, no loss and no spectrum"),
        (laconic.strom(), {"tuner": Cat()}, r"cat moves a density, and strom has none\. Use Constant"),
        (laconic.strom(), {"tuner": Budget(share=0.1)}, r"a budget moves a density, and strom has none"),
    ],
    ids=lambda v: repr(v) if isinstance(v, dict) else "",
)
def test_parts_that_do_not_go_together_are_refused(method, change, says):
    with pytest.raises(ValueError, match=says):
        replace(method, **change)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (
            "compressor",
            StdThreshold,
            r"compressor must be of the kind Compressor, such as TopK\(density=0\.01\), got <class",
        ),
        ("compressor", "topk", "compressor must be of the kind Compressor, such as .*, got 'topk'"),
        ("exchange", GatherMean, r"exchange must be of the kind Exchange, such as GatherMean\(\), got <class"),
        ("tuner", Constant, r"tuner must be of the kind Tuner, such as Constant\(\), got <class"),
        ("clip", 0.25, r"clip must be of the kind LocalClip, such as LocalClip\(norm=0\.25\), got 0\.25"),
        ("guard", Guard, r"guard must be of the kind Guard, such as Guard\(\), got <class"),
    ],
    ids=repr,
)
def test_what_is_no_part_is_refused(field, value, says):
    with pytest.raises(TypeError, match=says):
        replace(laconic.sdagc(), **{field: value})


def test_one_threshold_over_all_layers_is_had_in_two_ways():
    assert laconic.sdagc(over="model").compressor.running > 0
    waiting = laconic.sdagc(over="model", running=0.0, scope="model")
    assert (waiting.compressor.running, waiting.scope) == (0.0, "model")
    with pytest.raises(ValueError, match="one threshold over all layers"):
        laconic.sdagc(over="model", running=0.0, scope="layer")


@pytest.mark.parametrize(
    ("settings", "tuner"),
    [
        ({"law": "fixed"}, Warmup(start=0.03, steps=16)),
        ({"law": "fixed", "warmup_steps": 7}, Warmup(start=0.03, steps=7)),
        ({"law": "fixed", "warmup_steps": 0}, Constant()),
        ({"law": "progress"}, Progress(c_min=4.0)),
        ({"law": "target"}, TargetDensity(density=0.004)),
        ({"law": "target", "density": 0.02}, TargetDensity(density=0.02)),
    ],
    ids=repr,
)
def test_a_law_is_a_tuner_and_a_fall_back_goes_around_it(settings, tuner):
    assert laconic.sdagc(8.0, **settings).tuner == tuner
    assert laconic.sdagc(8.0, **settings, fallback=True).tuner == Relief(inner=tuner)


@pytest.mark.parametrize("law", ["fixed", "progress"])
def test_a_density_is_for_the_law_that_holds_one(law):
    """Taken and not looked at, it would be believed to be held."""
    with pytest.raises(ValueError, match=rf"density is what law='target' holds; with law='{law}' .*Leave it out"):
        laconic.sdagc(law=law, density=0.01)


@pytest.mark.parametrize("law", ["progress", "target"])
def test_warm_up_steps_are_for_the_law_that_warms_up(law):
    with pytest.raises(ValueError, match=rf"warmup_steps is for law='fixed', got law='{law}'\. Leave it out"):
        laconic.sdagc(law=law, warmup_steps=10)


@pytest.mark.parametrize("c", [0.0, 3.0, 5.6])
def test_a_threshold_that_lets_much_pass_begins_as_it_goes_on(c):
    assert laconic.sdagc(c).tuner == laconic.sdagc(c, warmup_steps=0).tuner == Constant()
    with pytest.raises(
        ValueError, match=r"warmup_steps: c=.* lets a share of .* pass, and a warm-up begins with 0\.03"
    ):
        laconic.sdagc(c, warmup_steps=5)


def test_a_target_does_not_lose_a_residuals_coefficient_where_nothing_ever_passes():
    """Its tail is a normal one: at the largest coefficient there must still be a density to come back from."""
    held = {form: laconic.sdagc(3.0, std_of=form, law="target").tuner for form in ("gradient", "residual")}
    for form, tuner in held.items():
        assert 1e-20 < StdThreshold(c=tuner.c_max, std_of=form).density < 1e-3 * tuner.density
    assert held["residual"].c_max < held["gradient"].c_max


@pytest.mark.parametrize(
    ("revision", "memory", "damping"),
    [("rescale", "update", False), ("damp", "gradient", True), ("none", "gradient", False)],
)
def test_a_revision_of_the_rate_is_a_unit_of_memory_or_damping(revision, memory, damping):
    method = laconic.sdagc(revision=revision)
    assert (method.memory, method.damping) == (memory, damping)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"law": "linear"}, "law must be one of fixed, progress, target, cat; got 'linear'"),
        ({"revision": "A"}, "revision must be one of rescale, damp, none; got 'A'"),
        ({"std_of": "gradients"}, "std_of must be one of gradient, residual; got 'gradients'"),
        ({"clip": 0.0}, r"norm must be a finite number over 0, got 0\.0\. For no clipping use clip=None"),
        ({"clip": 1.0, "convention": "max"}, "convention must be one of mean, sum, local; got 'max'"),
        ({"clip": 1.0, "clip_scope": "bucket"}, "scope must be one of layer, model; got 'bucket'"),
        ({"running": 1.0}, r"running must be in \[0, 1\), got 1\.0"),
        ({"std_of": "residual", "running": 0.9}, r"running must be 0 with std_of='residual', got 0\.9"),
        (
            {"warmup_steps": -1},
            r"warmup_steps must be .*0 or more, got -1\. For no warm-up write 0",
        ),
        ({"law": "target", "density": 0.0}, r"density must be a number in \(0, 1\], got 0\.0"),
    ],
    ids=repr,
)
def test_a_bad_setting_of_sdagc_is_refused_when_it_is_written(setting, says):
    with pytest.raises(ValueError, match=says):
        laconic.sdagc(**setting)


def test_sdagc_has_its_companions_and_each_can_be_left_out():
    method = laconic.sdagc(4.0, clip=0.5)
    assert isinstance(method.compressor, StdThreshold)
    assert (method.compressor.c, method.compressor.std_of) == (4.0, "gradient")
    assert method.clip == LocalClip(norm=0.5, convention="mean", scope="model")
    assert (method.momentum, method.masking, method.guard) == ("method", True, Guard())
    bare = laconic.sdagc(momentum=False)
    assert (bare.momentum, bare.masking, bare.clip) == ("optimizer", False, None)
    assert not laconic.sdagc(masking=False).masking
    assert laconic.sdagc(std_of="residual").compressor.running == 0.0


def test_dgc_is_the_published_method():
    method = laconic.dgc(0.001, clip=0.25)
    assert method.compressor == SampledTopK(density=0.001, sample=0.01)
    assert (method.memory, method.momentum, method.masking) == ("gradient", "method", True)
    assert method.tuner == Warmup(steps=100, start=0.25)
    assert method.clip is not None
    assert method.clip.threshold(world_size=4) == 0.5


def test_baselines_have_error_memory_and_nothing_else():
    for method in (laconic.gaussiank(), laconic.sidco(), laconic.strom(), laconic.adacomp()):
        assert (method.momentum, method.clip, method.damping, method.guard) == ("optimizer", None, False, None)
    assert laconic.sidco(0.01).compressor == Sidco(density=0.01)
    assert laconic.sidco().tuner == Stages()
    assert laconic.strom(0.5).compressor == Strom(tau=0.5)
    assert laconic.strom().memory == "update"


def test_dense_keeps_no_memory():
    with pytest.raises(ValueError, match="Dense sends everything, nothing is ever owed"):
        replace(
            laconic.sdagc(values="exact"), compressor=Dense(), tuner=Constant(), momentum="optimizer", masking=False
        )
