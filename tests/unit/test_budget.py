"""A budget as a tuner: a share of the step's time, or bits a second, on a link as it is fitted."""

from __future__ import annotations

import itertools

import pytest

from laconic.linkfit import Link
from laconic.pace import Pace
from laconic.tuners import Budget
from unit.test_cat import ENTRIES, RANKS, START, bytes_of, line, rooms_over, seen_of

LATENCY, PER_BYTE, REST = 0.002, 1e-5, 0.1
LINK = line(LATENCY, PER_BYTE)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_the_exchange_takes_its_share_of_the_step(share):
    rooms, state = rooms_over(Budget(share=share), 40, LINK, rest=REST)
    waiting = LINK(bytes_of(rooms[-1]))
    assert waiting / (REST + waiting) == pytest.approx(share, rel=0.02)
    assert state["cost"] == pytest.approx(REST + waiting, rel=0.02)


@pytest.mark.parametrize("bits_per_second", [1e5, 4e5, 1e6])
def test_a_rank_sends_so_many_bits_a_second_counting_every_receiver(bits_per_second):
    rooms, _ = rooms_over(Budget(bits_per_second=bits_per_second), 40, LINK, rest=REST)
    sent = 8 * (RANKS - 1) * bytes_of(rooms[-1])
    assert sent / (REST + LINK(bytes_of(rooms[-1]))) == pytest.approx(bits_per_second, rel=0.02)


def test_the_formulas():
    link = Link(latency=0.25, per_byte=0.5, rest=9.0)
    # A quarter of the step is a third of the rest: 3 seconds, less the latency.
    assert Budget(share=0.25)._bytes(link, 4) == pytest.approx((3 - 0.25) / 0.5)
    # 4 bits a second in 9.25 + b / 2 seconds are 8 * 3 * b bits.
    size = Budget(bits_per_second=4)._bytes(link, 4)
    assert 4 * (9.25 + size / 2) == pytest.approx(8 * 3 * size)
    # One rank alone counts as if it had a receiver.
    assert Budget(bits_per_second=4)._bytes(link, 1) == Budget(bits_per_second=4)._bytes(link, 2)


def test_a_link_that_cannot_use_up_the_budget_gives_the_ceiling():
    for tuner, wait in [(Budget(share=0.1, ceiling=0.3), line(0.0, 0.0)), (Budget(bits_per_second=1e9), LINK)]:
        rooms, _ = rooms_over(tuner, 40, wait, rest=REST)
        assert rooms[-1] == pytest.approx(tuner.ceiling * ENTRIES, rel=0.01)


def test_a_latency_beyond_the_budget_gives_the_floor():
    rooms, _ = rooms_over(Budget(share=0.01, floor=0.0005), 40, line(1.0, PER_BYTE), rest=REST)
    assert rooms[-1] == 0.0005 * ENTRIES


def test_the_amount_follows_a_link_that_changes():
    tuner = Budget(share=0.25)
    before, state = rooms_over(tuner, 30, LINK, rest=REST)
    after, _ = rooms_over(tuner, 30, line(LATENCY, 3 * PER_BYTE), rest=REST, state=state, room=before[-1])
    waiting = LATENCY + 3 * PER_BYTE * bytes_of(after[-1])
    assert waiting / (REST + waiting) == pytest.approx(0.25, rel=0.05)
    assert after[-1] < before[-1] / 2


def test_an_amount_grows_at_most_twofold_from_step_to_step():
    rooms, _ = rooms_over(Budget(share=0.5), 30, line(0.0, 1e-9), rest=REST, room=2)
    assert all(after <= 2 * before for before, after in itertools.pairwise(rooms))
    assert rooms[-1] > 1000


def test_a_skipped_step_moves_nothing():
    tuner = Budget(share=0.1)
    state = rooms_over(tuner, 5, LINK)[1]
    after, setting = tuner.update(state, seen_of(skipped=True, pace=Pace(waited=7.0, rest=7.0)), START)
    assert (setting, after["count"]) == (START, state["count"])


def test_before_an_exchange_was_timed_the_start_holds():
    tuner = Budget(share=0.1)
    assert tuner.update(tuner.init(START), seen_of(), START)[1] == START


@pytest.mark.parametrize("settings", [{}, {"share": 0.1, "bits_per_second": 1e6}], ids=repr)
def test_a_budget_is_one_of_the_two(settings):
    with pytest.raises(ValueError, match=r"a share of the step or bits a second, got share=.*Write Budget\("):
        Budget(**settings)
