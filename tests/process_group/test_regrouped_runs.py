"""Runs of the laboratory that lose ranks and get them back: they go on, and nothing learnt or owed is lost."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from laconic.lab.checkpoint import mean_optimizer, regrouped
from laconic.lab.folder import RunFolder, read_lines
from laconic.lab.method_words import folder_name
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm
from laconic.lab.tasks.lm import LmWork
from laconic.lab.training import Training
from pool import run_alone

BATCH = LmWork.batch
WORDS = (
    "topk:density=0.1:memory=update",
    "sdagc:c=3:whole_below=0",
    "celgc:every=4",
    "spartan:every=4:density=0.1",
)
# Where each number of ranks is told to stop; rounds have four steps.
WORLDS = {4: 10, 2: 18, 3: 27}
# Batches of much text: with little of it, runs differ by what each number of ranks has read.
TRAINING = Training(steps=40, batch=24, rate=1.0, clip=1.0, log_every=4, eval_every=40)
SPEC = Spec(
    task=Lm(hidden=8, length=32), training=TRAINING, method="dense", workers=4, device="cpu", data_home="nowhere",
    checkpoint_every=100,
)  # fmt: skip


def _all(group, out: Path, spec: Spec, stop: int | None, resume: bool) -> list[Ending]:
    def batch(self, step):
        if step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return BATCH(self, step)

    LmWork.batch = batch
    trials = [
        Trial(spec=replace(spec, method=word), folder=out / folder_name(word), resume=resume) for word in WORDS
    ]
    # One by one: a run that was stopped is the last of its call.
    return [run_trials((trial,), {}, True) for trial in trials]


def _done(out: Path, spec: Spec, stop: int | None = None, resume: bool = False) -> dict[str, dict]:
    ranks = run_alone(spec.workers, _all, out, spec, stop, resume, within_seconds=100)
    assert [rank.message for rank in ranks] == [""] * len(ranks), ranks
    for rank in ranks:
        assert [ending.error for ending in rank.value] == [None] * len(WORDS)
    each = [[ending.results[0] for ending in rank.value] for rank in ranks]
    if stop is None:
        for results in zip(*each, strict=True):
            assert len({result["weights_sha256"] for result in results}) == 1, results[0]["label"]
    return dict(zip(WORDS, each[0], strict=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, dict[str, dict]]:
    """The folder of runs on four, two, three and four ranks, and what they came to."""
    out = tmp_path_factory.mktemp("regrouped")
    for turn, (workers, stop) in enumerate(WORLDS.items()):
        _done(out, replace(SPEC, workers=workers), stop, resume=turn > 0)
    return out, _done(out, SPEC, resume=True)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> dict[str, dict]:
    return _done(tmp_path_factory.mktemp("straight"), SPEC)


@pytest.mark.parametrize("word", WORDS)
def test_four_ranks_then_two_three_and_four_come_to_where_four_come(word, runs, straight):
    out, ends = runs
    assert ends[word]["finished"]
    assert ends[word]["steps"] == straight[word]["steps"] == 40
    lines = read_lines(out / folder_name(word) / "steps.jsonl")
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines}), "every step once, in order"
    assert [line["epoch"] for line in lines] == sorted(line["epoch"] for line in lines)
    learnt = lines[0]["loss"] - straight[word]["final_loss"]
    assert learnt > 0.5
    assert abs(ends[word]["final_loss"] - straight[word]["final_loss"]) < 0.05 * learnt
    assert RunFolder(out / folder_name(word)).spec()["workers"] == 4


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """The folder of runs of three ranks that were stopped after a few steps."""
    out = tmp_path_factory.mktemp("stopped")
    _done(out, replace(SPEC, workers=3), stop=6)
    return out


@pytest.mark.parametrize("word", [word for word in WORDS if not word.startswith("celgc")])
def test_what_ranks_owe_together_is_the_same_on_fewer_and_on_more(word, stopped):
    def mean(parts: list[dict]) -> torch.Tensor:
        owed = [part["link"]["memory"]["owed"] for part in parts]
        return torch.stack([torch.cat([v.flatten().double() for v in each.values()]) for each in owed]).mean(0)

    folder = RunFolder(stopped / folder_name(word))
    step = folder.latest()
    before = mean([folder.load_rank(step, f"rank-{rank:05d}") for rank in range(3)])
    assert before.norm() > 0
    for ranks in (1, 2, 4):
        after = mean([regrouped(folder, step, wrote=3, rank=rank, ranks=ranks) for rank in range(ranks)])
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6 * float(before.abs().max()))


def test_optimizers_of_local_steps_become_their_mean():
    def optimizer(gradient: float) -> dict:
        made = torch.optim.AdamW([weight := torch.nn.Parameter(torch.zeros(3))], lr=0.1)
        weight.grad = torch.full((3,), gradient)
        made.step()
        return made.state_dict()

    one, other = optimizer(1.0), optimizer(3.0)
    mean = mean_optimizer([one, other], [0.25, 0.75])
    torch.testing.assert_close(mean["state"][0]["exp_avg"], torch.full((3,), 0.25))
    torch.testing.assert_close(mean["state"][0]["exp_avg_sq"], torch.full((3,), 0.007))
    assert mean["state"][0]["step"] == 1
    assert mean["param_groups"] == one["param_groups"]


def test_optimizers_that_remember_nothing_or_nonsense_do_not_count():
    def state(**of_first) -> dict:
        return {"state": {0: of_first} if of_first else {}, "param_groups": [{"lr": 0.1}]}

    some = state(momentum_buffer=torch.ones(2))
    lost = state(momentum_buffer=torch.tensor([torch.nan, 1.0]))
    for others in ([state(), some], [some, state()], [lost, some], [some, lost]):
        mean = mean_optimizer(others, [0.5, 0.5])
        assert torch.equal(mean["state"][0]["momentum_buffer"], torch.ones(2))
    assert mean_optimizer([lost, state()], [0.5, 0.5])["state"][0] == {}
    assert mean_optimizer([state(momentum_buffer=None)] * 2, [0.5, 0.5])["state"][0] == {"momentum_buffer": None}


def test_a_part_that_is_missing_is_named(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    for word in WORDS:
        for part in (tmp_path / folder_name(word) / "checkpoints").glob("step-*/rank-00001.pt"):
            part.unlink()
    ranks = run_alone(1, _all, tmp_path, replace(SPEC, workers=1), None, True, within_seconds=60)
    for ending in ranks[0].value:
        assert "has no rank-00001.pt" in ending.error
        assert "bring together" in ending.error
