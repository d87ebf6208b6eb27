"""Methods by name, and what a method refuses when it is written."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

import laconic
from laconic.codecs import Binned, Linear
from laconic.compressors import Dense, TopK
from laconic.exchanges import GatherMean, ReduceMean, ShardedMean, SmallestMean
from laconic.method import Method
from laconic.methods import METHODS, by_name
from laconic.tuners import Constant, Warmup


def test_a_name_with_settings_is_the_recipe_with_settings():
    assert by_name("topk", density=0.5, whole_below=3) == laconic.topk(0.5, whole_below=3)
    assert by_name("dense") == laconic.dense()


def test_a_warm_up_is_asked_for_by_its_steps():
    assert laconic.topk(0.1).tuner == Constant()
    assert laconic.topk(0.1, warmup_steps=5).tuner == Warmup(steps=5)
    assert laconic.randomk(0.1, warmup_steps=5).tuner == Warmup(steps=5)


def test_topk_sgd_is_the_published_algorithm():
    method = laconic.topk_sgd(0.02)
    assert method.compressor == TopK(density=0.02, whole_below=0)
    assert (method.memory, method.scope) == ("update", "model")


def test_every_method_that_gathers_takes_values_and_says_how_they_travel():
    takes = {name for name, recipe in METHODS.items() if "values" in inspect.signature(recipe).parameters}
    gathers = {name for name, recipe in METHODS.items() if isinstance(recipe().exchange, GatherMean)}
    assert takes == gathers - {"ef_sign", "one_bit", "qsgd", "terngrad"}
    for name in takes:
        for word, exchange in (("gather", GatherMean), ("sharded", ShardedMean), ("smallest", SmallestMean)):
            method = by_name(name, values="int8", exchange=word)
            assert method.exchange == exchange(values=Linear(bits=8))
            assert by_name(name, values=Linear(bits=8), exchange=word) == method


def test_a_mean_over_senders_is_gathered():
    method = laconic.sparseloco(over="senders")
    assert method.exchange == GatherMean(over="senders", values=Binned(bits=2))
    with pytest.raises(ValueError, match=r"over='senders' counts who sent .*, got exchange='sharded'\. Write"):
        laconic.sparseloco(over="senders", exchange="sharded")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=f"no method is called 'sgd'. There are: {', '.join(METHODS)}"):
        by_name("sgd")


@pytest.mark.parametrize(
    ("name", "setting", "says"),
    [
        ("topk", "sparsity", r"topk\(\) has no setting sparsity\. It has: density, memory, scope"),
        ("dense", "density", r"dense\(\) has no setting density\. It has: none"),
    ],
)
def test_an_unknown_setting_lists_the_known_ones(name, setting, says):
    with pytest.raises(ValueError, match=says):
        by_name(name, **{setting: 0.1})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"memory": "momentum"}, "memory must be one of none, gradient, update; got 'momentum'"),
        ({"scope": "bucket"}, "scope must be one of layer, model; got 'bucket'"),
        ({"compressor": Dense()}, "Dense sends everything.*set memory='none', got 'gradient'"),
        ({"exchange": ReduceMean()}, r"topk each rank chooses its own\. Use GatherMean\(\)"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        replace(laconic.topk(0.1), **change)


def test_a_tuner_that_cannot_tune_the_compressor_is_refused():
    with pytest.raises(ValueError, match="dense has none"):
        replace(laconic.dense(), tuner=Warmup())


@pytest.mark.parametrize("recipe", [laconic.topk, laconic.randomk])
def test_a_warm_up_cannot_be_negative(recipe):
    with pytest.raises(ValueError, match=r"warmup_steps must be .*0 or more, got -1\. For no warm-up write 0"):
        recipe(0.1, warmup_steps=-1)


def test_a_combination_of_ones_own_is_a_method():
    mine = Method(
        name="mine",
        compressor=Dense(),
        exchange=GatherMean(),
        tuner=Constant(),
        memory="none",
        scope="model",
    )
    assert mine != laconic.dense()
    assert hash(mine) == hash(replace(mine))
