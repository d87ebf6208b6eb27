"""Speech: which strings a rank hears, what it is tested on, and that it learns."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.lab.data.kinds import Rows, Utterance
from laconic.lab.data.kinds import Speech as SpeechData
from laconic.lab.models.ctc import greedy
from laconic.lab.tasks.speech import Speech, SpeechWork, held_out, strings_of
from laconic.lab.training import Training
from laconic.lab.work import Place

WORDS = {"ann": "zero one two three", "bob": "four five six", "cy": "seven eight nine"}


def _said(words: str, speaker: str, *, seed: int) -> Utterance:
    draw = np.random.default_rng(seed)
    return Utterance(samples=draw.integers(-9000, 9000, 800 + 80 * (seed % 5), dtype=np.int16), words=words,
                     speaker=speaker)  # fmt: skip


def _data(*, digits: bool = True) -> SpeechData:
    """Speakers who say digits of their own only, so that a string tells whose it is; or utterances to spell."""
    said = [(word, who) for who, words in WORDS.items() for word in words.split()]
    if not digits:
        said = [(f"go {word}", who) for word, who in said]
    train = tuple(_said(*one, seed=k) for k, one in enumerate(said * 3))
    test = tuple(_said(*one, seed=100 + k) for k, one in enumerate(said))
    return SpeechData(name="made-up", rate=8000, train=train, test=test, digits=digits)


def _work(task: Speech, data: SpeechData, monkeypatch, *, rank=0, ranks=1, seed=0, batch=4) -> SpeechWork:
    monkeypatch.setattr("laconic.lab.tasks.speech.load", lambda name, home: data)
    torch.manual_seed(1)
    place = Place(
        rank=rank, ranks=ranks, device=torch.device("cpu"), seed=seed, batch=batch, data_home=Path("nowhere")
    )
    return task.prepare(place)


# What a rank hears


def test_a_batch_depends_on_seed_rank_and_step_alone(monkeypatch):
    for digits in (True, False):
        data = _data(digits=digits)
        walked = [_work(Speech(), data, monkeypatch, ranks=2).batch(step) for step in range(5)]
        again = _work(Speech(), data, monkeypatch, ranks=2)
        for step in (4, 0):
            assert torch.equal(again.batch(step).frames, walked[step].frames)
            assert again.batch(step).targets == walked[step].targets
        for other in ({"seed": 1}, {"rank": 1}):
            batch = _work(Speech(), data, monkeypatch, ranks=2, **other).batch(0)
            assert not torch.equal(batch.frames, walked[0].frames)


def test_strings_are_of_one_speaker_and_as_long_as_asked(monkeypatch):
    work = _work(Speech(digits_min=2, digits_max=4), _data(), monkeypatch, batch=50)
    batch = work.batch(0)
    assert {len(words) for words in batch.words} == {2, 3, 4}
    assert batch.lengths == sorted(batch.lengths, reverse=True)
    assert batch.frames.shape == (50, batch.lengths[0], 40)
    for words in batch.words:
        assert any(set(words) <= set(own.split()) for own in WORDS.values())


def test_split_by_speaker_gives_whole_speakers(monkeypatch):
    task = Speech(split="speaker", held_out=None)
    heard = []
    for rank in range(3):
        batch = _work(task, _data(), monkeypatch, rank=rank, ranks=3, batch=30).batch(0)
        heard.append({word for words in batch.words for word in words})
    assert sorted(map(sorted, heard)) == sorted(sorted(own.split()) for own in WORDS.values())


def test_an_epoch_is_the_strings_asked_for(monkeypatch):
    assert _work(Speech(train_strings=50), _data(), monkeypatch, ranks=3).steps_per_epoch == 4
    with pytest.raises(ValueError, match="train_strings"):
        _work(Speech(train_strings=11), _data(), monkeypatch, ranks=3)


def test_what_is_no_digit_is_spelled_one_utterance_an_example(monkeypatch):
    work = _work(Speech(), _data(digits=False), monkeypatch, batch=5)
    assert work.steps_per_epoch == 30 // 5
    said = sorted(" ".join(words) for step in range(6) for words in work.batch(step).words)
    assert said == sorted(one.words for one in _data(digits=False).train)
    first = work.batch(0)
    assert [len(target) for target in first.targets] == [len(" ".join(words)) for words in first.words]


# The test part


def test_test_strings_use_each_recording_once():
    data = _data()
    strings = strings_of(data.test, Speech())
    assert sorted(i for string in strings for i in string) == list(range(len(data.test)))
    assert all(len({data.test[i].speaker for i in string}) == 1 for string in strings)
    assert max(map(len, strings)) <= 5


@pytest.mark.parametrize("digits", [True, False])
def test_tallies_of_ranks_add_up_to_that_of_one(monkeypatch, digits):
    task = Speech(hidden=8)
    whole = _work(task, _data(digits=digits), monkeypatch).evaluate("test")
    works = [_work(task, _data(digits=digits), monkeypatch, rank=r, ranks=3, seed=r) for r in range(3)]
    tallies = [work.evaluate("test") for work in works]
    assert sum(t.scored for t in tallies) == whole.scored == (10 if digits else 20)
    assert sum(t.examples for t in tallies) == whole.examples
    assert sum(t.score for t in tallies) == whole.score
    assert sum(t.loss for t in tallies) == pytest.approx(whole.loss, rel=1e-4)
    assert works[0].model.training


def test_a_rank_without_test_strings_scores_nothing(monkeypatch):
    tally = _work(Speech(hidden=8), _data(), monkeypatch, rank=14, ranks=15, batch=1).evaluate("test")
    assert (tally.loss, tally.examples, tally.score, tally.scored) == (0, 0, 0, 0)


def test_a_speaker_held_out_is_tested_on_alone(monkeypatch):
    data = held_out(_data(), "bob")
    assert "bob" not in {one.speaker for one in data.train}
    assert [one.speaker for one in data.test] == ["bob"] * 12
    assert _work(Speech(held_out="bob"), _data(), monkeypatch).evaluate("test").scored == 12
    with pytest.raises(ValueError, match="ann, bob, cy"):
        held_out(_data(), "dora")


# Settings, errors, a story


@pytest.mark.parametrize("data", ["dial-tones", "fsdd", "an4", "an4-mini"])
def test_the_choice_leaves_nothing_open(data):
    choice = Speech(data=data).choice()
    none = {f.name for f in fields(Training) if getattr(choice, f.name) is None}
    assert none in ({"steps", "eval_every"}, {"epochs", "eval_every"})


@pytest.mark.parametrize(
    "wrong", [{"hidden": 0}, {"stride": 0}, {"digits_max": 1}, {"train_strings": 0}, {"split": "similarity:x"}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).split(":")[0]):
        Speech(**wrong)


def test_rows_are_no_speech(monkeypatch):
    rows = Rows(name="a9a", train=None, train_labels=np.zeros(0), test=None, test_labels=np.zeros(0))
    with pytest.raises(ValueError, match=r"'a9a' is rows\. Try --data dial-tones\."):
        _work(Speech(data="a9a"), rows, monkeypatch)  # type: ignore[arg-type]


def test_a_batch_of_tones_is_learned_by_heart():
    torch.manual_seed(0)
    task = Speech(hidden=32, layers=1, digits_min=3, digits_max=3)
    place = Place(rank=0, ranks=1, device=torch.device("cpu"), seed=0, batch=2, data_home=Path("nowhere"))
    work = task.prepare(place)
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-2)
    batch = work.batch(0)
    for _ in range(150):
        optimizer.zero_grad()
        loss = work.loss(work.model, batch)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    times = [work.model.steps_of_time(length) for length in batch.lengths]
    assert greedy(work.model(batch.frames, batch.lengths), times) == batch.targets
