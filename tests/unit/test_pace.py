"""The stopwatch, by a clock that stands still until it is told, and the pace of a group."""

from __future__ import annotations

from math import isnan, nan

import pytest

from laconic.pace import UNKNOWN_PACE, Pace, Stopwatch
from laconic.stats import Counters


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _step(watch: Stopwatch, clock: Clock, counters: Counters, *, work: float, choose: float, wait: float) -> None:
    clock.now += work
    with watch.selecting(counters):
        clock.now += choose
    with watch.waiting(counters):
        clock.now += wait


def test_the_first_step_has_no_beginning_and_so_no_pace():
    clock, counters = Clock(), Counters()
    watch = Stopwatch(clock)
    assert watch.pace == UNKNOWN_PACE
    _step(watch, clock, counters, work=1.0, choose=0.5, wait=0.25)
    assert watch.pace.waited == 0.25
    assert isnan(watch.pace.rest)


def test_a_step_lasts_from_the_end_of_a_wait_to_the_end_of_the_next():
    clock, counters = Clock(), Counters()
    watch = Stopwatch(clock)
    for wait in (0.25, 0.5, 0.125):
        _step(watch, clock, counters, work=2.0, choose=0.5, wait=wait)
    assert watch.pace == Pace(waited=0.125, rest=2.5)
    assert counters.select_seconds == 1.5
    assert counters.wait_seconds == 0.875


def test_choosing_within_a_step_may_come_in_pieces():
    clock, counters = Clock(), Counters()
    watch = Stopwatch(clock)
    for _ in range(3):
        with watch.selecting(counters):
            clock.now += 0.25
    assert counters.select_seconds == 0.75
    assert watch.pace == UNKNOWN_PACE


def test_a_wait_that_broke_off_leaves_the_pace_as_it_was():
    clock, counters = Clock(), Counters()
    watch = Stopwatch(clock)

    def broken_step() -> None:
        with watch.waiting(counters):
            clock.now += 9.0
            raise KeyError

    with pytest.raises(KeyError):
        broken_step()
    assert watch.pace == UNKNOWN_PACE
    assert counters.wait_seconds == 0.0


def test_a_group_waits_for_the_link_as_its_last_rank_does_and_works_as_its_slowest():
    ranks = [Pace(waited=0.5, rest=1.0), Pace(waited=0.125, rest=1.5), Pace(waited=0.25, rest=0.5)]
    assert Pace.of_group(ranks) == Pace(waited=0.125, rest=1.5)
    assert Pace.of_group(ranks) == Pace.of_group(ranks[::-1])
    assert Pace.of_group(ranks[:1]) == ranks[0]


@pytest.mark.parametrize("unsure", [UNKNOWN_PACE, Pace(waited=1.0), Pace(rest=1.0), Pace(waited=nan, rest=2.0)])
def test_a_rank_that_does_not_know_its_pace_leaves_the_groups_unknown(unsure):
    assert Pace.of_group([Pace(waited=1.0, rest=1.0), unsure]) is UNKNOWN_PACE


def test_what_is_chosen_within_a_wait_is_not_waited_for():
    """With nodes, gradients are chosen from when the node's mean has come: in the middle of the wait."""
    clock, counters = Clock(), Counters()
    watch = Stopwatch(clock)
    for _ in range(2):
        clock.now += 2.0
        with watch.waiting(counters):
            clock.now += 0.25
            with watch.selecting(counters):
                clock.now += 0.5
    assert watch.pace == Pace(waited=0.25, rest=2.5)
    assert (counters.select_seconds, counters.wait_seconds) == (1.0, 0.5)
