"""How a training is settled: what was given, what the task chooses, what the data decides."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.lab.order import Order
from laconic.lab.seeds import seed_for
from laconic.lab.training import Course, Training

CHOICE = Training(
    epochs=2.0, batch=4, optimizer="sgd", rate=1.0, momentum=0.9, decay=0.1, clip=0.5, schedule="linear", final=0.1
)


def test_what_was_given_wins_and_the_rest_is_the_tasks_choice():
    settled = Training(rate=3.0, steps=7).filled(CHOICE)
    assert (settled.rate, settled.momentum, settled.batch) == (3.0, 0.9, 4)
    assert (settled.steps, settled.epochs) == (7, None)
    assert Training(epochs=0.5).filled(CHOICE).epochs == 0.5


def test_a_zero_that_was_given_is_not_taken_for_nothing():
    assert Training(clip=0.0, momentum=0.0).filled(CHOICE).clip == 0.0


def test_a_course_leaves_nothing_open():
    course = Course.of(Training().filled(CHOICE), steps_per_epoch=50)
    assert [f.name for f in fields(course) if getattr(course, f.name) is None] == []
    assert (course.steps, course.eval_every) == (100, 10)
    assert Course.of(Training(epochs=0.001), steps_per_epoch=50).steps == 1
    assert Course.of(Training(), steps_per_epoch=50).steps == 50


def _rates(**settings: object) -> list[float]:
    course = Course.of(Training(steps=8, rate=1.0, **settings), steps_per_epoch=8)
    return [round(course.rate_at(step), 6) for step in range(8)]


def test_schedules():
    assert _rates(schedule="constant") == [1.0] * 8
    assert _rates(schedule="linear", final=0.2) == [1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4]
    assert _rates(schedule="steps") == [1.0] * 4 + [0.1] * 2 + [0.01] * 2
    cosine = _rates(schedule="cosine", final=0.0)
    assert cosine[0] == 1.0
    assert cosine[4] == 0.5
    assert cosine == sorted(cosine, reverse=True)
    assert _rates(schedule="constant", warmup=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_optimizer_is_torchs_with_the_settings():
    model = torch.nn.Linear(2, 2)
    sgd = Course.of(Training(steps=1).filled(CHOICE), 1).make_optimizer(model)
    assert type(sgd) is torch.optim.SGD
    assert (sgd.defaults["lr"], sgd.defaults["momentum"], sgd.defaults["weight_decay"]) == (1.0, 0.9, 0.1)
    adamw = Course.of(Training(steps=1, optimizer="adamw").filled(CHOICE), 1).make_optimizer(model)
    assert type(adamw) is torch.optim.AdamW


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"steps": 0}, "steps must be a whole number of 1 or more, got 0"),
        ({"eval_every": 0}, "Write --eval-every 10"),
        ({"rate": float("nan")}, "rate must be a finite number"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"steps": 3, "epochs": 1.0}, "give steps or epochs, got both"),
        ({"seed": -1}, "seed must be a whole number of 0 or more, got -1"),
    ],
)
def test_wrong_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Training(**settings)


@given(
    sizes=st.lists(st.integers(3, 20), min_size=1, max_size=4),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_an_epoch_shows_every_rank_its_own_examples_once(sizes, batch, seed):
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    for rank, part in enumerate(parts):
        order = Order(parts, batch=batch, seed=seed, rank=rank)
        seen = [i for step in range(order.steps_per_epoch) for i in order.indices(step)]
        assert len(set(seen)) == len(seen) == batch * (min(sizes) // batch)
        assert set(seen) <= set(part.tolist())


def test_a_step_has_the_same_examples_whatever_was_asked_before():
    parts = [np.arange(10), np.arange(10, 20)]
    walked = Order(parts, batch=3, seed=1, rank=1)
    for step in range(20):
        asked = Order(parts, batch=3, seed=1, rank=1).indices(step)
        assert walked.indices(step).tolist() == asked.tolist()
    epochs = [sorted(walked.indices(step).tolist()) for step in (0, 3, 6)]
    assert len({tuple(epoch) for epoch in epochs}) > 1, "a new epoch has a new order"


def test_a_part_smaller_than_a_batch_is_refused():
    with pytest.raises(ValueError, match="the smallest part of the data has 2 examples, a batch wants 3"):
        Order([np.arange(5), np.arange(2)], batch=3, seed=0, rank=0)


def test_seeds_differ_by_purpose_and_number():
    made = {seed_for(s, p, r, n) for s in (0, 1) for p in ("order", "step") for r in (0, 1) for n in (0, 1)}
    assert len(made) == 16
