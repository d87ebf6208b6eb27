"""Logistic regression: the loss and the gradient are the formula's, whoever has which rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from laconic.lab.data.kinds import Rows, Text
from laconic.lab.tasks import logreg
from laconic.lab.tasks.logreg import Logreg
from laconic.lab.work import Place

ROWS, TESTED, FEATURES = 61, 24, 9


def made_up():
    draw = np.random.default_rng(0)
    dense = draw.normal(size=(ROWS + TESTED, FEATURES)) * (draw.random((ROWS + TESTED, FEATURES)) < 0.4)
    dense[5] = 0  # a row may be empty
    labels = (dense @ draw.normal(size=FEATURES) > 0.1).astype(np.int64)
    rows = scipy.sparse.csr_matrix(dense.astype(np.float32))
    return Rows(
        name="made-up", train=rows[:ROWS], train_labels=labels[:ROWS], test=rows[ROWS:], test_labels=labels[ROWS:]
    )


DATA = made_up()


def prepare(task, *, rank=0, ranks=1, batch=8):
    place = Place(rank=rank, ranks=ranks, device=torch.device("cpu"), seed=3, batch=batch, data_home=Path("none"))
    work = logreg.LogregWork(task, DATA, place)
    torch.manual_seed(0)
    for parameter in work.model.parameters():
        torch.nn.init.normal_(parameter)
    return work


def gradient(work, step=0):
    work.loss(work.model, work.batch(step)).backward()
    return work.model.weight.grad.double().numpy(), work.model.bias.grad.item()


def formula(work, rows, labels, l2):
    """X^T (sigmoid(Xw + b) - y)/n + l2 w, and the mean of sigmoid - y."""
    w, b = work.model.weight.detach().double().numpy(), work.model.bias.item()
    dense = rows.toarray().astype(np.float64)
    error = 1 / (1 + np.exp(-(dense @ w + b))) - labels
    return dense.T @ error / len(labels) + l2 * w, error.mean()


@pytest.mark.parametrize(("l2", "is_l2"), [(None, 1 / ROWS), (0.0, 0.0), (0.3, 0.3)])
def test_the_gradient_of_the_full_batch_is_the_formula(l2, is_l2):
    work = prepare(Logreg(full_batch=True, l2=l2))
    assert work.steps_per_epoch == 1
    weight, bias = gradient(work)
    wanted_weight, wanted_bias = formula(work, DATA.train, DATA.train_labels, is_l2)
    np.testing.assert_allclose(weight, wanted_weight, atol=1e-6)
    assert bias == pytest.approx(wanted_bias, abs=1e-6)


@pytest.mark.parametrize("split", ["iid", "similarity:20", "dirichlet:0.3"])
def test_the_mean_over_ranks_of_full_batch_gradients_is_that_of_all_their_rows(split):
    ranks = 4
    works = [prepare(Logreg(full_batch=True, split=split), rank=rank, ranks=ranks) for rank in range(ranks)]
    parts = logreg.split(split, ranks=ranks, seed=3, labels=DATA.train_labels)
    seen = np.concatenate(parts)
    assert len(seen) >= ROWS - ranks + 1
    wanted, _ = formula(works[0], DATA.train[seen], DATA.train_labels[seen], 1 / ROWS)
    np.testing.assert_allclose(np.mean([gradient(work)[0] for work in works], axis=0), wanted, atol=1e-6)


def test_a_batch_has_the_rows_of_its_step():
    work = prepare(Logreg(), rank=1, ranks=2)
    assert work.steps_per_epoch == 3
    for step in (4, 0, 4):
        which = work._order.indices(step)
        batch = work.batch(step)
        dense = torch.zeros(8, FEATURES)
        for i in range(8):
            some = slice(batch.offsets[i], batch.offsets[i + 1])
            dense[i, batch.columns[some].long()] = batch.values[some]
        np.testing.assert_array_equal(dense.numpy(), DATA.train[which].toarray())
        np.testing.assert_array_equal(batch.labels.numpy(), DATA.train_labels[which])
        work.model.zero_grad()
        weight, _ = gradient(work, step)
        wanted, _ = formula(work, DATA.train[which], DATA.train_labels[which], 1 / ROWS)
        np.testing.assert_allclose(weight, wanted, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 3, 30])
def test_the_score_is_the_same_however_many_ranks_share_it(ranks, monkeypatch):
    monkeypatch.setattr(logreg, "_EVALUATED_AT_ONCE", 5)
    tallies = [prepare(Logreg(), rank=rank, ranks=ranks, batch=1).evaluate("test") for rank in range(ranks)]
    work = prepare(Logreg())
    scores = DATA.test @ work.model.weight.detach().numpy() + work.model.bias.item()
    assert sum(tally.score for tally in tallies) == ((scores > 0) == DATA.test_labels).sum()
    assert sum(tally.scored for tally in tallies) == sum(tally.examples for tally in tallies) == TESTED
    losses = np.logaddexp(0, -scores * (2 * DATA.test_labels - 1))
    assert sum(tally.loss for tally in tallies) == pytest.approx(losses.sum(), rel=1e-5)
    assert work.model.training


def test_it_begins_at_nothing_and_keeps_nothing():
    place = Place(rank=0, ranks=1, device=torch.device("cpu"), seed=0, batch=8, data_home=Path("none"))
    work = logreg.LogregWork(Logreg(), DATA, place)
    assert [tuple(p.shape) for p in work.model.parameters()] == [(FEATURES,), (1,)]
    assert all(not p.any() for p in work.model.parameters())
    work.load_state_dict(work.state_dict())
    assert work.loss(work.model, work.batch(0)).item() == pytest.approx(np.log(2))


def test_the_embedded_set_is_learnt(tmp_path):
    """With the task's own settings, a few epochs: 569 tumours, told apart as well as scikit-learn does."""
    task = Logreg()
    choice = task.choice()
    place = Place(rank=0, ranks=1, device=torch.device("cpu"), seed=0, batch=choice.batch, data_home=tmp_path)
    work = task.prepare(place)
    optimizer = torch.optim.SGD(work.model.parameters(), lr=choice.rate, momentum=choice.momentum)
    for step in range(3 * work.steps_per_epoch):
        work.loss(work.model, work.batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert work.metric.of(work.evaluate("test")) > 0.95


@pytest.mark.parametrize(
    "task", [Logreg(data=d, full_batch=f) for d in ("a9a", "rcv1") for f in (True, False)], ids=str
)
def test_the_task_chooses_every_setting(task):
    choice = task.choice()
    assert (choice.steps is None) != (choice.epochs is None)
    settings = ("batch", "optimizer", "rate", "momentum", "decay", "clip", "schedule", "final", "warmup")
    assert all(getattr(choice, name) is not None for name in settings)


def test_what_makes_no_sense_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="there is no split 'speaker' here"):
        Logreg(split="speaker")
    with pytest.raises(ValueError, match="l2 must be a finite number of 0 or more, got -1"):
        Logreg(l2=-1)
    with pytest.raises(ValueError, match="a batch wants 99"):
        prepare(Logreg(), batch=99)
    monkeypatch.setattr(logreg, "load", lambda name, home: Text(name=name, train="", valid="", test=""))
    place = Place(rank=0, ranks=1, device=torch.device("cpu"), seed=0, batch=8, data_home=Path("none"))
    with pytest.raises(ValueError, match=r"logreg wants rows; 'ptb' is text\. Try --data breast-cancer\."):
        Logreg(data="ptb").prepare(place)
