"""Lightning on two ranks over gloo: bytes fall, a checkpoint goes on to the same bits, its own ways hold."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from frameworks.as_torchrun import on_two_ranks

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is an extra")


def _exam(folder: Path) -> dict[str, Any]:
    from frameworks.in_lightning import exam

    return exam(folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> list[dict[str, Any]]:
    return on_two_ranks(_exam, tmp_path_factory.mktemp("lightning"))


NAMES = ["mixed", "dense", "topk", "topk resumed", "rounds", "rounds resumed", "poisoned", "scaled", "manual"]


@pytest.mark.parametrize("name", NAMES)
def test_ranks_end_with_one_model(told, name):
    assert told[0][name]["weights"] == told[1][name]["weights"]


def test_dense_gives_the_bits_of_lightning_alone_with_accumulation_clipping_and_bfloat16(told):
    assert told[0]["mixed"]["weights"] == told[0]["plain"]["weights"]
    assert told[0]["mixed"]["steps"] == 6


@pytest.mark.parametrize(("name", "least"), [("topk", 20), ("rounds", 40)])
def test_bytes_fall_by_the_ratio(told, name, least):
    numbers = told[0][name]
    assert numbers["steps"] == told[0]["dense"]["steps"] == 12
    assert numbers["ratio"] == told[0]["dense"]["wire_bytes"] / numbers["wire_bytes"]
    assert numbers["ratio"] > least


@pytest.mark.parametrize("name", ["topk", "rounds", "scaled rounds"])
def test_a_checkpoint_of_lightnings_goes_on_to_the_same_bits(told, name):
    for rank in told:
        assert rank[f"{name} resumed"] == rank[name] | {"validated": rank[name]["validated"][-6:]}


def test_without_the_memory_that_is_in_it_a_checkpoint_goes_on_to_others(told):
    assert told[0]["topk without memory"]["weights"] != told[0]["topk"]["weights"]
    assert "the checkpoint was saved without laconic: nothing is owed yet" in told[0]["logged"]


def test_within_a_round_a_checkpoint_has_the_mean_for_its_model_and_each_ranks_own_beside_it(told):
    mean, (first, second) = told[0]["saved"], told[0]["parts"]
    assert first != second
    assert mean == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)], abs=1e-6)
    # So has a validation.
    assert told[0]["rounds"]["validated"] == told[1]["rounds"]["validated"]


def test_a_poisoned_step_is_skipped_though_backward_runs_inside_the_step(told):
    # One row of the data is not a number, and every epoch comes upon it once.
    assert told[0]["poisoned"]["skipped_steps"] == told[1]["poisoned"]["skipped_steps"] == 2
    assert all(x == x for layer in told[0]["poisoned"]["weights"] for x in layer)


def test_ranks_skip_together_under_a_scaler(told):
    skipped = [rank["scaled"]["skipped_steps"] for rank in told]
    assert skipped[0] == skipped[1]
    assert 0 < skipped[0] < told[0]["scaled"]["steps"]


def test_in_rounds_each_rank_skips_alone_and_goes_on_with_a_scale_of_its_own(told):
    assert told[0]["scaled rounds"]["skipped_steps"] < told[1]["scaled rounds"]["skipped_steps"]
    assert told[0]["scaled rounds"]["weights"] == told[1]["scaled rounds"]["weights"]


def test_what_cannot_be_attached_is_refused_with_what_to_do(told):
    assert "configure_optimizers returned SGD, SGD. Give all parameters to one" in told[0]["two optimizers"]
    assert "configure_optimizers returned LBFGS" in told[0]["closures"]
    assert "SingleDeviceStrategy trains a Module. Write Trainer(strategy='ddp')" in told[0]["alone"]
    assert "Save it when validation has ended" in told[0]["saved while validating"]


def test_the_example_learns_and_sends_less(told):
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", told[0]["example"])]
    assert losses[-1] < losses[0] / 2
    assert float(re.search(r"([\d.]+)x fewer", told[0]["example"])[1]) > 30
