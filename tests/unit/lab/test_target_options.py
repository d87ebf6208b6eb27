"""Options of ``laconic bench network target``: what is refused, and what follows from the task."""

from __future__ import annotations

import pytest

from laconic.lab.network.target import BenchTarget
from laconic.lab.tasks import Lm


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"stage": "run"}, "stage must be one of tune, race"),
        ({"stage": "race", "hosts": 1}, "hosts must be a whole number of 2 or more, got 1"),
        ({"eval_every": 0}, "eval_every must be a whole number of 1 or more, got 0. Write --eval-every 16."),
        ({"megabits": -1.0}, "megabits must be a finite number of 0 or more"),
        ({"rates_grid": (1.0, 1.0)}, "must be different ones"),
        ({"methods": ("topk", "topk")}, "must be different ones"),
        ({"methods": ("diloco:delay=2",)}, "diloco:delay=2 has an exchange under way when it is evaluated"),
        ({"peers": ("horovod",)}, "no peer is called 'horovod'"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong, said):
    with pytest.raises(ValueError, match=r"must|no peer|under way") as caught:
        BenchTarget(**wrong)
    assert said in str(caught.value)


def test_the_grid_stands_around_the_tasks_own_rate():
    plan = BenchTarget(task=Lm(data="ptb"), batch=4).plan()
    assert plan.grid == (10, 20, 30, 45)
    assert (plan.training.batch, plan.training.clip) == (4, 0.25)
