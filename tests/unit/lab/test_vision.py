"""Pictures: the residual network against its paper, what moves a picture, and who sees which."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from laconic.lab.data.kinds import Pictures, Text
from laconic.lab.models.resnet import ResNet
from laconic.lab.tasks.vision import Vision, VisionWork, mean_and_std, moved, padding_for
from laconic.lab.training import Course, Training
from laconic.lab.work import Place


def _pictures(*, number: int = 48, size: int = 8, channels: int = 1) -> Pictures:
    """Picture i is all of byte i, so that it is known again; the test has other pictures of the same kind."""
    values = np.arange(number, dtype=np.uint8)[:, None, None, None]
    images = np.broadcast_to(values, (number, size, size, channels)).copy()
    labels = np.arange(number) % 4
    noise = np.random.default_rng(0).integers(0, 256, (21, size, size, channels), dtype=np.uint8)
    return Pictures(
        name="made-up", train_images=images, train_labels=labels, test_images=noise, test_labels=np.arange(21) % 4,
        classes=4,
    )  # fmt: skip


def _work(task: Vision, pictures: Pictures, monkeypatch, *, rank=0, ranks=1, seed=0, batch=8) -> VisionWork:
    monkeypatch.setattr("laconic.lab.tasks.vision.load", lambda name, home: pictures)
    torch.manual_seed(1)
    place = Place(
        rank=rank, ranks=ranks, device=torch.device("cpu"), seed=seed, batch=batch, data_home=Path("nowhere")
    )
    return task.prepare(place)


# The network


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (32, 464_154), (56, 853_018), (110, 1_727_962)])
def test_parameters_are_those_of_the_paper(depth, parameters):
    # Table 6 of He et al.: 0.27M, 0.46M, 0.85M, 1.7M.
    net = ResNet(depth, channels=3, classes=10)
    assert sum(p.numel() for p in net.parameters()) == parameters
    layers = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == depth


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_depth_that_is_not_6n_plus_2_is_refused(depth):
    with pytest.raises(ValueError, match=r"6n\+2"):
        ResNet(depth, channels=3, classes=10)


@pytest.mark.parametrize("size", [8, 28, 32])
def test_the_stages_halve_the_picture_twice(size):
    net, seen = ResNet(20, channels=1, classes=7, width=4), []
    for block in net.stages:
        block.register_forward_hook(lambda module, x, y: seen.append(tuple(y.shape[1:])))
    assert net(torch.zeros(2, 1, size, size)).shape == (2, 7)
    assert seen == [(4 * k, size // k, size // k) for k in (1, 2, 4) for _ in range(3)]


def test_a_shortcut_has_no_weights_and_new_channels_are_zero():
    block = ResNet(20, channels=1, classes=2, width=4).stages[3]
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 4, 6, 6)
    y = block(x)
    assert torch.equal(y[:, :4], x[:, :, ::2, ::2])
    assert not y[:, 4:].any()


# What moves a picture


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_moved_is_a_crop_of_the_padded_picture(data):
    number, height, width, most = 3, data.draw(st.integers(3, 7)), data.draw(st.integers(3, 7)), 2
    moves = st.lists(st.integers(-most, most), min_size=number, max_size=number)
    down, right = data.draw(moves), data.draw(moves)
    mirror = data.draw(st.lists(st.booleans(), min_size=number, max_size=number))
    images = torch.rand(number, height, width, 2)
    got = moved(images, down=torch.tensor(down), right=torch.tensor(right), mirror=torch.tensor(mirror))
    for i in range(number):
        picture = images[i].flip(1) if mirror[i] else images[i]
        padded = functional.pad(picture, (0, 0, most, most, most, most))
        top, left = most + down[i], most + right[i]
        assert torch.equal(got[i], padded[top : top + height, left : left + width])


def test_how_far_a_picture_moves_follows_its_size():
    assert [padding_for(size) for size in (8, 28, 32)] == [0, 2, 4]


def test_mean_and_std_are_numpys_and_a_constant_channel_is_not_divided_by_zero():
    images = np.random.default_rng(3).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
    images[..., 2] = 9
    got = mean_and_std(images)
    assert got[0] == pytest.approx(images.mean((0, 1, 2)))
    assert got[1] == pytest.approx([*images.std((0, 1, 2))[:2], 1.0])


# Batches


def test_training_pictures_have_mean_0_and_variance_1(monkeypatch):
    images = _work(Vision(), _pictures(), monkeypatch, batch=48).batch(0).images
    assert images.shape == (48, 1, 8, 8)
    assert float(images.mean()) == pytest.approx(0, abs=1e-5)
    assert float(images.std(unbiased=False)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("size", [8, 28, 32])
def test_a_batch_depends_on_seed_rank_and_step_alone(monkeypatch, size):
    pictures = _pictures(size=size, channels=3)
    one = _work(Vision(), pictures, monkeypatch, ranks=2)
    walked = [one.batch(step) for step in range(8)]
    again = _work(Vision(), pictures, monkeypatch, ranks=2)
    for step in (7, 0, 4):
        assert torch.equal(again.batch(step).images, walked[step].images)
        assert torch.equal(again.batch(step).labels, walked[step].labels)
    for other in ({"seed": 1}, {"rank": 1}):
        assert not torch.equal(_work(Vision(), pictures, monkeypatch, ranks=2, **other).batch(0).images,
                               walked[0].images)  # fmt: skip


@pytest.mark.parametrize("size", [8, 28])
def test_without_augmentation_pictures_come_as_they_are(monkeypatch, size):
    still = _work(Vision(augment=False), _pictures(size=size), monkeypatch).batch(0)
    assert torch.equal(still.images, still.images[:, :, :1, :1].expand_as(still.images))
    if padding_for(size):
        shifted = _work(Vision(), _pictures(size=size), monkeypatch).batch(0)
        assert torch.equal(shifted.labels, still.labels)
        assert (shifted.images == 0).any()


def _seen(work: VisionWork, pictures: Pictures) -> set[int]:
    """The pictures of an epoch, known by their byte."""
    mean, std = mean_and_std(pictures.train_images)
    values = torch.cat([work.batch(step).images[:, 0, 0, 0] for step in range(work.steps_per_epoch)])
    return set((values * std[0] + mean[0]).round().int().tolist())


def test_ranks_share_the_pictures_out(monkeypatch):
    pictures = _pictures()
    seen = [_seen(_work(Vision(), pictures, monkeypatch, rank=r, ranks=3), pictures) for r in range(3)]
    assert sorted(i for part in seen for i in part) == list(range(48))


def test_with_no_similarity_a_rank_sees_few_classes(monkeypatch):
    task = Vision(split="similarity:0")
    work = _work(task, _pictures(), monkeypatch, rank=1, ranks=4, batch=4)
    labels = {int(label) for step in range(work.steps_per_epoch) for label in work.batch(step).labels}
    assert len(labels) == 1


def test_fewer_examples_are_the_first(monkeypatch):
    work = _work(Vision(train_examples=16, test_examples=5), _pictures(), monkeypatch)
    assert _seen(work, _pictures(number=16)) == set(range(16))
    assert work.evaluate("test").examples == 5


# Evaluation, settings, errors


def test_tallies_of_ranks_add_up_to_that_of_one(monkeypatch):
    whole = _work(Vision(), _pictures(), monkeypatch).evaluate("test")
    works = [_work(Vision(), _pictures(), monkeypatch, rank=r, ranks=4) for r in range(4)]
    tallies = [work.evaluate("test") for work in works]
    assert sum(t.examples for t in tallies) == sum(t.scored for t in tallies) == whole.scored == 21
    assert sum(t.score for t in tallies) == whole.score
    assert sum(t.loss for t in tallies) == pytest.approx(whole.loss, rel=1e-4)
    assert works[0].model.training


def test_a_rank_without_test_pictures_scores_nothing(monkeypatch):
    tally = _work(Vision(), _pictures(), monkeypatch, rank=23, ranks=24, batch=2).evaluate("test")
    assert (tally.loss, tally.examples, tally.score, tally.scored) == (0, 0, 0, 0)


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_lie_as_weights_do(monkeypatch, channels):
    # A story: gray pictures with channels last gave gradients of other strides, of which DDP warned.
    work = _work(Vision(), _pictures(size=32, channels=channels), monkeypatch)
    work.loss(work.model, work.batch(0)).backward()
    assert all(p.grad.stride() == p.stride() for p in work.model.parameters())


def test_evaluation_changes_nothing(monkeypatch):
    work = _work(Vision(), _pictures(), monkeypatch)
    before = {name: value.clone() for name, value in work.model.state_dict().items()}
    assert work.evaluate("test") == work.evaluate("test")
    assert all(torch.equal(before[name], value) for name, value in work.model.state_dict().items())


@pytest.mark.parametrize("data", ["digits", "cifar10", "fashion-mnist"])
@pytest.mark.parametrize("model", ["resnet20", "resnet110"])
def test_the_choice_leaves_nothing_open(data, model):
    choice = Vision(data=data, model=model).choice()
    none = {f.name for f in fields(Training) if getattr(choice, f.name) is None}
    assert none == {"steps", "eval_every"}
    assert bool(choice.warmup) == (model == "resnet110" and data != "digits")


def test_text_is_no_picture(monkeypatch):
    text = Text(name="ptb", train="", valid="", test="")
    with pytest.raises(ValueError, match=r"vision wants pictures; 'ptb' is text\. Try --data digits\."):
        _work(Vision(data="ptb"), text, monkeypatch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"model": "resnet21"}, {"split": "speaker"}, {"width": 0}, {"train_examples": 0}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Vision(**wrong)


def test_digits_are_learned():
    torch.manual_seed(0)
    task = Vision(width=8)
    place = Place(rank=0, ranks=1, device=torch.device("cpu"), seed=0, batch=64, data_home=Path("nowhere"))
    work = task.prepare(place)
    course = Course.of(Training(epochs=3.0).filled(task.choice()), work.steps_per_epoch)
    optimizer = course.make_optimizer(work.model)
    for step in range(course.steps):
        optimizer.param_groups[0]["lr"] = course.rate_at(step)
        optimizer.zero_grad()
        work.loss(work.model, work.batch(step)).backward()
        optimizer.step()
    assert work.metric.of(work.evaluate("test")) > 0.9
