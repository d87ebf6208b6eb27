"""Runs of the laboratory on real ranks: going on to the same bits."""

from __future__ import annotations

import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab_trials import TRAINING, forget_after, result_of, spec_of, trial

from laconic.lab.folder import RunFolder, read_lines
from laconic.lab.method_words import folder_name, make
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm, Logreg, Speech, Vision
from laconic.lab.tasks.lm import LmWork
from laconic.methods import METHODS
from pool import run_alone

BATCH = LmWork.batch
SUMMARY = [
    "metric", "best", "final", "wire_bytes_sent_per_rank", "dense_bytes_per_rank", "ratio", "steps", "syncs",
    "seconds", "seed",
]  # fmt: skip


RUNS = {
    "dense on three ranks": (3, spec_of(task=Lm(hidden=256, length=32))),
    "gpt with AdamW": (2, spec_of(task=Lm(model="gpt", hidden=8, layers=1, length=32))),
    "awd with dropout": (2, spec_of(task=Lm(model="awd", hidden=8, embedding=8, length=32), method="topk")),
    "BatchNorm and momentum": (
        2,
        spec_of(task=Vision(width=2, train_examples=60, test_examples=20), method="topk"),
    ),
    "momentum moved": (2, spec_of(task=Speech(hidden=8), method="dgc:density=0.1")),
    "rows": (2, spec_of(task=Logreg(), method="sdagc")),
}
# How often ranks ask each other whether to stop depends on how long steps take.
TIMED = {"seconds", "data_share", "step_seconds", "lab_bytes", "waits"}


def _untimed(numbers: dict) -> dict:
    return {key: value for key, value in numbers.items() if key not in TIMED}


@pytest.mark.parametrize("name", RUNS)
def test_from_a_checkpoint_between_two_lines_a_run_goes_on_as_if_it_had_never_stopped(name, tmp_path):
    ranks, spec = RUNS[name]
    spec = replace(spec, workers=ranks)
    straight = result_of(run_alone(ranks, trial, spec, tmp_path, within_seconds=50))
    lines = read_lines(tmp_path / "steps.jsonl")
    assert [line["step"] for line in lines] == [4, 6, 8, 9]
    # As if it had been killed after the checkpoint of step 5.
    forget_after(5, tmp_path)
    resumed = result_of(run_alone(ranks, trial, spec, tmp_path, True, within_seconds=50))
    assert _untimed(resumed) == _untimed(straight)
    assert [*map(_untimed, read_lines(tmp_path / "steps.jsonl"))] == [*map(_untimed, lines)]


@pytest.mark.parametrize("method", ["celgc:every=2:send=topk+density=0.05+whole_below=0", "topk"])
def test_what_is_owed_is_settled_at_the_end_if_it_is_asked_for(method, tmp_path):
    plain, settled = (spec_of(method=method, training=replace(TRAINING, settle=word)) for word in ("none", "sign"))
    if method == "topk":
        ranks = run_alone(2, trial, settled, tmp_path, within_seconds=50)
        assert all("settle='sign' is for rounds of local steps" in str(rank) for rank in ranks)
        assert not (tmp_path / "steps.jsonl").exists()
        return
    before, after = (
        result_of(run_alone(2, trial, spec, tmp_path / spec.training.settle, within_seconds=50))
        for spec in (plain, settled)
    )
    assert after["syncs"] == before["syncs"] + 1
    assert after["wire_bytes_sent_per_rank"] > before["wire_bytes_sent_per_rank"]
    assert after["weights_sha256"] != before["weights_sha256"]


LOCAL = ("celgc:every=16", "episode:every=7", "celgc:every=16:send=topk+density=0.1")
# An evaluation takes the longer the shorter the windows are.
LONGER = spec_of(task=Lm(hidden=8, length=32), training=replace(TRAINING, steps=24, eval_every=12))


def _all(group, words: tuple[str, ...], spec: Spec, out: Path, resume: bool = False) -> Ending:
    specs = [replace(spec, method=word) for word in words]
    trials = [Trial(spec=each, folder=out / folder_name(each.method), resume=resume) for each in specs]
    return run_trials(tuple(trials), {}, True)


def _interrupted(self, step):
    if step == 17:
        os.kill(os.getpid(), signal.SIGTERM)
    return BATCH(self, step)


def _stopped(group, word: str, spec: Spec, out: Path) -> Ending:
    LmWork.batch = _interrupted
    return _all(group, (word,), spec, out)


