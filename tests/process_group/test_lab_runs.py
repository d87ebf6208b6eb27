"""Runs of the laboratory on real ranks: going on to the same bits, and errors that all ranks learn of."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from laconic.lab.folder import RunFolder, read_lines
from laconic.lab.method_words import folder_name, make
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.spec import Spec
from laconic.lab.talk import Talk
from laconic.lab.tasks import Lm, Logreg, Speech, Vision
from laconic.lab.tasks.lm import LmWork
from laconic.lab.training import Training
from laconic.methods import METHODS
from pool import run_alone

TRAINING = Training(steps=9, batch=2, log_every=4, eval_every=6)
SMALL = Lm(hidden=8, length=32)
BATCH = LmWork.batch
SUMMARY = [
    "metric", "best", "final", "wire_bytes_sent_per_rank", "dense_bytes_per_rank", "ratio", "steps", "syncs",
    "seconds", "seed",
]  # fmt: skip


def _spec(**settings: object) -> Spec:
    usual = Spec(
        task=SMALL,
        training=TRAINING,
        method="dense",
        workers=2,
        device="cpu",
        data_home="nowhere",
        checkpoint_every=5,
    )
    return replace(usual, **settings)


def _trial(group, spec: Spec, out: Path, resume: bool = False) -> Ending:
    return run_trials((Trial(spec=spec, folder=out, resume=resume),), {}, True)


def _result(ranks) -> dict:
    assert [rank.message for rank in ranks] == [""] * len(ranks), ranks
    assert [rank.value.error for rank in ranks] == [None] * len(ranks)
    digests = {rank.value.results[0]["weights_sha256"] for rank in ranks}
    assert len(digests) == 1
    return ranks[0].value.results[0]


RUNS = {
    "dense on three ranks": (3, _spec(task=Lm(hidden=256, length=32))),
    "gpt with AdamW": (2, _spec(task=Lm(model="gpt", hidden=8, layers=1, length=32))),
    "awd with dropout": (2, _spec(task=Lm(model="awd", hidden=8, embedding=8, length=32), method="topk")),
    "BatchNorm and momentum": (2, _spec(task=Vision(width=2, train_examples=60, test_examples=20), method="topk")),
    "momentum moved": (2, _spec(task=Speech(hidden=8), method="dgc:density=0.1")),
    "rows": (2, _spec(task=Logreg(), method="sdagc")),
}
# How often ranks ask each other whether to stop depends on how long steps take.
TIMED = {"seconds", "data_share", "step_seconds", "lab_bytes", "waits"}


def _untimed(numbers: dict) -> dict:
    return {key: value for key, value in numbers.items() if key not in TIMED}


def _forget_after(step: int, run: Path) -> None:
    """Have a run end with the checkpoint of a step."""
    for later in run.glob("checkpoints/step-*"):
        if int(later.name.removeprefix("step-")) > step:
            shutil.rmtree(later)
    assert RunFolder(run).latest() == step


@pytest.mark.parametrize("name", RUNS)
def test_from_a_checkpoint_between_two_lines_a_run_goes_on_as_if_it_had_never_stopped(name, tmp_path):
    ranks, spec = RUNS[name]
    spec = replace(spec, workers=ranks)
    straight = _result(run_alone(ranks, _trial, spec, tmp_path, within_seconds=50))
    lines = read_lines(tmp_path / "steps.jsonl")
    assert [line["step"] for line in lines] == [4, 6, 8, 9]
    # As if it had been killed after the checkpoint of step 5.
    _forget_after(5, tmp_path)
    resumed = _result(run_alone(ranks, _trial, spec, tmp_path, True, within_seconds=50))
    assert _untimed(resumed) == _untimed(straight)
    assert [*map(_untimed, read_lines(tmp_path / "steps.jsonl"))] == [*map(_untimed, lines)]


@pytest.mark.parametrize("method", ["celgc:every=2:send=topk+density=0.05+whole_below=0", "topk"])
def test_what_is_owed_is_settled_at_the_end_if_it_is_asked_for(method, tmp_path):
    plain, settled = (_spec(method=method, training=replace(TRAINING, settle=word)) for word in ("none", "sign"))
    if method == "topk":
        ranks = run_alone(2, _trial, settled, tmp_path, within_seconds=50)
        assert all("settle='sign' is for rounds of local steps" in str(rank) for rank in ranks)
        assert not (tmp_path / "steps.jsonl").exists()
        return
    before, after = (
        _result(run_alone(2, _trial, spec, tmp_path / spec.training.settle, within_seconds=50))
        for spec in (plain, settled)
    )
    assert after["syncs"] == before["syncs"] + 1
    assert after["wire_bytes_sent_per_rank"] > before["wire_bytes_sent_per_rank"]
    assert after["weights_sha256"] != before["weights_sha256"]


LOCAL = ("celgc:every=16", "episode:every=7", "celgc:every=16:send=topk+density=0.1")
# An evaluation takes the longer the shorter the windows are.
LONGER = _spec(task=Lm(hidden=8, length=32), training=replace(TRAINING, steps=24, eval_every=12))


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
        _forget_after(20, saved.parent)
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
    spec = _spec(
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
    straight = _result(run_alone(2, _trial, _spec(), tmp_path, within_seconds=50))
    again = _result(run_alone(2, _trial, _spec(), tmp_path, True, within_seconds=50))
    assert again == straight
    assert RunFolder(tmp_path).result() == straight


def _refuse(self, place):
    raise ValueError("no such text here")


def _broken_on_one(group, where: str, out: Path) -> Ending:
    if dist.get_rank() == 1:
        if where == "prepare":
            Lm.prepare = _refuse
        else:
            (out / "checkpoints" / "step-00000005" / "rank-00001.pt").unlink()
    return _trial(group, _spec(), out, resume=where == "load")


@pytest.mark.parametrize(
    ("where", "said"), [("prepare", "rank 1: no such text here"), ("load", "rank 1: the chec")]
)
def test_what_goes_wrong_on_one_rank_is_told_on_all_and_none_waits(where, said, tmp_path):
    if where == "load":
        _result(run_alone(2, _trial, _spec(), tmp_path, within_seconds=50))
        _forget_after(5, tmp_path)
    ranks = run_alone(2, _broken_on_one, where, tmp_path, within_seconds=50)
    assert [rank.message for rank in ranks] == ["", ""]
    assert all(rank.value.error.startswith(said) for rank in ranks), ranks
    assert ranks[0].value.results == ()


def _save_on_a_full_disk(group, out: Path) -> Ending:
    save = torch.save

    def full(state, file):
        if state["of"] == [9, "rank-00001"]:
            file.write(b"as far as it went")
            raise OSError(28, "No space left on device")
        save(state, file)

    torch.save = full
    return _trial(group, _spec(), out)


def test_a_checkpoint_that_one_rank_cannot_write_ends_the_run_on_all_and_the_one_before_stays(tmp_path):
    straight = _result(run_alone(2, _trial, _spec(), tmp_path / "straight", within_seconds=50))
    ranks = run_alone(2, _save_on_a_full_disk, tmp_path / "full", within_seconds=50)
    said = (
        "the checkpoint of step 9 could not be written: rank 1: .*rank-00001.pt: No space left on device. "
        "The last one, of step 5, is whole: see to the cause, and go on with laconic train --resume"
    )
    for rank in ranks:
        assert re.match(said, rank.value.error), rank
    assert list((tmp_path / "full").rglob("*.half")) == []
    resumed = _result(run_alone(2, _trial, _spec(), tmp_path / "full", True, within_seconds=50))
    assert resumed["weights_sha256"] == straight["weights_sha256"]


def _leave_between_steps(group, out: Path) -> Ending:
    if dist.get_rank() == 1:
        Talk.sums = lambda self, numbers: os._exit(3)
    return _trial(group, _spec(), out)


def test_a_rank_that_is_lost_between_steps_is_said_to_be(tmp_path):
    # It was gloo's own RuntimeError.
    left, lost = run_alone(2, _leave_between_steps, tmp_path, within_seconds=50)
    assert lost.exitcode == 3
    assert left.error == "ExchangeError"
    assert "rank 0 of 2 waited in vain in what ranks tell each other between steps" in left.message


def _raises(self, step):
    if step == 3:
        raise ValueError("a word that is in no list")
    return BATCH(self, step)


def _breaks_while_training(group, out: Path) -> Ending:
    if dist.get_rank() == 1:
        LmWork.batch = _raises
    return _trial(group, _spec(), out)


def test_what_goes_wrong_in_a_step_of_one_rank_ends_it_and_is_not_passed_over(tmp_path):
    ranks = run_alone(2, _breaks_while_training, tmp_path, within_seconds=50)
    assert (ranks[1].error, ranks[1].message) == ("ValueError", "a word that is in no list")
    assert ranks[0].error, "the other rank is told, too, and does not go on"
    assert RunFolder(tmp_path).result() is None


def _three(group, out: Path) -> Ending:
    tasks = {"dense": SMALL, "topk": SMALL, "sdagc": Lm(data="cifar10")}
    specs = [_spec(task=tasks[word], method=word) for word in ("dense", "sdagc", "topk")]
    return run_trials(tuple(Trial(spec=spec, folder=out / spec.method) for spec in specs), {}, True)


def test_a_run_that_cannot_be_made_is_passed_over(tmp_path):
    ranks = run_alone(2, _three, tmp_path, within_seconds=50)
    assert [rank.message for rank in ranks] == ["", ""]
    report = ranks[0].value
    assert [result["label"] for result in report.results] == ["dense", "topk"]
    assert report.error.startswith("sdagc: cifar10 is not in")
    # Of its own each: two sums a line, four an evaluation and two of waits, and two whenever ranks ask each other
    # whether to stop.
    least = 8 * (2 * 4 + 4 * 2 + 2 * 2 + 2 * 4)
    assert all(least <= result["lab_bytes"] <= least + 8 * 2 * 5 for result in report.results)
