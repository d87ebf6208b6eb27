"""Ranks that share a process train a plain module as they train DDP's, with one exchange a step."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from laconic.lab.folder import RunFolder
from laconic.lab.loop import Loop, Ways
from laconic.lab.method_words import make
from laconic.lab.session import place_of, prepare
from laconic.lab.signals import StopWish
from laconic.lab.simulated import VirtualTalk
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm, Logreg, Task, Vision
from laconic.lab.training import Course, Training
from laconic.sim import Network, Pace, World, group_of_one

RANKS = 3


class _Quiet:
    def line(self, line):
        pass


def _trained(folder: Path, task: Task, word: str, *, buckets: bool):
    training = Training(steps=6, batch=4, clip=0.05, momentum=0.9, eval_every=6)
    spec = Spec(
        task=task, training=training, method=word, workers=RANKS, device="cpu", data_home="nowhere",
        checkpoint_every=None,
    )  # fmt: skip
    world = World(Network(ranks=RANKS), Pace(ranks=RANKS, seconds=0.0))

    def work(rank):
        talk = VirtualTalk(world, rank)
        mine = prepare(spec, place_of(spec, talk))
        course = Course.of(spec.settled, mine.steps_per_epoch)
        ways = Ways(attach=partial(world.attach, rank), clock=world.clock(rank), saves=False, buckets=buckets)
        method = make(word, clip=course.clip)
        loop = Loop(mine, course, method, place_of(spec, talk), talk, RunFolder(folder), ways=ways)
        return loop.run(_Quiet(), StopWish(), checkpoint_every=None), loop.work.model.state_dict()

    with group_of_one():
        return world.run(work)


@pytest.mark.parametrize("word", ["dense", "celgc:every=4", "topk:density=1.0"])
@pytest.mark.parametrize("task", [Logreg(), Vision(width=2), Lm(hidden=8, length=8)], ids=lambda task: task.name)
def test_a_plain_module_ends_where_that_of_ddp_does(task, word, tmp_path):
    if task.name == "lm":
        (tmp_path / "some.txt").write_text("a few plain words in another order " * 100)
        task = Lm(data=str(tmp_path), hidden=8, length=8)
    in_buckets = _trained(tmp_path, task, word, buckets=True)
    plain = _trained(tmp_path, task, word, buckets=False)
    for (one, one_model), (other, other_model) in zip(in_buckets, plain, strict=True):
        assert one.steps == other.steps == 6
        # The gradient that is clipped is the mean of all ranks' in both, and so clipped in the same steps.
        assert one.clipped_share == other.clipped_share > 0
        assert other.stats.dense_bytes == one.stats.dense_bytes
        for name, tensor in one_model.items():
            torch.testing.assert_close(other_model[name], tensor, msg=name)
    # All ranks of a run have one model.
    assert len({outcome.weights_sha256 for outcome, _ in plain}) == 1