def _results(ranks, words: tuple[str, ...]) -> dict[str, dict]:
    assert [rank.message for rank in ranks] == [""] * len(ranks), ranks
    assert [rank.value.error for rank in ranks] == [None] * len(ranks)
    for ours, theirs in zip(*(rank.value.results for rank in ranks), strict=True):
        assert ours["weights_sha256"] == theirs["weights_sha256"], ours["label"]
    return dict(zip(words, ranks[0].value.results, strict=True))


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """The folder of local runs that were never interrupted."""
    out = tmp_path_factory.mktemp("straight")
    _results(run_alone(2, _all, LOCAL, LONGER, out, within_seconds=50), LOCAL)
    return out


def test_a_run_that_was_killed_in_the_middle_of_a_round_goes_on_to_the_same_bits(straight, tmp_path):
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    lines = {word: read_lines(tmp_path / folder_name(word) / "steps.jsonl") for word in LOCAL}
    for word in LOCAL:
        saved = tmp_path / folder_name(word) / "checkpoints"
        first, second = (RunFolder(saved.parent).load_rank(20, f"rank-0000{rank}") for rank in (0, 1))
        apart = [name for name, p in first["parameters"].items() if not torch.equal(p, second["parameters"][name])]
        assert apart, "within a round every rank has a model of its own"
        forget_after(20, saved.parent)
    ranks = run_alone(2, _all, LOCAL, LONGER, tmp_path, True, within_seconds=50)
    resumed = _results(ranks, LOCAL)
    for word in LOCAL:
        assert _untimed(resumed[word]) == _untimed(RunFolder(straight / folder_name(word)).result())
        again = read_lines(tmp_path / folder_name(word) / "steps.jsonl")
        assert [*map(_untimed, again)] == [*map(_untimed, lines[word])]


def test_a_run_that_was_stopped_in_the_middle_of_a_round_goes_on_to_the_same_bits(straight, tmp_path):
    word, spec = LOCAL[0], LONGER
    stopped = run_alone(2, _stopped, word, spec, tmp_path, within_seconds=50)
    assert [rank.value.stopped for rank in stopped] == [True, True]
    half = RunFolder(tmp_path / folder_name(word)).result()
    assert (half["finished"], half["syncs"]) == (False, 1)
    assert 18 <= half["steps"] < 24
    resumed = _results(run_alone(2, _all, (word,), spec, tmp_path, True, within_seconds=50), (word,))
    assert _untimed(resumed[word]) == _untimed(RunFolder(straight / folder_name(word)).result())


def test_every_local_method_trains_and_ends_with_one_model_on_all_ranks(tmp_path):
    local = {name: make(name).local for name in METHODS}
    words = tuple(name for name, steps in local.items() if steps is not None)
    spec = spec_of(
        task=Lm(hidden=16, length=32), training=replace(TRAINING, steps=40, eval_every=40), checkpoint_every=40
    )
    results = _results(run_alone(2, _all, words, spec, tmp_path, within_seconds=50), words)
    for word, result in results.items():
        assert result["finished"], word
        assert list(result)[:10] == SUMMARY
        assert math.isfinite(result["final"])
        assert result["wire_bytes_sent_per_rank"] > 0
        lines = read_lines(tmp_path / word / "steps.jsonl")
        assert all(line.keys() >= {"syncs", "every", "drift"} for line in lines)
        assert lines[-1]["syncs"] == result["syncs"]
        assert lines[-1]["loss"] < lines[0]["loss"], word
        if local[word].start == 0:
            # What is left of a round at the end is a round, too; a batch that only measures is no step of one.
            rounds = math.ceil(40 / local[word].period.first)
            assert rounds - 1 <= result["syncs"] <= rounds, word
            assert result["ratio"] > 1, word
            assert lines[-1]["drift"] > 0
    assert results["parallel_clip"]["syncs"] == results["post_local"]["syncs"] == 40
    assert {line["every"] for line in read_lines(tmp_path / "parallel_clip" / "steps.jsonl")} == {1}


def test_a_finished_run_that_is_resumed_stays_as_it_was(tmp_path):
    straight = result_of(run_alone(2, trial, spec_of(), tmp_path, within_seconds=50))
    again = result_of(run_alone(2, trial, spec_of(), tmp_path, True, within_seconds=50))
    assert again == straight
    assert RunFolder(tmp_path).result() == straight
