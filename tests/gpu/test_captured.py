"""Steps as one CUDA graph: they are those that are launched kernel by kernel, but for rounding."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.lab.captured import Captured, captured
from laconic.lab.data.kinds import Pictures, Text
from laconic.lab.tasks.lm import Lm, LmWork
from laconic.lab.tasks.vision import Vision, VisionWork
from laconic.lab.work import Place
from laconic.sim.batched import tensors_in

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WORDS = "the cat saw a dog and the dog saw the cat\nso they ran\n"
STEPS = 12


def _place() -> Place:
    return Place(rank=0, ranks=1, device=torch.device("cuda", 0), seed=0, batch=8, data_home=Path("none"))


def _lm(dropout: float = 0.0, *, repeats: int = 40) -> LmWork:
    """40 repeats are 53 windows long; 10 are 13, so that the walk begins again."""
    torch.manual_seed(0)
    task = Lm(length=5, hidden=32, layers=2, embedding=16, dropout=dropout)
    return LmWork(task, Text(name="made-up", train=WORDS * repeats, valid=WORDS, test=WORDS), _place())


def _vision() -> VisionWork:
    torch.manual_seed(0)
    images = np.random.default_rng(0).integers(0, 256, (200, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(200) % 10
    data = Pictures(
        name="made-up", train_images=images, train_labels=labels, test_images=images[:20],
        test_labels=labels[:20], classes=10,
    )  # fmt: skip
    return VisionWork(Vision(model="resnet20"), data, _place())


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a step was given, and what it left."""

    loss: torch.Tensor
    grads: list[torch.Tensor]
    left: list[torch.Tensor]


def _trained(work, steps, *, rate=0.05) -> list[Seen]:
    optimizer, seen = torch.optim.SGD(work.model.parameters(), lr=rate), []
    for step in steps:
        batch = work.batch(step)
        torch.manual_seed(step)
        loss = work.loss(work.model, batch)
        loss.backward()
        grads = [p.grad.clone() for p in work.model.parameters()]
        left = [t.clone() for t in (*work.model.buffers(), *tensors_in(work.state_dict()))]
        seen.append(Seen(loss=loss.detach(), grads=grads, left=left))
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return seen


def _close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal but for rounding, measured by the largest entry; counts are equal."""
    if not one.is_floating_point():
        assert torch.equal(one, other)
        return
    most = float(one.abs().max())
    torch.testing.assert_close(one, other, rtol=0.0, atol=1e-3 * most + 1e-6)


def _alike(ours: list[Seen], theirs: list[Seen]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip([mine.loss, *mine.grads, *mine.left], [other.loss, *other.grads, *other.left], strict=True):
            _close(a, b)


def _on_gpu(work) -> Captured:
    mine = captured(work, _place().device)
    assert isinstance(mine, Captured)
    return mine


@pytest.fixture(autouse=True)
def _the_same_products():
    """In a graph other kernels may be chosen: with ten bits of a fraction they would soon part ways."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.fixture(autouse=True)
def _no_word_of_failing(caplog):
    """What is not captured is computed all the same: only the log tells."""
    with caplog.at_level(logging.WARNING, logger="laconic"):
        yield


@pytest.mark.parametrize("make", [_lm, _vision], ids=["lm", "vision"])
def test_replayed_steps_are_those_that_are_launched_kernel_by_kernel(make, caplog):
    mine = _on_gpu(make())
    _alike(_trained(mine, range(STEPS)), _trained(make(), range(STEPS)))
    assert caplog.messages == []
    assert len(mine._steps) == 1


def test_steps_in_between_and_a_loaded_checkpoint_are_taken_up():
    steps = range(30)
    assert _lm(repeats=10).steps_per_epoch < 15
    _alike(_trained(_on_gpu(_lm(repeats=10)), steps), _trained(_lm(repeats=10), steps))
    mine, plain = _on_gpu(_lm()), _lm()
    _alike(_trained(mine, range(7)), _trained(plain, range(7)))
    saved, kept = mine.state_dict(), plain.state_dict()
    _alike(_trained(mine, range(7, 10)), _trained(plain, range(7, 10)))
    for a, b in zip(saved["state"], kept["state"], strict=True):
        _close(a, b)
    mine.load_state_dict(saved)
    plain.load_state_dict(kept)
    _alike(_trained(mine, range(7, 10)), _trained(plain, range(7, 10)))


def test_masks_differ_from_step_to_step_and_come_again_with_the_seed(caplog):
    mine = _on_gpu(_lm(0.3))
    _trained(mine, range(1, 7))
    assert len(mine._steps) == 1
    state, batch, losses = mine.state_dict(), mine.batch(7), []
    for seed in (1, 2, 3, 1, 2, 3):
        mine.load_state_dict(state)
        torch.manual_seed(seed)
        losses.append(mine.loss(mine.model, batch).item())
        mine.model.zero_grad()
    assert losses[:3] == losses[3:]
    assert len(set(losses)) == 3
    # Without a seed in between the generator has moved on.
    torch.manual_seed(1)
    for _ in range(2):
        mine.load_state_dict(state)
        losses.append(mine.loss(mine.model, batch).item())
        mine.model.zero_grad()
    assert losses[6] == losses[0] != losses[7]
    assert caplog.messages == []


class Waiting:
    """A task whose loss waits for the device, which a capture does not allow."""

    def __init__(self, work: LmWork) -> None:
        self._work = work
        self.model, self.metric, self.splits, self.steps_per_epoch = (
            work.model, work.metric, work.splits, work.steps_per_epoch
        )  # fmt: skip
        self.batch, self.evaluate = work.batch, work.evaluate
        self.state_dict, self.load_state_dict = work.state_dict, work.load_state_dict

    def loss(self, model, batch):
        loss = self._work.loss(model, batch)
        assert loss.item() == loss.item()
        return loss


def test_a_capture_that_fails_leaves_a_stream_and_a_generator_to_go_on_with(caplog):
    current = torch.cuda.current_stream()
    ours = _trained(_on_gpu(Waiting(_lm(0.3))), range(STEPS))
    assert len(caplog.messages) == 1, caplog.messages
    assert torch.cuda.current_stream() == current
    _alike(ours, _trained(_lm(0.3), range(STEPS)))
    # Others may still be captured.
    other = _on_gpu(_lm(0.3))
    _trained(other, range(STEPS))
    assert len(other._steps) == 1
    assert len(caplog.messages) == 1
