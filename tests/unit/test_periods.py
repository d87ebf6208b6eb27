"""How many steps a round has: the laws of each period, and that ranks agree on it."""

from __future__ import annotations

from math import ceil, inf, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

import laconic
from laconic.local import AdaComm, DriftBudget, Every, Growing
from laconic.local.periods import Period, RoundSeen
from lockstep.locals import Rank, draw, run

PERIODS = [Every(steps=7), Growing(first=2, last=30, steps=100), AdaComm(first=12, block=20), DriftBudget()]


def _walk(period, rounds, *, loss=lambda step: 1.0, rate=lambda step: 0.1, drift=lambda every: 0.0):
    """The length of each round, and the step at which it began."""
    state, step, seen = period.init(), 0, []
    for _ in range(rounds):
        every = int(state["every"])
        seen.append((step, every))
        step += every
        told = RoundSeen(step=step, every=every, loss=loss(step), rate=rate(step), drift=drift(every))
        state = period.update(state, told)
    return seen


EXTREME = st.sampled_from([0.0, 1e-308, 1e308, -1.0, inf, nan])


@pytest.mark.parametrize("period", PERIODS, ids=lambda p: p.name)
@given(
    losses=st.lists(st.floats() | EXTREME, min_size=8, max_size=30),
    drifts=st.lists(st.floats(min_value=0) | st.just(nan), min_size=8, max_size=30),
    rates=st.lists(st.floats(min_value=0, max_value=1e3), min_size=1, max_size=5),
)
def test_a_round_has_a_whole_number_of_steps_whatever_is_seen(period, losses, drifts, rates):
    state, step = period.init(), 0
    for i, (loss, drift) in enumerate(zip(losses, drifts, strict=False)):
        every = state["every"]
        assert int(every) == every >= 1
        step += int(every)
        told = RoundSeen(step=step, every=int(every), loss=loss, rate=rates[i % len(rates)], drift=drift)
        before = dict(state)
        after = period.update(state, told)
        # Pure: the same again, and the old state is as it was.
        assert {k: v for k, v in state.items() if v == v} == {k: v for k, v in before.items() if v == v}
        assert repr(period.update(state, told)) == repr(after)
        state = after


@pytest.mark.parametrize("period", PERIODS, ids=lambda p: p.name)
def test_each_is_a_period_and_begins_with_its_first(period):
    assert isinstance(period, Period)
    assert period.init()["every"] == period.first
    assert period.needs_loss == isinstance(period, AdaComm)


def test_a_fixed_number_stays():
    assert [every for _, every in _walk(Every(steps=5), 6)] == [5] * 6


def test_growing_goes_from_first_to_last_by_equal_factors():
    grow = Growing(first=2, last=32, steps=80)
    for step, every in _walk(grow, 20):
        assert every == round(2 * 16 ** min(1.0, step / 80))
    assert _walk(grow, 20)[-1][1] == 32


def test_adacomms_rule():
    """tau = ceil(sqrt(F / F_0) * tau_0), by blocks; half where that is no less than it was."""
    adacomm, losses = AdaComm(first=16, block=16), [8.0, 4.5, 2.0, 2.0, 0.5]
    state, step, seen = adacomm.init(), 0, []
    for loss in losses:
        until = state["until"]
        while step < until:
            every = int(state["every"])
            step += every
            state = adacomm.update(state, RoundSeen(step=step, every=every, loss=loss, rate=0.1))
        seen.append(int(state["every"]))
    assert seen == [16, ceil(sqrt(4.5 / 8) * 16), 8, 4, 2]


def test_adacomm_couples_the_period_to_the_learning_rate():
    adacomm = AdaComm(first=8, block=8)
    state = adacomm.update(adacomm.init(), RoundSeen(step=8, every=8, loss=4.0, rate=0.4))
    assert state["every"] == 8
    # A tenth of the rate: sqrt(10 * 1 / 1) * 8, although the loss has not fallen.
    state = adacomm.update(state, RoundSeen(step=16, every=8, loss=4.0, rate=0.04))
    assert state["every"] == ceil(sqrt(10) * 8)


def test_adacomm_takes_the_mean_of_a_block_weighed_by_steps():
    adacomm = AdaComm(first=4, block=12)
    state = adacomm.init()
    for step, loss in ((4, 1.0), (8, nan), (12, 5.0)):
        assert state["every"] == 4
        state = adacomm.update(state, RoundSeen(step=step, every=4, loss=loss, rate=0.1))
    # What was not told does not count.
    assert state["loss_0"] == 3.0


