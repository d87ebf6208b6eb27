"""Local steps as data: what fits together, and that every refusal says what to do."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from math import inf, nan

import pytest

import laconic
from laconic.clipping import LocalClip
from laconic.compressors import Dense
from laconic.exchanges import GatherMean
from laconic.local import AdaComm, DriftBudget, Every, Growing, LocalSteps, OuterStep
from laconic.methods import METHODS
from lockstep.locals import LOCAL

CLIP = LocalClip(norm=1.0)
EIGHT = Every(steps=8)


@pytest.mark.parametrize("name", LOCAL)
def test_every_recipe_is_frozen_equal_to_itself_and_named_after_itself(name):
    method = METHODS[name]()
    assert method == METHODS[name]()
    assert hash(method.local) == hash(METHODS[name]().local)
    assert method.name == name
    assert eval(repr(method.local), vars(laconic.local) | {"LocalClip": LocalClip}) == method.local
    with pytest.raises(FrozenInstanceError):
        method.local.mix = 0.5


def test_every_step_methods_are_not_local():
    assert set(LOCAL) == {
        "celgc", "diloco", "episode", "episode_pp", "local_sgd", "parallel_clip", "post_local", "sparseloco",
        "spartan",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"clip": LocalClip(norm=1.0, scope="layer")},
            r"clip must be LocalClip\(norm=..., scope='model'\) or None",
        ),
        ({"clip": 1.0}, r"clip must be LocalClip\(norm="),
        ({"norm_of": "step", "clip": CLIP}, r"norm_of.*gradient.*update"),
        ({"norm_by": "median", "clip": CLIP}, r"norm_by.*local.*global_average.*max"),
        ({"correction": "some"}, r"correction.*none.*resampled.*stored"),
        ({"optimizer_state": "drop"}, r"optimizer_state.*keep.*average.*reset"),
        ({"buffers": "drop"}, r"buffers.*keep.*average.*recompute"),
        ({"seed": -1}, r"seed.*-1.*seeds the sample"),
        ({"fragments": 0}, r"fragments.*0.*as a whole write 1"),
        ({"delay": -1}, r"delay.*for none write 0"),
        ({"participants": 0}, r"participants.*0.*For all ranks write None"),
        ({"start": -1}, r"start.*-1.*never None"),
        ({"restart": 1.5}, r"restart must be a share in \[0, 1\], got 1.5"),
        ({"mix": 1.01}, r"mix must be a share in \[0, 1\], got 1.01"),
        ({"mix": nan}, r"mix.*nan.*share in \[0, 1\]"),
        ({"restart": -0.1}, r"restart.*-0.1.*share in \[0, 1\]"),
        ({"norm_of": "update"}, r"clip is None: give clip=LocalClip\(norm=...\)"),
        ({"norm_by": "max"}, r"clip is None: give clip=LocalClip\(norm=...\)"),
        ({"norm_of": "update", "norm_by": "max", "clip": CLIP}, r"each rank's own: leave norm_by='local'"),
        ({"correction": "resampled", "norm_by": "max", "clip": CLIP}, r"EPISODE clips.*leave norm_of, norm_by"),
        ({"correction": "stored", "norm_of": "update", "clip": CLIP}, r"EPISODE clips.*leave norm_of, norm_by"),
        ({"correction": "stored", "start": 4}, r"EPISODE clips.*leave norm_of, norm_by and start"),
        ({"correction": "resampled", "start": None}, r"EPISODE clips.*leave norm_of, norm_by and start"),
        ({"correction": "resampled", "participants": 2}, r"For a sample of them use episode_pp\(\)"),
        ({"period": Every(steps=9), "fragments": 2}, r"need Every\(steps=n\), n a multiple of 2 and over 0"),
        ({"period": EIGHT, "fragments": 2, "delay": 4}, r"n a multiple of 2 and over 8"),
        ({"period": EIGHT, "delay": 8}, r"n a multiple of 1 and over 8"),
        ({"period": Growing(), "fragments": 2}, r"within a fixed period.*need Every\(steps=n\).*got Growing"),
        ({"period": AdaComm(), "delay": 1}, r"within a fixed period.*got AdaComm"),
        ({"period": DriftBudget(), "fragments": 2}, r"within a fixed period.*got DriftBudget"),
        ({"period": EIGHT, "fragments": 2, "correction": "stored"}, r"no common start of a round.*Leave those out"),
        ({"period": EIGHT, "delay": 1, "participants": 2}, r"no common start of a round.*Leave those out"),
        ({"period": EIGHT, "fragments": 2, "norm_by": "max", "clip": CLIP}, r"no common start of a round"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        LocalSteps(**settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"period": 16}, r"period must be of the kind Period, such as Every\(steps=16\), got 16"),
        ({"period": Every}, r"period must be of the kind Period, such as Every\(steps=16\)"),
        ({"outer": 0.7}, r"outer must be an OuterStep, such as OuterStep\(rate=0.7\), got 0.7"),
    ],
)
def test_what_is_of_another_kind_is_refused(settings, says):
    with pytest.raises(TypeError, match=says):
        LocalSteps(**settings)


@pytest.mark.parametrize("fragments", [1, 2, 4])
@pytest.mark.parametrize("delay", [0, 1])
def test_fragments_that_fit_are_taken(fragments, delay):
    assert LocalSteps(period=EIGHT, fragments=fragments, delay=delay).fragments == fragments


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rate": 0.0}, r"a rate over 0.*got rate 0.0.*OuterStep\(rate=1.0, momentum=0.0\)"),
        ({"rate": -1.0}, r"rate.*-1.0.*Plain averaging is rate=1"),
        ({"rate": inf}, r"rate.*inf.*Plain averaging is rate=1"),
        ({"momentum": 1.0}, r"momentum in \[0, 1\), got.*momentum 1.0"),
        ({"momentum": -0.5}, r"momentum.*-0.5.*For none write 0"),
        ({"momentum": nan}, r"momentum.*nan.*For none write 0"),
    ],
)
def test_an_outer_step_that_leads_nowhere_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        OuterStep(**settings)


def test_drifts_are_not_sent_by_a_method_with_local_steps():
    with pytest.raises(
        ValueError, match=r"send=celgc\(\) has local steps of its own. Give a method that exchanges"
    ):
        laconic.diloco(send=laconic.celgc())
    with pytest.raises(TypeError, match=r"send must be a method such as topk\(0.01\).*got 'topk'"):
        laconic.celgc(send="topk")


def test_a_law_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"period.*fixed.*growing.*adacomm.*drift"):
        laconic.celgc(period="sometimes")


@pytest.mark.parametrize(
    ("law", "period"),
    [
        ("fixed", Every(steps=6)),
        ("growing", Growing(first=1, last=6, steps=50)),
        ("adacomm", AdaComm(first=6)),
        ("drift", DriftBudget(budget=0.3, first=6, most=24)),
    ],
)
def test_laws_by_name(law, period):
    method = laconic.celgc(6, period=law, over_steps=50, budget=0.3)
    assert method.local.period == period
    assert method.needs_loss == (law == "adacomm")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: laconic.celgc(restart=0.5),
            r"restart=0.5 is a share of what is owed, and memory='none' owes nothing",
        ),
        (lambda: replace(laconic.celgc(participants=2), exchange=laconic.dense().exchange), r"use GatherMean\(\)"),
        (
            lambda: laconic.diloco(8, fragments=2, send=laconic.topk(0.1, scope="model")),
            r"give the method scope='layer'",
        ),
        (
            lambda: laconic.diloco(8, delay=1, send=laconic.topk(0.1, scope="model")),
            r"give the method scope='layer'",
        ),
        (
            lambda: replace(laconic.dgc(), local=LocalSteps()),
            r"momentum='method' is for gradients of every step; drifts have an outer step",
        ),
    ],
)
def test_a_method_refuses_local_steps_that_do_not_fit_it(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_local_must_be_local_steps():
    with pytest.raises(TypeError, match=r"local must be of the kind LocalSteps, such as LocalSteps\(period="):
        replace(laconic.dense(), local=8)


def test_momentum_of_what_sends_drifts_is_left_out():
    method = laconic.celgc(send=laconic.dgc())
    assert (method.momentum, method.masking, method.name) == ("optimizer", False, "celgc")
    assert method.compressor == laconic.dgc().compressor


def test_a_sample_of_ranks_gathers_whole_drifts():
    method = laconic.celgc(participants=2)
    assert isinstance(method.compressor, Dense)
    assert isinstance(method.exchange, GatherMean)


@pytest.mark.parametrize(
    ("method", "clips"),
    [
        (laconic.celgc(), False),
        (laconic.celgc(clip=1.0), True),
        (laconic.local_sgd(), False),
        (laconic.parallel_clip(2.0), True),
        # That clips drifts, and the loop's own clipping is still wanted.
        (laconic.celgc(send=laconic.sdagc(clip=1.0, scope="layer", values="exact")), False),
    ],
    ids=lambda m: getattr(m, "name", str(m)),
)
def test_a_method_says_whether_it_clips_gradients(method, clips):
    assert method.clips_gradients is clips
