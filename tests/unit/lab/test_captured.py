"""Steps that are replayed: they are those that are computed, whatever comes in between."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from laconic.lab import captured as module
from laconic.lab.captured import Captured, Recording, captured
from laconic.lab.data.kinds import Pictures, Text
from laconic.lab.tasks.lm import Lm, LmWork
from laconic.lab.tasks.vision import Vision, VisionWork
from laconic.lab.work import Metric, Place
from laconic.sim.batched import tensors_in

CPU = torch.device("cpu")
PLACE = Place(rank=0, ranks=1, device=CPU, seed=0, batch=3, data_home=Path("none"))
WORDS = "the cat saw a dog and the dog saw the cat\nso they ran\n"


class Rerun:
    """What a CUDA graph is to ``Captured``: recording leaves no trace, a replay computes into the same tensors."""

    def __init__(self, work, *, error=None):
        self.work, self.error, self.said = work, error, []

    def warm(self, compute):
        self.said.append("warm")
        return compute()

    def record(self, compute):
        self.said.append("record")
        if self.error is not None:
            raise self.error
        touched = [*self.work.model.buffers(), *tensors_in(self.work.state_dict())]
        before, drawn = [tensor.clone() for tensor in touched], torch.get_rng_state()
        made = compute()
        for tensor, value in zip(touched, before, strict=True):
            tensor.copy_(value)
        torch.set_rng_state(drawn)

        def replay():
            self.said.append("replay")
            again = compute()
            made.loss.copy_(again.loss)
            for grad, new in zip(made.grads, again.grads, strict=True):
                if grad is not None:
                    grad.copy_(new)

        return Recording(replay=replay, computed=made)


@dataclass(frozen=True, kw_only=True)
class Pair:
    x: torch.Tensor
    tag: object = None


class Sum:
    """A parameter times what came in, and one that nothing depends on; it remembers what came in last."""

    metric, splits, steps_per_epoch = Metric(name="sum", lower_is_better=True), ("test",), 10
    evaluate = None

    def __init__(self, *, changes=False):
        self.model = nn.ParameterDict({"used": torch.ones(2, 2), "aside": torch.ones(3), "third": torch.ones(2, 2)})
        self.before, self.changes, self.steps = torch.zeros(2, 2), changes, 0

    def batch(self, step):
        return Pair(x=torch.full((2, 2), float(step)))

    def loss(self, model, batch):
        self.before = self.before + batch.x
        self.steps += 1
        return (model["used"] * self.before.clone()).sum() + (model["used"] + model["third"]).t().sum()

    def state_dict(self):
        return {"before": self.before, "steps": self.steps if self.changes else 0}

    def load_state_dict(self, state):
        self.before = state["before"]


def _lm(**more):
    torch.manual_seed(0)
    task = Lm(length=5, hidden=8, layers=2, embedding=8, **more)
    return LmWork(task, Text(name="made-up", train=WORDS * 3, valid=WORDS, test=WORDS), PLACE)


def _vision():
    torch.manual_seed(0)
    noise = np.random.default_rng(0)
    images, labels = noise.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8), np.arange(40) % 4
    data = Pictures(
        name="made-up", train_images=images, train_labels=labels, test_images=images, test_labels=labels, classes=4
    )
    return VisionWork(Vision(width=2), data, PLACE)


def _trained(work, steps):
    """Every step's loss, gradients, parameters, buffers and state, in a loop as the laboratory's."""
    optimizer, seen = torch.optim.SGD(work.model.parameters(), lr=0.1), []
    for step in steps:
        torch.manual_seed(step)
        loss = work.loss(work.model, work.batch(step))
        loss.backward()
        grads = [p.grad for p in work.model.parameters()]
        seen += [loss.detach(), *(g.clone() for g in grads if g is not None)]
        seen += [
            t.clone() for t in (*work.model.parameters(), *work.model.buffers(), *tensors_in(work.state_dict()))
        ]
        for grad in grads:
            if grad is not None:
                # An exchange leaves the mean in its place.
                grad.mul_(0.5)
        optimizer.step()
        optimizer.zero_grad()
    return seen


def _replaying(work):
    recorder = Rerun(work)
    return Captured(work, recorder, CPU), recorder


def _tagged(work, tag):
    work.loss(work.model, Pair(x=torch.ones(2, 2), tag=tag))
    work.model.zero_grad()


def _same(one, other):
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "make", [_lm, lambda: _lm(dropout=0.3), _vision, Sum], ids=["lm", "dropout", "vision", "sum"]
)
def test_replayed_steps_are_those_that_are_computed(make):
    mine, recorder = _replaying(make())
    # Past the beginning of a second epoch.
    steps = range(make().steps_per_epoch + 8)
    _same(_trained(mine, steps), _trained(make(), steps))
    assert recorder.said[:3] == ["warm", "record", "replay"]
    assert recorder.said.count("replay") >= len(steps) - 6


def test_a_kind_is_captured_in_its_fourth_step_and_its_step_is_done_once():
    mine, recorder = _replaying(Sum())
    _trained(mine, range(1, 4))
    assert recorder.said == ["warm"]
    _trained(mine, [4])
    assert recorder.said == ["warm", "record", "replay"]
    assert mine.state_dict()["before"].tolist() == [[10.0, 10.0]] * 2


def test_the_loss_is_a_copy_and_backward_on_it_adds_nothing():
    mine, _ = _replaying(Sum())
    losses = []
    for step in range(6):
        loss = mine.loss(mine.model, mine.batch(step))
        grads = [p.grad for p in mine.model.parameters()]
        before = [None if grad is None else grad.clone() for grad in grads]
        loss.backward()
        assert all(p.grad is grad for p, grad in zip(mine.model.parameters(), grads, strict=True))
        assert [g is None for g in grads] == [name == "aside" for name in mine.model]
        _same([g for g in grads if g is not None], [b for b in before if b is not None])
        losses.append(loss)
        mine.model.zero_grad()
    # 4 times 0, 1, 3, 6, 10, 15, and 8.
    assert [loss.item() for loss in losses] == [8, 12, 20, 32, 48, 68]


def test_gradients_lie_as_their_parameters_do_and_share_nothing():
    mine, _ = _replaying(Sum())
    for step in range(6):
        mine.loss(mine.model, mine.batch(step))
        used, third = mine.model["used"].grad, mine.model["third"].grad
        assert used.stride() == third.stride() == (2, 1)
        third.zero_()
        assert used.abs().sum() > 0
        mine.model.zero_grad()


def test_what_is_remembered_may_be_loaded_and_what_was_saved_stays():
    plain, (mine, _) = Sum(), _replaying(Sum())
    _same(_trained(mine, range(6)), _trained(plain, range(6)))
    saved, kept = mine.state_dict(), plain.state_dict()
    _same(_trained(mine, [6, 7]), _trained(plain, [6, 7]))
    _same([saved["before"]], [kept["before"]])
    mine.load_state_dict(saved)
    plain.load_state_dict(kept)
    _same(_trained(mine, [6, 7]), _trained(plain, [6, 7]))
    assert saved["before"].tolist() == [[15.0, 15.0]] * 2


def test_gradients_that_are_there_are_added_to():
    plain, (mine, recorder) = Sum(), _replaying(Sum())
    _same(_trained(mine, range(3)), _trained(plain, range(3)))
    for each, step in ((mine, 3), (mine, 4), (plain, 3), (plain, 4)):
        each.loss(each.model, each.batch(step)).backward()
    # The first of the two was replayed, the second is added to it.
    assert recorder.said == ["warm", "record", "replay"]
    _same(*([p.grad for p in each.model.values() if p.grad is not None] for each in (mine, plain)))
    mine.model.zero_grad()
    plain.model.zero_grad()
    _same(_trained(mine, range(5, 9)), _trained(plain, range(5, 9)))
    assert recorder.said == ["warm", "record", *["replay"] * 5]


def test_while_a_loss_with_a_graph_may_be_alive_nothing_is_recorded():
    mine, recorder = _replaying(Sum())
    _trained(mine, range(2))
    mine.model["used"].grad = torch.zeros(2, 2)
    mine.loss(mine.model, mine.batch(2)).backward()
    mine.model.zero_grad()
    _trained(mine, [3])
    assert recorder.said == []
    _trained(mine, [4, 5])
    assert recorder.said == ["warm", "record", "replay"]


def test_a_wrapped_model_is_left_to_its_wrapper():
    mine, recorder = _replaying(Sum())
    for step in range(6):
        assert mine.loss(dict(mine.model.items()), mine.batch(step)).grad_fn is not None
    assert recorder.said == []


@pytest.mark.parametrize("tag", [{1, 2}, np.zeros(2)], ids=["set", "array"])
def test_what_cannot_be_told_apart_is_not_captured(tag):
    mine, recorder = _replaying(Sum())
    for _ in range(6):
        _tagged(mine, tag)
    assert recorder.said == []


def test_what_is_not_on_the_device_is_not_captured():
    work = Sum()
    recorder = Rerun(work)
    _trained(Captured(work, recorder, torch.device("cuda")), range(6))
    assert recorder.said == []


def test_a_step_that_leaves_another_kind_of_state_is_not_captured():
    work = Sum(changes=True)
    mine, recorder = _replaying(work)
    for step in range(7):
        # Every step begins alike, and none ends as it began.
        work.steps = 0
        _trained(mine, [step])
    assert recorder.said == ["warm", "warm"]


def test_only_a_few_kinds_are_captured_and_only_so_many_counted(monkeypatch):
    monkeypatch.setattr(module, "_MOST_KINDS", 8)
    mine, recorder = _replaying(Sum())
    for _ in range(5):
        for tag in range(6):
            _tagged(mine, tag)
    assert recorder.said.count("record") == 4
    other, late = _replaying(Sum())
    for tag in [*range(8), *[8] * 5, *[7] * 3]:
        _tagged(other, tag)
    assert late.said == ["warm", "record", "replay"]


def test_a_capture_that_fails_is_told_once_and_steps_go_on(caplog):
    work, plain = _lm(), _lm()
    error = RuntimeError("operation failed due to a previous error")
    error.__context__ = RuntimeError("operation not permitted when stream is capturing\nmore")
    recorder = Rerun(work, error=error)
    with caplog.at_level(logging.WARNING, logger="laconic"):
        _same(_trained(Captured(work, recorder, CPU), range(12)), _trained(plain, range(12)))
    assert recorder.said == ["warm", "record"]
    assert caplog.messages == [
        "Steps are computed kernel by kernel, they cannot be captured: "
        "operation not permitted when stream is capturing"
    ]


def test_parameters_that_moved_are_read_where_they_are():
    plain, (mine, recorder) = Sum(), _replaying(Sum())
    _same(_trained(mine, range(6)), _trained(plain, range(6)))
    mine.model["used"].data, plain.model["used"].data = torch.full((2, 2), 7.0), torch.full((2, 2), 7.0)
    recorder.said.clear()
    _same(_trained(mine, range(6, 9)), _trained(plain, range(6, 9)))
    # A graph would have read the old place: there is no replay until it is captured again.
    assert recorder.said == ["warm"]


def test_on_cpu_work_stays_as_it_is():
    assert captured(work := Sum(), CPU) is work
