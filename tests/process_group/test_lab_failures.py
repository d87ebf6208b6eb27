"""Runs of the laboratory on real ranks: errors that all ranks learn of."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lab_trials import SMALL, forget_after, result_of, spec_of, trial

from laconic.lab.folder import RunFolder
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.talk import Talk
from laconic.lab.tasks import Lm
from laconic.lab.tasks.lm import LmWork
from pool import run_alone

BATCH = LmWork.batch


def _refuse(self, place):
    raise ValueError("no such text here")


def _broken_on_one(group, where: str, out: Path) -> Ending:
    if dist.get_rank() == 1:
        if where == "prepare":
            Lm.prepare = _refuse
        else:
            (out / "checkpoints" / "step-00000005" / "rank-00001.pt").unlink()
    return trial(group, spec_of(), out, resume=where == "load")


@pytest.mark.parametrize(
    ("where", "said"), [("prepare", "rank 1: no such text here"), ("load", "rank 1: the chec")]
)
def test_what_goes_wrong_on_one_rank_is_told_on_all_and_none_waits(where, said, tmp_path):
    if where == "load":
        result_of(run_alone(2, trial, spec_of(), tmp_path, within_seconds=50))
        forget_after(5, tmp_path)
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
    return trial(group, spec_of(), out)


def test_a_checkpoint_that_one_rank_cannot_write_ends_the_run_on_all_and_the_one_before_stays(tmp_path):
    straight = result_of(run_alone(2, trial, spec_of(), tmp_path / "straight", within_seconds=50))
    ranks = run_alone(2, _save_on_a_full_disk, tmp_path / "full", within_seconds=50)
    said = (
        "the checkpoint of step 9 could not be written: rank 1: .*rank-00001.pt: No space left on device. "
        "The last one, of step 5, is whole: see to the cause, and go on with laconic train --resume"
    )
    for rank in ranks:
        assert re.match(said, rank.value.error), rank
    assert list((tmp_path / "full").rglob("*.half")) == []
    resumed = result_of(run_alone(2, trial, spec_of(), tmp_path / "full", True, within_seconds=50))
    assert resumed["weights_sha256"] == straight["weights_sha256"]


def _leave_between_steps(group, out: Path) -> Ending:
    if dist.get_rank() == 1:
        Talk.sums = lambda self, numbers: os._exit(3)
    return trial(group, spec_of(), out)


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
    return trial(group, spec_of(), out)


def test_what_goes_wrong_in_a_step_of_one_rank_ends_it_and_is_not_passed_over(tmp_path):
    ranks = run_alone(2, _breaks_while_training, tmp_path, within_seconds=50)
    assert (ranks[1].error, ranks[1].message) == ("ValueError", "a word that is in no list")
    assert ranks[0].error, "the other rank is told, too, and does not go on"
    assert RunFolder(tmp_path).result() is None


def _three(group, out: Path) -> Ending:
    tasks = {"dense": SMALL, "topk": SMALL, "sdagc": Lm(data="cifar10")}
    specs = [spec_of(task=tasks[word], method=word) for word in ("dense", "sdagc", "topk")]
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
