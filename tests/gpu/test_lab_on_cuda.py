"""The laboratory's tasks on a GPU: they learn, and the same spec gives the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from laconic.lab.launch import be_deterministic
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm, Logreg, Speech, Task, Vision
from laconic.lab.training import Training
from pool import run_alone

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TASKS = {
    "lstm": (Lm(hidden=32), "sdagc"),
    "awd": (Lm(model="awd", hidden=32, embedding=32), "topk"),
    "gpt": (Lm(model="gpt", hidden=32, layers=1), "dense"),
    "vision": (Vision(width=4, train_examples=400, test_examples=40), "topk:density=0.05"),
    "speech": (Speech(hidden=16), "dgc:density=0.05"),
    "logreg": (Logreg(), "topk"),
    "logreg, whole": (Logreg(full_batch=True), "dense"),
}


def _train(group, task: Task, method: str, out: Path) -> Ending:
    torch.cuda.set_device(0)
    be_deterministic()
    training = Training(steps=12, log_every=4)
    spec = Spec(
        task=task,
        training=training,
        method=method,
        workers=2,
        device="cuda",
        data_home=str(out),
        checkpoint_every=None,
    )
    return run_trials((Trial(spec=spec, folder=out),), {}, True)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_learns_and_gives_the_same_bits_twice(name, tmp_path):
    task, method = TASKS[name]
    made = []
    for place in ("first", "second"):
        ranks = run_alone(2, _train, task, method, tmp_path / place, within_seconds=50)
        assert [rank.message for rank in ranks] == ["", ""], ranks
        made += [rank.value.results[0] for rank in ranks]
    assert len({result["weights_sha256"] for result in made}) == 1
    assert made[0]["final"] is not None
