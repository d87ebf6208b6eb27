"""The language task: who walks where in the text, what is remembered, what is scored."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.lab.data.kinds import Rows, Text
from laconic.lab.tasks import lm
from laconic.lab.tasks.lm import Lm
from laconic.lab.vocabulary import Vocabulary, words_of
from laconic.lab.work import Place

WORDS = "the cat saw a dog and the dog saw the cat\nso they ran\n"
TEXT = Text(name="made-up", train=WORDS * 20, valid=WORDS * 4, test=WORDS * 3)
TINY = {"lstm": Lm(length=5, hidden=8), "awd": Lm(model="awd", length=5, hidden=8, embedding=6),
        "gpt": Lm(model="gpt", length=5, hidden=8, layers=1)}  # fmt: skip
every_model = pytest.mark.parametrize("model", TINY)


def prepare(task, *, text=TEXT, rank=0, ranks=1, batch=3, seed=0):
    torch.manual_seed(seed)
    place = Place(
        rank=rank, ranks=ranks, device=torch.device("cpu"), seed=seed, batch=batch, data_home=Path("none")
    )
    return lm.LmWork(task, text, place)


def train(work, steps):
    optimizer = torch.optim.SGD(work.model.parameters(), lr=0.1)
    losses = []
    for step in steps:
        batch = work.batch(step)
        torch.manual_seed(step)
        loss = work.loss(work.model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_ranks_walk_along_disjoint_streams_that_are_the_text():
    codes = Vocabulary.of_characters([WORDS]).encode(TEXT.train)
    heard = []
    for rank in range(3):
        work = prepare(TINY["lstm"], rank=rank, ranks=3, batch=2)
        windows = [work.batch(step) for step in range(work.steps_per_epoch)]
        heard += list(torch.cat([window.tokens for window in windows], 1))
    length = len(codes) // 6
    kept = (length - 1) // 5 * 5
    assert [row.tolist() for row in heard] == [codes[i * length :][:kept].tolist() for i in range(6)]


def test_targets_are_the_tokens_that_follow_and_a_batch_is_a_function_of_the_step():
    work = prepare(TINY["lstm"])
    n = work.steps_per_epoch
    windows = [work.batch(step) for step in range(2 * n)]
    assert [window.first for window in windows] == ([True] + [False] * (n - 1)) * 2
    for before, after in pairwise(windows[:n]):
        assert torch.equal(before.targets[:, :-1], before.tokens[:, 1:])
        assert torch.equal(before.targets[:, -1], after.tokens[:, 0])
    for step in (n + 3, 2, n - 1):
        assert torch.equal(work.batch(step).tokens, windows[step % n].tokens)


@every_model
def test_a_run_goes_on_from_its_state_with_the_same_bits(model):
    one = prepare(TINY[model])
    whole = train(one, range(8))
    two = prepare(TINY[model])
    first = train(two, range(5))
    three = prepare(TINY[model], seed=9)
    three.model.load_state_dict(two.model.state_dict())
    three.load_state_dict(two.state_dict())
    assert first + train(three, range(5, 8)) == whole


@pytest.mark.parametrize("model", ["lstm", "awd"])
def test_without_its_state_a_run_would_not_go_on_as_it_was(model):
    one, two = prepare(TINY[model]), prepare(TINY[model])
    assert train(one, [0, 1])[0] == train(two, [0])[0]
    two.load_state_dict({"state": None})
    two.model.load_state_dict(one.model.state_dict())
    assert train(one, [2]) != train(two, [2])


def test_what_is_remembered_is_forgotten_when_the_walk_begins_again():
    one, two = prepare(TINY["lstm"]), prepare(TINY["lstm"])
    train(one, range(4))
    two.model.load_state_dict(one.model.state_dict())
    again = one.steps_per_epoch
    assert train(one, [again]) == train(two, [again])


@every_model
@pytest.mark.parametrize("ranks", [1, 3, 20])
def test_the_score_is_the_same_however_many_ranks_share_it(model, ranks):
    def tallies(ranks):
        return [prepare(TINY[model], rank=rank, ranks=ranks, batch=1).evaluate("valid") for rank in range(ranks)]

    alone, shared = tallies(1)[0], tallies(ranks)
    codes = 4 * len(WORDS)
    assert sum(tally.scored for tally in shared) == alone.scored == (codes - 1) // 16 * 16
    assert sum(tally.loss for tally in shared) == pytest.approx(alone.loss, rel=1e-5)


@pytest.mark.parametrize("model", ["lstm", "awd"])
def test_what_is_remembered_goes_with_a_stream_to_its_end_in_evaluation_too(model):
    work = prepare(TINY[model])
    codes = torch.from_numpy(Vocabulary.of_characters([WORDS]).encode(TEXT.valid))
    length = (len(codes) - 1) // 16
    assert length % 5, "a last window that is shorter"
    x, y = codes[: 16 * length].view(16, length), codes[1 : 16 * length + 1]
    tally = work.evaluate("valid")
    with torch.no_grad():
        scores = work.model.eval()(x, None).scores
    nats = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y, reduction="sum").item()
    assert tally.loss == pytest.approx(nats, rel=1e-6)


@every_model
def test_evaluation_leaves_training_as_it_was(model):
    one, two = prepare(TINY[model]), prepare(TINY[model])
    train(one, range(3))
    train(two, range(3))
    tally = one.evaluate("valid")
    assert tally == one.evaluate("valid")
    assert one.model.training
    assert train(one, range(3, 6)) == train(two, range(3, 6))


def test_a_character_is_judged_in_bits_and_a_word_by_perplexity():
    for level, wanted in (("char", math.log2(len(set(WORDS)))), ("word", 11.0)):
        work = prepare(Lm(length=5, hidden=8, level=level))
        for parameter in work.model.parameters():
            torch.nn.init.zeros_(parameter)
        tally = work.evaluate("test")
        assert work.metric.of(tally) == pytest.approx(wanted, rel=1e-5)
        assert work.metric.name == {"char": "bits per character", "word": "perplexity"}[level]
        assert tally.loss / tally.examples == pytest.approx(math.log(round(2**wanted) if level == "char" else 11))


@every_model
def test_the_task_is_learnt(model):
    work = prepare(Lm(model=model, length=10, hidden=32, embedding=None if model == "gpt" else 16, dropout=0.0))
    optimizer = torch.optim.Adam(work.model.parameters(), lr=0.01)
    before = work.metric.of(work.evaluate("valid"))
    for step in range(150):
        work.loss(work.model, work.batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert work.metric.of(work.evaluate("valid")) < before * 0.7


def test_a_stream_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match=r"a stream has 5 tokens, a window of 48 needs 49\. Use fewer workers"):
        prepare(Lm(hidden=8), batch=200)
    assert prepare(Lm(hidden=8, length=4), batch=200).steps_per_epoch == 1


def test_a_set_without_test_part_has_none_and_a_short_one_has_fewer_streams():
    work = prepare(TINY["lstm"], text=Text(name="a", train=TEXT.train, valid="the cat", test=""))
    assert work.splits == ("valid",)
    assert work.evaluate("valid").scored == 6
    with pytest.raises(ValueError, match="a has no text to validate on"):
        prepare(TINY["lstm"], text=Text(name="a", train=TEXT.train, valid="t", test=""))


def test_text_is_found_by_name_or_in_a_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(lm, "load", lambda name, home: (name, home))
    monkeypatch.setattr(lm, "load_folder_text", lambda path: TEXT)
    assert lm._text(str(tmp_path), Path("home")) is TEXT
    rows = Rows(name="a9a", train=None, train_labels=np.zeros(0), test=None, test_labels=np.zeros(0))
    monkeypatch.setattr(lm, "load", lambda name, home: rows)
    with pytest.raises(ValueError, match=r"lm wants text; 'a9a' is rows\. Try --data python-docs\."):
        lm._text("a9a", Path("home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    assert lm._text("notes", Path("home")) is TEXT


@pytest.mark.parametrize("task", [Lm(data=d, model=m) for d in ("python-docs", "ptb") for m in TINY], ids=str)
def test_the_task_chooses_every_setting(task):
    choice = task.choice()
    assert (choice.steps is None) != (choice.epochs is None)
    settings = ("batch", "optimizer", "rate", "momentum", "decay", "clip", "schedule", "final", "warmup")
    assert all(getattr(choice, name) is not None for name in settings)


def test_levels_and_windows_go_with_the_data():
    assert [Lm(data=d).tokens for d in ("python-docs", "ptb", "wikitext-2", "./x")] == [
        "char",
        "word",
        "word",
        "char",
    ]
    assert [Lm(data="ptb", model=m).settled().length for m in TINY] == [35, 70, 64]
    assert (Lm().settled().length, Lm(length=7).settled().length, Lm(data="ptb", level="char").tokens) == (
        48,
        7,
        "char",
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "rnn"}, "model must be one of lstm, awd, gpt"),
        ({"level": "byte"}, "level must be one of char, word"),
        ({"length": 0}, "length must be a whole number"),
        ({"dropout": -0.1}, "dropout must be a finite number"),
        ({"dropout": 1.0}, r"dropout of lstm must be in \[0, 1\)"),
        ({"model": "awd", "dropout": 0.8}, r"dropout of awd must be in \[0, 0\.8\)"),
        ({"model": "gpt", "embedding": 64}, "gpt has one width, got embedding 64. Write --hidden 64"),
    ],
)
def test_what_makes_no_sense_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        Lm(**options)


def test_a_vocabulary_is_sorted_and_knows_what_it_does_not_know():
    words = Vocabulary.of_words("b a <unk>\n")
    assert words.entries == ("<eos>", "<unk>", "a", "b")
    assert words.encode("a c\n b").tolist() == [2, 1, 0, 3]
    assert Vocabulary.of_words("a").entries == ("<unk>", "a")
    assert words_of("a\n\nb") == ["a", "<eos>", "<eos>", "b"]
    letters = Vocabulary.of_characters(["añ", "𝄞\n", ""])
    assert letters.entries == ("\n", "a", "ñ", "𝄞")
    assert letters.encode("𝄞añ\n").tolist() == [3, 1, 2, 0]
    for strange in "b\U0010ffff":
        with pytest.raises(ValueError, match="the alphabet has no"):
            letters.encode(strange)


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("level", ["char", "word"])
def test_a_settled_task_builds_the_same_model_and_leaves_nothing_open(model, level):
    task = Lm(model=model, level=level, hidden=8, layers=2)
    settled = task.settled()
    assert [f.name for f in fields(settled) if getattr(settled, f.name) is None] == []
    assert settled.settled() == settled
    shapes = [[p.shape for p in one.build(11).parameters()] for one in (task, settled)]
    assert shapes[0] == shapes[1]
