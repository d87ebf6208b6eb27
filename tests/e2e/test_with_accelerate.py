"""Accelerate on two ranks over gloo: bytes fall, a saved state goes on to the same bits, its own ways hold."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from frameworks.as_torchrun import on_two_ranks

pytestmark = pytest.mark.skipif(find_spec("accelerate") is None, reason="Accelerate is an extra")


def _exam(folder: Path) -> dict[str, Any]:
    from frameworks.in_accelerate import exam

    return exam(folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> list[dict[str, Any]]:
    return on_two_ranks(_exam, tmp_path_factory.mktemp("accelerate"))


@pytest.mark.parametrize("name", ["mixed", "sdagc", "sdagc resumed", "rounds", "rounds resumed", "accumulated"])
def test_ranks_end_with_one_model(told, name):
    assert told[0][name]["weights"] == told[1][name]["weights"]


def test_dense_gives_the_bits_of_accelerate_alone_with_accumulation_clipping_and_bfloat16(told):
    assert told[0]["mixed"]["weights"] == told[0]["plain"]["weights"]
    assert told[0]["mixed"]["steps"] == 6


@pytest.mark.parametrize(("name", "least"), [("sdagc", 100), ("rounds", 200)])
def test_bytes_fall_by_the_ratio(told, name, least):
    numbers = told[0][name]
    assert numbers["steps"] == told[0]["dense"]["steps"] == 12
    assert numbers["ratio"] == told[0]["dense"]["wire_bytes"] / numbers["wire_bytes"]
    assert numbers["ratio"] > least


@pytest.mark.parametrize("name", ["sdagc", "rounds"])
def test_a_saved_state_goes_on_to_the_same_bits(told, name):
    for rank in told:
        assert rank[name]["owed_norm"] > 0
        assert rank[f"{name} resumed"] == rank[name]


def test_within_a_round_the_mean_is_saved_for_the_model_and_each_ranks_own_beside_it(told):
    mean, (first, second) = told[0]["saved"], told[0]["parts"]
    assert first != second
    assert mean == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)], abs=1e-6)


def test_accumulated_passes_are_one_step(told):
    assert told[0]["accumulated"]["steps"] == 4


def test_what_was_not_prepared_is_refused_with_what_to_do(told):
    assert "the model is a Linear. Pass what accelerator.prepare(model) returned" in told[0]["unprepared"]


def test_the_example_learns_and_sends_less(told):
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", told[0]["example"])]
    assert losses[-1] < losses[0] / 2
    assert float(re.search(r"([\d.]+)x fewer", told[0]["example"])[1]) > 30
