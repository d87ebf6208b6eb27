"""transformers.Trainer on two ranks over gloo: bytes fall, a checkpoint goes on to the same bits, its ways hold."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from frameworks.as_torchrun import on_two_ranks

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is an extra")


def _exam(folder: Path) -> dict[str, Any]:
    from frameworks.in_transformers import exam

    return exam(folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> list[dict[str, Any]]:
    return on_two_ranks(_exam, tmp_path_factory.mktemp("transformers"))


@pytest.mark.parametrize("name", ["mixed", "topk", "topk resumed", "rounds", "rounds resumed", "best"])
def test_ranks_end_with_one_model(told, name):
    assert told[0][name]["weights"] == told[1][name]["weights"]


def test_dense_gives_the_bits_of_the_trainer_alone_with_accumulation_clipping_and_bfloat16(told):
    assert told[0]["mixed"]["weights"] == told[0]["plain"]["weights"]
    assert told[0]["mixed"]["steps"] == 12


@pytest.mark.parametrize(("name", "least"), [("topk", 30), ("rounds", 40)])
def test_bytes_fall_by_the_ratio(told, name, least):
    numbers = told[0][name]
    assert numbers["steps"] == told[0]["dense"]["steps"] == 12
    assert numbers["ratio"] == told[0]["dense"]["wire_bytes"] / numbers["wire_bytes"]
    assert numbers["ratio"] > least


@pytest.mark.parametrize("name", ["topk", "rounds"])
def test_a_checkpoint_of_the_trainers_goes_on_to_the_same_bits(told, name):
    for rank in told:
        assert rank[name]["owed_norm"] > 0
        assert rank[f"{name} resumed"] == rank[name]


def test_within_a_round_the_mean_is_saved_for_the_model_and_each_ranks_own_beside_it(told):
    mean, (first, second) = told[0]["saved"], told[0]["parts"]
    assert first != second
    assert mean == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)], abs=1e-6)


def test_the_best_model_is_left_as_it_was_saved(told):
    # Completed after the best model was loaded, the last round would walk on from that.
    assert told[0]["best saved"] in told[0]["best"]["weights"]


def test_clipping_that_nobody_asked_for_is_told_of_where_it_loses_something(told):
    assert (
        "the Trainer clips what was exchanged at max_grad_norm=1, and what it cuts off is lost"
        in told[0]["clipped"]
    )
    assert told[1]["clipped"] == told[0]["rounds clipped"] == ""


def test_files_of_another_run_are_refused_with_what_to_do(told):
    assert re.search(
        r"checkpoint-6/laconic_0.pt is not of it. Resume from a folder in output_dir", told[0]["mixed up"]
    )


def test_the_example_learns_and_sends_less(told):
    losses = [float(x) for x in re.findall(r"step \d+: loss ([\d.]+)", told[0]["example"])]
    assert losses[-1] < losses[0] / 1.4
    assert float(re.search(r"([\d.]+)x fewer", told[0]["example"])[1]) > 30
