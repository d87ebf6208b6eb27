"""All ranks' language models at once on a GPU: kernels and graph give what the CPU gives."""

from __future__ import annotations

import copy
import os

import pytest
import torch

from laconic.lab.lstm_together import TextTogether
from laconic.lab.models.awd import AWD, Drops
from laconic.lab.models.lstm import LSTM
from laconic.lab.models.resnet import ResNet
from laconic.lab.resnet_together import PicturesTogether
from laconic.lab.tasks.lm import Window
from laconic.lab.tasks.vision import PictureBatch
from laconic.lab.together import Given, Shared

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def _the_same_bits_every_time():
    """Some operations cannot be captured then."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _model(*, awd):
    if awd:
        return AWD(50, embedding=40, hidden=56, layers=3, tied=True, drops=Drops().scaled(0))
    return LSTM(50, embedding=40, hidden=40, layers=2, tied=True)


@pytest.mark.parametrize("awd", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_eager_captured_and_replayed_steps_are_those_of_the_cpu(same, awd):
    models = []
    for rank in range(3):
        torch.manual_seed(0 if same else rank)
        models.append(_model(awd=awd))
    here = TextTogether.of(models, torch.zeros(2, 7), same=same)
    there, shared = [copy.deepcopy(model).cuda() for model in models], Shared(same=same)
    for step in range(6):
        draw = torch.Generator().manual_seed(step)
        tokens, targets = (torch.randint(50, (3, 2, 7), generator=draw) for _ in range(2))
        here.tokens.copy_(tokens)
        here.targets.copy_(targets)
        if step == 4:
            here.forget()
        here.run()
        given = [
            Given(model=model, batch=Window(tokens=x.cuda(), targets=y.cuda(), first=step in (0, 4)))
            for model, x, y in zip(there, tokens, targets, strict=True)
        ]
        done = shared.step(given)
        torch.testing.assert_close(done.losses.cpu(), here.losses, rtol=1e-4, atol=1e-4)
        for name, grad in here.grads.items():
            torch.testing.assert_close(done.grads[name].cpu(), grad, rtol=1e-3, atol=1e-5)
        for mine, other in zip(models, there, strict=True):
            for p, q in zip(mine.parameters(), other.parameters(), strict=True):
                p.data.mul_(0.9)
                q.data.mul_(0.9)


@pytest.mark.parametrize("awd", [True, False])
def test_replays_draw_dropout_from_the_seed_of_their_time(awd):
    torch.manual_seed(0)
    lstm = LSTM(50, embedding=40, hidden=40, layers=2, tied=True, dropout=0.5)
    model = (AWD(50, embedding=40, hidden=56, layers=3) if awd else lstm).cuda()
    shared, losses = Shared(same=True), []
    window = torch.arange(28).view(2, 14).cuda()
    batch = Window(tokens=window[:, :7], targets=window[:, 7:], first=True)
    for seed in (1, 2, 3, 4, 5, 5, 6):
        torch.manual_seed(seed)
        losses.append(float(shared.step([Given(model=model, batch=batch)] * 2).losses[0]))
    assert losses[4] == losses[5]
    assert len(set(losses)) == 6


@pytest.mark.parametrize("same", [True, False])
def test_pictures_captured_and_replayed_are_those_of_the_cpu(same):
    models = []
    for rank in range(3):
        torch.manual_seed(0 if same else rank)
        models.append(ResNet(8, channels=3, classes=10, width=8))
    there, shared = [copy.deepcopy(model).cuda() for model in models], Shared(same=same)
    here = PicturesTogether(models, torch.zeros(4, 3, 8, 8), same=same)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        for step in range(6):
            draw = torch.Generator().manual_seed(step)
            images, labels = torch.randn(3, 4, 3, 8, 8, generator=draw), torch.randint(10, (3, 4), generator=draw)
            each = [PictureBatch(images=x, labels=y) for x, y in zip(images, labels, strict=True)]
            here.fill(each)
            here.run()
            given = [
                Given(model=model, batch=PictureBatch(images=one.images.cuda(), labels=one.labels.cuda()))
                for model, one in zip(there, each, strict=True)
            ]
            done = shared.step(given)
            torch.testing.assert_close(done.losses.cpu(), here.losses, rtol=1e-4, atol=1e-4)
            for name, grad in here.grads.items():
                torch.testing.assert_close(done.grads[name].cpu(), grad, rtol=1e-3, atol=1e-4)
            for mine, other in zip(models, there, strict=True):
                for name, buffer in mine.named_buffers():
                    torch.testing.assert_close(other.get_buffer(name).cpu(), buffer, rtol=1e-3, atol=1e-4)
