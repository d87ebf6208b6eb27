"""Runs of the laboratory on real ranks, for tests: small ones, what they end with, and how one is set back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from laconic.lab.folder import RunFolder
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

TRAINING = Training(steps=9, batch=2, log_every=4, eval_every=6)
SMALL = Lm(hidden=8, length=32)


def spec_of(**settings: object) -> Spec:
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


def trial(group, spec: Spec, out: Path, resume: bool = False) -> Ending:
    return run_trials((Trial(spec=spec, folder=out, resume=resume),), {}, True)


def result_of(ranks) -> dict:
    assert [rank.message for rank in ranks] == [""] * len(ranks), ranks
    assert [rank.value.error for rank in ranks] == [None] * len(ranks)
    digests = {rank.value.results[0]["weights_sha256"] for rank in ranks}
    assert len(digests) == 1
    return ranks[0].value.results[0]


def forget_after(step: int, run: Path) -> None:
    """Have a run end with the checkpoint of a step."""
    for later in run.glob("checkpoints/step-*"):
        if int(later.name.removeprefix("step-")) > step:
            shutil.rmtree(later)
    assert RunFolder(run).latest() == step
