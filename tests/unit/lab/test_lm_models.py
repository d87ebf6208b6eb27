"""Language models: what they remember, what they may see, what they drop, how large they are."""

from __future__ import annotations

import pytest
import torch

from laconic.lab.models.awd import AWD, Drops, drop_locked, drop_rows, run_layer
from laconic.lab.models.gpt import GPT
from laconic.lab.models.lstm import LSTM
from laconic.lab.tasks.lm import Lm

MODELS = {
    "lstm": lambda: LSTM(11, embedding=6, hidden=8, layers=2, dropout=0.3, spread=0.1),
    "lstm tied": lambda: LSTM(11, embedding=8, hidden=8, tied=True),
    "awd": lambda: AWD(11, embedding=6, hidden=8),
    "awd untied": lambda: AWD(11, embedding=6, hidden=8, layers=2, tied=False),
    "gpt": lambda: GPT(11, window=10, width=8, layers=2, heads=2, dropout=0.1),
    "gpt untied": lambda: GPT(11, window=10, width=8, layers=1, heads=1, tied=False),
}
RECURRENT = ["lstm", "lstm tied", "awd", "awd untied"]


@pytest.fixture
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]()


def tokens(*shape):
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(1))


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("model", RECURRENT, indirect=True)
def test_two_windows_of_a_stream_score_as_one_long_window(model):
    model.eval()
    x = tokens(3, 10)
    whole = model(x, None)
    one = model(x[:, :4], None)
    two = model(x[:, 4:], one.state)
    torch.testing.assert_close(torch.cat([one.scores, two.scores], 1), whole.scores)
    torch.testing.assert_close(two.state, whole.state)
    assert not torch.allclose(two.scores, model(x[:, 4:], None).scores), "the state says something"


@pytest.mark.parametrize("model", MODELS, indirect=True)
def test_no_score_depends_on_a_later_token_and_all_on_their_own(model):
    model.eval()
    x = tokens(2, 10)
    other = x.clone()
    other[:, 6] = (other[:, 6] + 1) % 11
    before, after = model(x, None).scores, model(other, None).scores
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:] != after[:, 6:]).any(-1).all()


@pytest.mark.parametrize("model", MODELS, indirect=True)
def test_streams_do_not_see_each_other(model):
    model.eval()
    x = tokens(3, 10)
    torch.testing.assert_close(model(x[1:2], None).scores, model(x, None).scores[1:2])


@pytest.mark.parametrize("model", MODELS, indirect=True)
def test_every_parameter_gets_a_gradient(model):
    reading = model(tokens(4, 10), None)
    loss = torch.nn.functional.cross_entropy(reading.scores.flatten(0, 1), tokens(40))
    (loss if reading.penalty is None else loss + reading.penalty).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
        assert parameter.grad.is_contiguous(), name


@pytest.mark.parametrize("model", ["lstm", "awd", "gpt"], indirect=True)
def test_dropout_is_a_function_of_the_seed_in_training_and_gone_in_evaluation(model):
    def scores(seed):
        torch.manual_seed(seed)
        return model(tokens(2, 10), None).scores

    assert torch.equal(scores(0), scores(0))
    assert not torch.equal(scores(0), scores(1))
    model.eval()
    assert torch.equal(scores(0), scores(1))


def test_a_locked_mask_is_the_same_along_a_window_and_not_across_streams():
    dropped = drop_locked(torch.ones(16, 9, 40), 0.25, True)
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert abs(dropped.mean() - 1) < 0.15


def test_a_word_is_dropped_as_a_whole():
    dropped = drop_rows(torch.ones(400, 5), 0.5, True)
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("drop", [drop_locked, drop_rows])
def test_nothing_is_dropped_without_a_share_or_outside_training(drop):
    signal = torch.randn(3, 4, 5)
    assert drop(signal, 0.5, False) is signal
    assert drop(signal, 0.0, True) is signal


def test_a_layer_run_with_its_own_weights_is_the_layer():
    layer, x = torch.nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    start = (torch.randn(1, 2, 4), torch.randn(1, 2, 4))
    for before in (None, start):
        ours, theirs = run_layer(layer, x, before, layer.weight_hh_l0), layer(x, before)
        torch.testing.assert_close(ours, theirs)


def test_recurrent_weights_are_dropped_for_a_whole_window_and_keep_their_names():
    """What is dropped has no gradient in this window, and the mask is one for all of its steps and streams."""
    torch.manual_seed(0)
    model = AWD(11, embedding=6, hidden=30, drops=Drops(words=0, inputs=0, between=0, output=0, weights=0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(tokens(4, 10), None).scores.square().sum().backward()
    gone = (model.lstm[0].weight_hh_l0.grad == 0).double().mean()
    assert 0.45 < gone < 0.55
    assert isinstance(model.lstm[0].weight_hh_l0, torch.nn.Parameter)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_penalty_is_that_of_the_paper():
    torch.manual_seed(0)
    model = AWD(11, embedding=6, hidden=8, drops=Drops().scaled(0), alpha=2.0, beta=3.0)
    heard = []
    model.out.register_forward_hook(lambda module, inputs, output: heard.append(inputs[0]))
    penalty = model(tokens(2, 7), None).penalty
    h = heard[0]
    wanted = 2 * (h**2).mean() + 3 * ((h[:, 1:] - h[:, :-1]) ** 2).mean()
    torch.testing.assert_close(penalty, wanted)
    one = model(tokens(2, 1), None).penalty
    assert torch.isfinite(one), "a window of one token has no differences"
    assert model.eval()(tokens(2, 7), None).penalty is None


def test_sizes_are_the_published_ones():
    assert count(Lm(data="ptb", model="awd").build(10_000)) == 24_221_600  # Merity et al.: 24M
    assert count(Lm(data="ptb").build(10_000)) == 4_653_200  # Zaremba et al. 2014, small: 5M, two biases a gate
    assert count(Lm().build(103)) == 103 * 64 + 4 * 256 * (64 + 256 + 2) + 257 * 103
    blocks = 4 * (12 * 128**2 + 13 * 128)
    assert count(Lm(model="gpt").build(103)) == 103 * 128 + 128 * 128 + blocks + 2 * 128


def test_the_default_model_has_its_parameters_in_this_order():
    shapes = [tuple(parameter.shape) for parameter in Lm().build(103).parameters()]
    assert shapes == [(103, 64), (1024, 64), (1024, 256), (1024,), (1024,), (103, 256), (103,)]


def test_weights_of_a_transformer_start_small_and_those_that_end_a_short_cut_smaller():
    torch.manual_seed(0)
    model = GPT(500, window=64, width=64, layers=8)
    assert abs(model.embedding.weight.std() - 0.02) < 0.001
    assert abs(model.blocks[3].narrow.weight.std() - 0.02 / 4) < 0.0005
    assert abs(model.blocks[3].wide.weight.std() - 0.02) < 0.001
    assert model.blocks[0].wide.bias.abs().sum() == 0
    assert model.out.weight is model.embedding.weight


def test_what_cannot_be_built_is_refused():
    with pytest.raises(ValueError, match=r"tied weights want .* got 6 and 8\. Write --embedding 8"):
        LSTM(11, embedding=6, hidden=8, tied=True)
    with pytest.raises(ValueError, match=r"multiple of 4 heads, got 30"):
        GPT(11, window=8, width=30)
    with pytest.raises(ValueError, match=r"at most 8 tokens, got 9"):
        GPT(11, window=8, width=8)(tokens(1, 9), None)
