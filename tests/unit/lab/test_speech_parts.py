"""What recognizing speech is made of: errors over words, features, the CTC loss by its definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.lab.features import FLOOR, Frames, frames_of, log_mel, mel_matrix, mel_of
from laconic.lab.models.ctc import Alphabet, Recognizer, ctc_losses, greedy
from laconic.lab.word_errors import word_errors

# Word errors


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("", "", 0),
        ("one two", "", 2),
        ("", "one", 1),
        ("one two three", "one two three", 0),
        ("one two three", "one three", 1),
        ("one two three", "one two two three", 1),
        ("one two three", "three two one", 2),
        ("k i t t e n", "s i t t i n g", 3),
        ("i n t e n t i o n", "e x e c u t i o n", 5),
    ],
)
def test_word_errors_by_hand(said, heard, errors):
    assert word_errors(said.split(), heard.split()) == errors


_STRINGS = st.lists(st.sampled_from("abc"), max_size=7)


@given(_STRINGS, _STRINGS, _STRINGS)
def test_word_errors_are_a_distance(one, two, three):
    errors = word_errors(one, two)
    assert (errors == 0) == (one == two)
    assert errors == word_errors(two, one)
    assert abs(len(one) - len(two)) <= errors <= max(len(one), len(two))
    assert errors <= word_errors(one, three) + word_errors(three, two)


# Features


def test_mel_is_its_formula():
    assert mel_of(0.0) == 0
    assert mel_of(700.0) == pytest.approx(2595 * math.log10(2))


@pytest.mark.parametrize(("rate", "points"), [(8000, 256), (16000, 512)])
def test_triangles_cover_every_bin_once(rate, points):
    matrix = mel_matrix(rate=rate, points=points)
    assert matrix.shape == (points // 2 + 1, 40)
    assert bool((matrix.sum(0) > 0).all()), "a band without a bin hears nothing"
    first, last = int(matrix[:, 0].argmax()) + 1, int(matrix[:, -1].argmax())
    assert matrix[first:last].sum(1).numpy() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize("pitch", [440.0, 1000.0, 3000.0])
def test_a_tone_is_loudest_in_its_band(rate, pitch):
    wave = 8000 * np.sin(2 * np.pi * pitch * np.arange(rate) / rate)
    frames = log_mel(wave.astype(np.int16), rate=rate)
    assert frames.shape == (101, 40)
    expected = 41 * mel_of(pitch) / mel_of(rate / 2) - 1
    assert abs(float(frames[50].argmax()) - expected) <= 1
    twice = log_mel((2 * wave).astype(np.int16), rate=rate)
    assert float(twice[50].max() - frames[50].max()) == pytest.approx(math.log(4), abs=1e-2)


@pytest.mark.parametrize("samples", [1, 79, 80, 801])
def test_silence_and_short_recordings_have_frames(samples):
    frames = log_mel(np.zeros(samples, dtype=np.int16), rate=8000)
    assert frames.shape == (1 + samples // 80, 40)
    assert frames.numpy() == pytest.approx(math.log(FLOOR))


def _frames() -> Frames:
    draw = np.random.default_rng(0)
    noise = [draw.integers(-9000, 9000, 800 + 80 * k, dtype=np.int16) for k in range(4)]
    return frames_of(noise, rate=8000, device=torch.device("cpu"))


def test_a_string_is_its_recordings_with_their_silence_between():
    frames = _frames()
    rows = frames.string([2, 0], [3, 99])
    one, two = frames.recording(2), frames.recording(0)
    quiet = frames.rows[one].mean(1).argmin()
    assert rows.tolist() == [*one, *[one[quiet]] * 3, *two]


def test_frames_of_a_batch_are_normalised_each_for_itself():
    frames = _frames()
    strings = [frames.string([0, 1, 2], [4, 4]), frames.recording(3)]
    together = frames.batch(strings)
    assert not together[1, len(strings[1]) :].any()
    for number, string in enumerate(strings):
        mine = together[number, : len(string)]
        assert mine.mean(0).numpy() == pytest.approx(0, abs=1e-4)
        assert mine.var(0, unbiased=False).numpy() == pytest.approx(1, abs=1e-2)
        assert torch.allclose(mine, frames.batch([string])[0], atol=1e-4)


# The recognizer


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_scores_do_not_depend_on_the_rest_of_the_batch(stride):
    torch.manual_seed(0)
    net = Recognizer(bands=5, labels=4, hidden=6, layers=2, stride=stride)
    lengths = [23, 16, 13, 1]
    frames = torch.randn(4, 23, 5)
    for number, length in enumerate(lengths):
        frames[number, length:] = 0
    together = net(frames, lengths)
    for number, length in enumerate(lengths):
        alone = net(frames[number : number + 1, :length], [length])
        assert len(alone) == net.steps_of_time(length)
        assert torch.allclose(together[: len(alone), number], alone[:, 0], atol=1e-5)


@pytest.mark.parametrize("target", [[1], [1, 2], [2, 2], [1, 2, 1]])
def test_the_loss_sums_over_all_alignments(target):
    time = 4
    log_probs = torch.log_softmax(torch.randn(time, 1, 3, generator=torch.Generator().manual_seed(0)), -1)
    total = 0.0
    for path in itertools.product(range(3), repeat=time):
        if [label for label, _ in itertools.groupby(path) if label] == target:
            total += math.exp(sum(float(log_probs[t, 0, label]) for t, label in enumerate(path)))
    loss = ctc_losses(log_probs, [time], [target])
    assert loss[0].item() == pytest.approx(-math.log(total) / len(target), rel=1e-5)


def test_an_utterance_too_short_for_its_words_counts_nothing_and_pushes_nothing():
    log_probs = torch.randn(2, 2, 3).log_softmax(-1).requires_grad_()
    losses = ctc_losses(log_probs, [2, 2], [[1, 1], [1, 2]])
    losses.sum().backward()
    assert losses[0] == 0
    assert losses[1] > 0
    assert not log_probs.grad[:, 0].any()


def test_nothing_said_is_all_blank():
    log_probs = torch.randn(3, 1, 3).log_softmax(-1)
    assert ctc_losses(log_probs, [3], [[]]).item() == pytest.approx(-log_probs[:, 0, 0].sum().item(), rel=1e-5)


def test_greedy_drops_repeats_then_blanks():
    best = torch.tensor([[0, 1, 1, 0, 1, 2, 2], [3, 3, 0, 0, 9, 9, 9]])
    log_probs = torch.nn.functional.one_hot(best.T, 10).float()
    assert greedy(log_probs, [7, 4]) == [[1, 1, 2], [3]]


def test_labels_are_words_or_letters():
    words, letters = Alphabet(["two", "one", "two"]), Alphabet(None)
    assert (words.size, letters.size) == (3, 29)
    for alphabet, said in ((words, ["two", "one", "one"]), (letters, ["rubout", "g", "o'clock"])):
        assert alphabet.words(alphabet.labels(said)) == said
        assert 0 not in alphabet.labels(said)
    with pytest.raises(ValueError, match="'7'"):
        letters.labels(["7"])
    with pytest.raises(ValueError, match="three"):
        words.labels(["three"])