@pytest.mark.parametrize(("losses", "rates"), [((0.0, 0.0), (0.1, 0.1)), ((1e-308, 1e308), (0.1, 0.01))])
def test_adacomm_halves_or_stays_where_losses_say_nothing(losses, rates):
    adacomm, state = AdaComm(first=8, block=8), AdaComm(first=8, block=8).init()
    for i in range(2):
        state = adacomm.update(state, RoundSeen(step=8 * (i + 1), every=8, loss=losses[i], rate=rates[i]))
    assert state["every"] == (4 if rates[0] == rates[1] else 8)


def test_a_budget_of_drift_is_kept_to():
    """Ranks that walk 0.005 of the model a step come to as many steps as the budget has room for."""
    budget = DriftBudget(budget=0.05, first=1, most=64)
    lengths = [every for _, every in _walk(budget, 12, drift=lambda every: 0.005 * every)]
    assert lengths[:4] == [1, 2, 4, 8]
    assert set(lengths[5:]) == {10}


@pytest.mark.parametrize(
    ("drift", "every"), [(0.0, 16), (1e-9, 16), (0.01, 16), (0.02, 8), (0.04, 4), (9.0, 4), (inf, 4), (nan, 4)]
)
def test_a_budget_changes_by_two_at_most_and_shortens_what_went_wrong(drift, every):
    seen = RoundSeen(step=8, every=8, drift=drift)
    assert DriftBudget(budget=0.02, first=4, most=64).update({"every": 8}, seen) == {"every": every}


def test_a_budget_ends_at_most_and_never_below_one():
    assert _walk(DriftBudget(first=4, most=10), 5)[-1][1] == 10
    assert _walk(DriftBudget(first=4, most=10), 5, drift=lambda every: 50.0)[-1][1] == 1


# Steps until a law has moved: AdaComm's is the second of its intervals of 200.
@pytest.mark.parametrize(("law", "steps"), [("growing", 120), ("adacomm", 410), ("drift", 120)])
@pytest.mark.parametrize("send", [None, laconic.topk(0.25, whole_below=0)], ids=["whole", "topk"])
def test_ranks_with_unlike_losses_and_drifts_take_the_same_number(law, steps, send):
    def job(rank: Rank):
        lengths = []
        for step in range(steps):
            rank.follow(draw(rank.rank, step, scale=1 + rank.rank), loss=(9.0 + 90 * rank.rank) / (1 + step))
            if rank.now.in_round == 0:
                lengths.append((step, rank.rounds.every))
        return lengths

    method = laconic.celgc(8, period=law, over_steps=100, budget=0.5, send=send)
    first, *others = run(method, 3, job)
    assert all(other == first for other in others)
    assert len({every for _, every in first}) > 1


def test_the_agreed_loss_is_the_mean_over_ranks_and_steps():
    def job(rank: Rank):
        for step in range(200):
            rank.follow(draw(rank.rank, step), loss=1.0 + 4 * rank.rank + step % 2)
        return rank.rounds._pace._state["loss_0"]

    assert run(laconic.celgc(8, period="adacomm"), 2, job) == [pytest.approx(3.5)] * 2


def test_a_loss_that_was_not_told_is_asked_for():
    def job(rank: Rank):
        for step in range(8):
            rank.follow(draw(rank.rank, step))

    with pytest.raises(
        laconic.LaconicError, match=r"celgc follows the loss, and none was told. Call link.observe\(loss\)"
    ):
        run(laconic.celgc(4, period="adacomm"), 2, job)


def test_a_loss_that_is_not_finite_was_told_all_the_same():
    """A rank whose model has exploded is brought back; its losses count for nothing."""

    def job(rank: Rank):
        for step in range(8):
            bad = rank.rank == 1 and step < 4
            rank.follow(draw(rank.rank, step), loss=nan if bad else 2.0)
        return rank.rounds._pace._state["sum"], rank.rounds._pace._state["count"]

    assert run(laconic.celgc(4, period="adacomm"), 2, job) == [(16.0, 8.0)] * 2


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Every(steps=0), ValueError, r"steps.*0.*Every\(steps=16\)"),
        (lambda: Every(steps=2.5), (TypeError, ValueError), r"steps.*2.5"),
        (lambda: Growing(first=0), ValueError, r"first.*say 1"),
        (lambda: Growing(first=4, last=3), ValueError, r"last.*no less than first"),
        (lambda: Growing(steps=0), ValueError, r"steps.*say 1000"),
        (lambda: AdaComm(first=0), ValueError, r"first.*say 16"),
        (lambda: AdaComm(block=0), ValueError, r"block.*say 200"),
        (lambda: DriftBudget(budget=-1.0), ValueError, r"budget.*share of the model's norm"),
        (lambda: DriftBudget(budget=nan), ValueError, r"budget.*share of the model's norm"),
        (lambda: DriftBudget(first=0), ValueError, r"first.*say 4"),
        (lambda: DriftBudget(first=9, most=8), ValueError, r"most.*no fewer than first"),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()
