"""All ranks' language models at once: what each gets is what it would get alone."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import pytest
import torch
from torch.nn import functional

from laconic.lab import text_drops
from laconic.lab.lstm_together import TextTogether
from laconic.lab.models.awd import AWD, Drops
from laconic.lab.models.lstm import LSTM
from laconic.lab.models.resnet import ResNet
from laconic.lab.resnet_together import PicturesTogether
from laconic.lab.tasks.lm import Window
from laconic.lab.tasks.vision import PictureBatch
from laconic.lab.text_drops import drawn
from laconic.lab.together import Given, Shared

RANKS, STREAMS, LENGTH, WORDS, WIDTH = 3, 2, 5, 11, 6


def _models(*, same: bool, tied: bool, dropout: float = 0.0) -> list[LSTM]:
    models = []
    for rank in range(RANKS):
        torch.manual_seed(0 if same else rank)
        models.append(
            LSTM(WORDS, embedding=WIDTH, hidden=WIDTH, layers=2, tied=tied, dropout=dropout).to(torch.float64)
        )
    return models


def _awd(*, same: bool, tied: bool, drops: Drops) -> list[AWD]:
    models = []
    for rank in range(RANKS):
        torch.manual_seed(0 if same else rank)
        # Three layers, of which the middle one is wider.
        sizes = {"embedding": WIDTH, "hidden": WIDTH + 2, "layers": 3}
        models.append(AWD(WORDS, **sizes, tied=tied, drops=drops).to(torch.float64))
    return models


def _together(models: list[LSTM] | list[AWD], *, same: bool) -> TextTogether:
    return TextTogether.of(models, torch.zeros(STREAMS, LENGTH), same=same)


def _fill(together: TextTogether, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for place in (together.tokens, together.targets):
        place.copy_(torch.randint(WORDS, place.shape, generator=draw))


@pytest.mark.parametrize("awd", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_losses_and_gradients_are_those_of_each_rank_alone(same, tied, awd):
    models = _awd(same=same, tied=tied, drops=Drops().scaled(0)) if awd else _models(same=same, tied=tied)
    together, states = _together(models, same=same), [None] * RANKS
    for window in range(3):
        _fill(together, window)
        together.run()
        for rank, model in enumerate(models):
            model.zero_grad()
            reading = model(together.tokens[rank], states[rank])
            states[rank] = tuple(tensor.detach() for tensor in reading.state)
            loss = functional.cross_entropy(reading.scores.flatten(0, 1), together.targets[rank].flatten())
            loss = loss if reading.penalty is None else loss + reading.penalty
            loss.backward()
            torch.testing.assert_close(together.losses[rank], loss.detach())
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(together.grads[name][rank], parameter.grad, msg=name)


def test_what_is_dropped_does_not_depend_on_who_comes_last():
    """It was drawn by the seed of the rank that came last, and a run that was repeated had other draws."""
    models = _models(same=True, tied=True, dropout=0.5)
    tokens = torch.zeros(STREAMS, LENGTH, dtype=torch.int64)
    window = Window(tokens=tokens, targets=tokens + 1, first=True)
    given = [Given(model=model, batch=window, seed=100 + rank) for rank, model in enumerate(models)]
    losses = []
    for last in range(RANKS):
        torch.manual_seed(100 + last)
        losses.append(Shared(same=True).step(given).losses.clone())
    assert all(torch.equal(each, losses[0]) for each in losses)


def test_a_new_walk_begins_without_memory():
    together = _together(_models(same=True, tied=True), same=True)
    _fill(together, 0)
    together.run()
    first = together.losses.clone()
    together.run()
    assert not torch.equal(together.losses, first)
    together.forget()
    together.run()
    torch.testing.assert_close(together.losses, first)


def test_dropout_is_drawn_anew_and_the_same_from_the_same_seed():
    together = _together(_models(same=True, tied=True, dropout=0.5), same=True)
    _fill(together, 0)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        together.forget()
        together.run()
        losses.append(together.losses.clone())
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


@pytest.mark.parametrize("awd", [True, False])
def test_gradients_under_dropout_are_those_of_the_loss_by_differences(awd):
    models = _awd(same=True, tied=True, drops=Drops()) if awd else _models(same=True, tied=True, dropout=0.3)
    together = _together(models, same=True)
    _fill(together, 4)

    def losses() -> torch.Tensor:
        torch.manual_seed(7)
        together.forget()
        together.run()
        return together.losses.clone()

    losses()
    grads = {name: grad.clone() for name, grad in together.grads.items()}
    for name, parameter in models[0].named_parameters():
        place = parameter.data.view(-1)
        for at in (0, place.numel() // 2):
            was, step = float(place[at]), 1e-5
            place[at] = was + step
            above = losses()
            place[at] = was - step
            slope = (above - losses()) / (2 * step)
            place[at] = was
            expected = grads[name].flatten(1)[:, at]
            torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-8, msg=f"{name} {at}")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_what_awd_drops_is_dropped_where_the_model_drops_it(same, tied, monkeypatch):
    """The model, given what was drawn for a rank in the order in which it asks, has its loss and gradients."""
    models = _awd(same=same, tied=tied, drops=Drops(words=0.3))
    together, states, draw = _together(models, same=same), [None] * RANKS, text_drops._left
    left: list[torch.Tensor] = []
    monkeypatch.setattr(text_drops, "_left", lambda *asked: left.append(draw(*asked)) or left[-1])
    for window in range(2):
        left.clear()
        _fill(together, window)
        together.run()
        *signals, words, first, second, third = left
        for rank, model in enumerate(models):
            locked = [mask[rank].transpose(0, 1) for mask in signals]
            matrices = zip([first[rank], second[rank], third[rank]], locked[1:], strict=True)
            asked = iter([words[rank].unsqueeze(1), locked[0], *itertools.chain(*matrices)])
            shares = iter([0.3, 0.4, 0.5, 0.25, 0.5, 0.25, 0.5, 0.4])
            model.zero_grad()
            with monkeypatch.context() as patch:
                patch.setattr(functional, "dropout", partial(_given, asked, shares))
                reading = model(together.tokens[rank], states[rank])
            states[rank] = tuple(tensor.detach() for tensor in reading.state)
            loss = functional.cross_entropy(reading.scores.flatten(0, 1), together.targets[rank].flatten())
            loss = loss + reading.penalty
            loss.backward()
            assert next(asked, None) is next(shares, None) is None
            torch.testing.assert_close(together.losses[rank], loss.detach())
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(together.grads[name][rank], parameter.grad, msg=name)


def _given(asked, shares, x: torch.Tensor, share: float, training: bool = True) -> torch.Tensor:
    """What dropout gives, with a mask that is known: what is left has the mean of what there was."""
    mask = next(asked)
    assert mask.shape == x.shape
    assert training
    assert share == next(shares)
    assert set(mask.unique().tolist()) <= {0.0, 1 / (1 - share)}
    return x * mask


def test_awd_drops_words_features_and_weights_of_each_rank():
    models = _awd(same=True, tied=True, drops=Drops())
    together = _together(models, same=True)
    _fill(together, 0)
    tokens = together.tokens.transpose(1, 2)
    left = drawn(models[0], tokens, [WIDTH, WIDTH + 2, WIDTH + 2, WIDTH], like=together.losses)
    inputs, between, *_, output = left.signals
    # A feature is there along a window or is not, and a word is there in a rank's window or is not.
    assert between.shape[1] == output.shape[1] == 1
    gone = (inputs == 0).all(-1)
    for rank in range(RANKS):
        for word in tokens[rank].unique():
            assert gone[rank][tokens[rank] == word].unique().numel() == 1
    assert not torch.equal(left.weights[0][0], left.weights[0][1])
    shares = [float((x == 0).double().mean()) for x in left.weights]
    assert shares == pytest.approx([0.5] * 3, abs=0.1)


@pytest.mark.parametrize("same", [True, False])
def test_pictures_are_those_of_each_rank_alone(same):
    models = []
    for rank in range(RANKS):
        torch.manual_seed(0 if same else rank)
        models.append(ResNet(8, channels=3, classes=10, width=4).to(torch.float64))
    alone = [copy.deepcopy(model) for model in models]
    together = PicturesTogether(models, torch.zeros(5, 3, 8, 8, dtype=torch.float64), same=same)
    for step in range(2):
        draw = torch.Generator().manual_seed(step)
        batches = [
            PictureBatch(
                images=torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=draw),
                labels=torch.randint(10, (5,), generator=draw),
            )
            for _ in range(RANKS)
        ]
        together.fill(batches)
        together.run()
        for rank, (model, batch) in enumerate(zip(alone, batches, strict=True)):
            model.zero_grad()
            loss = functional.cross_entropy(model(batch.images), batch.labels)
            loss.backward()
            torch.testing.assert_close(together.losses[rank], loss.detach())
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(together.grads[name][rank], parameter.grad, msg=name)
            for name, buffer in model.named_buffers():
                torch.testing.assert_close(models[rank].get_buffer(name), buffer, msg=name)
