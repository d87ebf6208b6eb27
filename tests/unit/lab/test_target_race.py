"""A run of a race on one rank: what it sees, what ends it, and that it is the same every time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from laconic.lab.network.race import Entry, Odometer, Ran, clipped_word, race, reaches
from laconic.lab.network.race_work import bounded
from laconic.lab.tasks import Lm, Vision
from laconic.lab.training import Training
from laconic.lab.work import Metric, Place

LM = Lm(hidden=16, embedding=8, length=8)
LOWER, HIGHER = Metric(name="bits", lower_is_better=True), Metric(name="accuracy", lower_is_better=False)


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def entry(tmp_path):
    training = Training(batch=2, seed=3).filled(LM.choice())
    return Entry(
        competitor="ddp", rate=4.0, task=LM, training=training, data_home=tmp_path, steps=8, eval_every=4,
        valid_examples=200,
    )  # fmt: skip


def _figures(ran: Ran) -> list[float]:
    return [seen.figure for seen in ran.curve]


@pytest.mark.parametrize("word", ["spartan", "post-local:4"])
def test_the_same_seed_gives_the_same_curve(entry, word):
    entry = replace(entry, competitor=word)
    one, other = race(entry), race(entry)
    assert [seen.step for seen in one.curve] == [4, 8]
    assert _figures(one) == _figures(other)
    assert all(math.isfinite(figure) for figure in _figures(one))
    assert _figures(race(replace(entry, rate=1.0))) != _figures(one)


def test_everybody_starts_from_the_same_weights_and_sees_the_same_batches(entry):
    # On one rank nothing is lost on the way: all of these are plain SGD.
    plain = _figures(race(entry))
    for word in ("alone", "dense", "post-local:4", "local_sgd:every=4"):
        if word == "local_sgd:every=4":
            # It shows what happens without clipping.
            plain = _figures(race(replace(entry, training=replace(entry.training, clip=0.0))))
        assert _figures(race(replace(entry, competitor=word))) == pytest.approx(plain, rel=1e-6), word


def test_the_clip_reaches_methods_that_clip_themselves_and_loops_that_do_not(entry):
    for word in ("ddp", "celgc:every=4", "sdagc", "post-local:4"):
        clipped, loose = (replace(entry.training, clip=clip) for clip in (0.01, 100.0))
        curves = [_figures(race(replace(entry, competitor=word, training=each))) for each in (clipped, loose)]
        assert curves[0] != curves[1], word


def test_it_ends_at_the_first_evaluation_that_shows_the_target(entry):
    whole = race(replace(entry, steps=12))
    assert whole.ended == "steps"
    assert len(whole.stretch_seconds) == len(whole.curve) == 3
    reached = race(replace(entry, steps=12, target=whole.curve[1].figure))
    assert (reached.ended, reached.curve[-1].step) == ("target", 8)
    assert race(replace(entry, target=0.0)).ended == "steps"
    assert race(replace(entry, steps=400, target=0.0, most_seconds=1e-6)).curve[-1].step == 4


def test_what_diverges_ends(entry):
    wild = replace(entry, rate=1e38, training=replace(entry.training, clip=0.0), steps=400)
    ran = race(wild)
    assert (ran.ended, len(ran.curve)) == ("diverged", 1)


def test_evaluations_stand_at_the_end_of_a_period(entry):
    ran = race(replace(entry, competitor="post-local:3", eval_every=4, steps=14))
    assert [seen.step for seen in ran.curve] == [6, 12, 15]


def test_seconds_only_grow_and_loopback_has_no_counter_of_a_rank(entry):
    ran = race(replace(entry, competitor="topk"))
    seconds = [seen.seconds for seen in ran.curve]
    assert 0 < seconds[0] < seconds[1]
    assert ran.step_milliseconds > 0
    assert ran.interface_bytes is None
    assert ran.link_bytes is not None
    assert Odometer("lo").sent_bytes is None


def test_an_odometer_leaves_out_what_is_sent_while_it_is_paused(tmp_path, monkeypatch):
    counter = tmp_path / "cable/statistics/tx_bytes"
    counter.parent.mkdir(parents=True)
    counter.write_text("100")
    monkeypatch.setattr("laconic.lab.network.race._INTERFACES", tmp_path)
    monkeypatch.setattr("laconic.lab.network.race._SETTLE_SECONDS", 0.0)
    odometer = Odometer("cable")
    odometer.start()
    for sent in (7, 5):
        counter.write_text(str(int(counter.read_text()) + sent))
        with odometer.paused():
            counter.write_text(str(int(counter.read_text()) + 1000))
    assert odometer.sent_bytes == 12


def test_the_target_itself_is_reached():
    assert [reaches(LOWER, figure, 2.0) for figure in (2.1, 2.0, 1.9)] == [False, True, True]
    assert [reaches(HIGHER, figure, 0.9) for figure in (0.8, 0.9, 0.95)] == [False, True, True]
    assert clipped_word("topk", 0.0) == "topk"


def test_so_much_is_scored_as_was_asked_for(tmp_path):
    here = Place(rank=0, ranks=1, device=torch.device("cpu"), seed=0, batch=2, data_home=tmp_path)
    for task, most in ((LM, 300), (Lm(level="word", hidden=8, length=5), 300), (Vision(width=2), 50)):
        part = bounded(task, here, most)
        assert 0.8 * most <= part.evaluate(part.splits[0]).scored <= 1.2 * most
    whole = bounded(task, here, None)
    assert whole.evaluate(whole.splits[0]).scored > 1.2 * most


def test_pictures_race_too(tmp_path):
    task = Vision(width=2)
    training = Training(batch=8).filled(task.choice())
    entry = Entry(
        competitor="spartan", rate=0.1, task=task, training=training, data_home=tmp_path, steps=4, eval_every=4,
        valid_examples=40,
    )  # fmt: skip
    ran = race(entry)
    assert ran.metric.name == "accuracy"
    assert 0 <= ran.curve[-1].figure <= 1
