"""The exam of every method: a recipe is data, has one name, and refuses what cannot work when it is written."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any

import pytest
import torch

from contracts.registry import label, recipes
from contracts.vectors import dyadic, normal, segments_of
from laconic.method import Method
from laconic.methods import METHODS, by_name
from laconic.reducer import Reducer
from laconic.transports import Lockstep

every_name = pytest.mark.parametrize("name", METHODS)
every_recipe = pytest.mark.parametrize("method", recipes(), ids=label)

MODEL = segments_of([6, 1, 11])


def _one_step(method: Method, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    world = Lockstep(len(grads))
    reducers = [Reducer(method, MODEL, port, dtype=grads[0].dtype) for port in world.ports]
    for reducer in reducers:
        reducer.begin_step(rates=dict.fromkeys(MODEL.names, 0.5))
    futures = [r.begin(g, MODEL) for r, g in zip(reducers, grads, strict=True)]
    for reducer in reducers:
        reducer.end_step()
    return [future.value() for future in futures]


@every_name
def test_a_recipe_without_settings_is_a_method_of_that_name(name):
    method = METHODS[name]()
    assert isinstance(method, Method)
    assert method.name == name
    assert by_name(name) == method


@every_name
def test_every_setting_has_a_default_and_is_found_by_name(name):
    settings = inspect.signature(METHODS[name]).parameters
    assert all(p.default is not inspect.Parameter.empty for p in settings.values())
    defaults = {key: p.default for key, p in settings.items()}
    assert by_name(name, **defaults) == METHODS[name]()


# What makes a method send everything; fixed thresholds, bins and few bits a value have no such setting.
SENDS_ALL: dict[str, dict[str, Any]] = {
    "cat": {"cost": "bits", "start": 1.0, "floor": 1.0, "ceiling": 1.0, "whole_below": 0},
    "celgc": {},
    "dense": {},
    "dgc": {"density": 1.0, "whole_below": 0},
    "diloco": {},
    "episode": {},
    "episode_pp": {},
    "gaussiank": {"density": 1.0, "whole_below": 0},
    "local_sgd": {},
    "parallel_clip": {},
    "post_local": {},
    "powersgd": {"rank": 1000},
    "randomk": {"density": 1.0},
    "sdagc": {"c": 0, "whole_below": 0, "values": "exact"},
    "sidco": {"density": 1.0, "whole_below": 0},
    "sparseloco": {"k": 4096, "values": "exact"},
    "spartan": {"density": 1.0, "values": "exact"},
    "topk": {"density": 1.0, "whole_below": 0},
    "topk_sgd": {"density": 1.0},
}


def test_every_method_that_has_a_parent_is_held_against_it():
    assert set(METHODS) - set(SENDS_ALL) == {"adacomp", "ef_sign", "one_bit", "qsgd", "strom", "terngrad"}


@pytest.mark.parametrize("name", SENDS_ALL)
def test_with_everything_sent_it_is_its_dense_parent(name):
    for ranks in (1, 2, 4):
        grads = [dyadic(MODEL.numel, rank) for rank in range(ranks)]
        expected = torch.stack(grads).sum(0) / ranks
        for mean in _one_step(by_name(name, **SENDS_ALL[name]), grads):
            assert torch.equal(mean, expected)


@every_recipe
def test_a_method_is_frozen_data_and_its_text_tells_it_from_others(method):
    twin = pickle.loads(pickle.dumps(method))
    assert twin == method
    assert hash(twin) == hash(method)
    assert repr(twin) == repr(method)
    assert sum(repr(other) == repr(method) for other in recipes()) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.memory = "none"


@every_recipe
def test_a_method_can_be_changed_by_replace(method):
    other = dataclasses.replace(method, name="mine")
    assert other.name == "mine"
    assert dataclasses.replace(other, name=method.name) == method


@every_recipe
def test_a_method_runs(method):
    means = _one_step(method, [normal(MODEL.numel, rank) for rank in range(3)])
    assert all(torch.equal(mean, means[0]) for mean in means)
    assert bool(torch.isfinite(means[0]).all())
    assert bool(means[0].any())


@every_name
@pytest.mark.parametrize("density", [0.0, 2.0])
def test_a_bad_density_is_refused_when_the_recipe_is_written(name, density):
    if "density" in inspect.signature(METHODS[name]).parameters:
        with pytest.raises(ValueError, match=rf"density must be .*\(0, 1\], got {density}\. For"):
            # Of sdagc's laws only one holds a density.
            by_name(name, density=density, **({"law": "target"} if name == "sdagc" else {}))
