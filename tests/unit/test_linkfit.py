"""The fitted link: latency and rate from what exchanges took, outliers aside, and a new link is soon known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.linkfit import Link, known, note
from laconic.pace import UNKNOWN_PACE, Pace
from laconic.types import Observation, TunerState

REST = 0.05
SIZES = [1000, 5000, 2000, 20_000, 8000, 1500, 12_000, 3000]


def _seen(size: int, pace: Pace) -> Observation:
    """An exchange of so many bytes; the pace is that of the one before."""
    return Observation(step=1, entries=0, sent=0, wanted=0, skipped=False, message_bytes=size, pace=pace)


def _exchanges(sizes: Iterable[int], wait: Callable[[float], float], state: TunerState | None = None) -> TunerState:
    """Note exchanges of these sizes, each timed as told, and one more so that the last one's time is heard."""
    state, pace = state or {}, UNKNOWN_PACE
    for size in [*sizes, 1000]:
        state = note(state, _seen(size, pace))
        pace = Pace(waited=wait(size), rest=REST)
    return state


def _line(latency: float, per_byte: float) -> Callable[[float], float]:
    return lambda size: latency + per_byte * size


def _fitted(state: TunerState) -> Link:
    link = known(state)
    assert link is not None
    return link


@given(st.floats(0, 0.1), st.floats(1e-9, 1e-3))
def test_exact_exchanges_give_latency_and_rate_back(latency, per_byte):
    link = _fitted(_exchanges(SIZES, _line(latency, per_byte)))
    assert link.per_byte == pytest.approx(per_byte, rel=1e-6, abs=1e-15)
    assert link.latency == pytest.approx(latency, rel=1e-6, abs=1e-6)
    assert link.rest == REST
    assert link.waiting(7000) == pytest.approx(latency + per_byte * 7000, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_outliers_hardly_move_it(seed):
    source = random.Random(seed)

    def wait(size: float) -> float:
        late = source.choice([0.0, 0.0, 0.0, 0.0, 1.0])
        return (0.01 + 1e-6 * size) * source.uniform(0.9, 1.1) + late

    link = _fitted(_exchanges(source.choices(range(1000, 60_000), k=40), wait))
    assert link.waiting(30_000) == pytest.approx(0.04, rel=0.3)
    assert link.per_byte == pytest.approx(1e-6, rel=0.5)


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("sizes", [SIZES, [10_000, 10_100, 9900, 10_050]], ids=["unlike", "alike"])
def test_a_link_that_is_another_one_is_known_after_a_few_exchanges(factor, sizes):
    before = _exchanges(sizes * 4, _line(0.002, 1e-6))
    after = _exchanges(sizes[:5], _line(0.002, 1e-6 * factor), before)
    now = 0.002 + 1e-6 * factor * 10_000
    assert _fitted(before).waiting(10_000) == pytest.approx(0.012, rel=0.02)
    assert _fitted(after).waiting(10_000) == pytest.approx(now, rel=0.3)


def test_one_slow_exchange_is_not_another_link():
    state = _exchanges(SIZES * 3, _line(0.002, 1e-6))
    hiccup = _exchanges([5000], lambda size: 1.0, state)
    assert _fitted(hiccup).waiting(5000) == pytest.approx(_fitted(state).waiting(5000), rel=0.05)


@pytest.mark.parametrize("pace", [UNKNOWN_PACE, Pace(waited=0.1), Pace(rest=0.1)], ids=repr)
def test_a_pace_that_is_not_known_is_ignored(pace):
    state = _exchanges(SIZES, _line(0.002, 1e-6))
    after = note(state, _seen(3000, pace))
    assert known(after) == known(state)
    assert known(note({}, _seen(3000, pace))) is None


def test_a_pace_belongs_to_the_bytes_of_the_step_before():
    state = note({}, _seen(1000, Pace(waited=99.0, rest=1.0)))
    assert known(state) is None
    state = note(state, _seen(50_000, Pace(waited=0.1, rest=1.0)))
    assert _fitted(state).waiting(1000) == pytest.approx(0.1)


def test_without_bytes_there_is_no_exchange_to_time():
    nothing = Observation(step=1, entries=0, sent=0, wanted=0, skipped=False, pace=Pace(waited=1.0, rest=1.0))
    state: TunerState = {}
    for _ in range(4):
        state = note(state, nothing)
    assert known(state) is None


@given(st.lists(st.tuples(st.integers(200, 10**9), st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=40))
def test_whatever_exchanges_took_the_link_is_a_link_and_the_state_numbers(exchanges):
    state: TunerState = {"density": 0.5}
    for size, waited, rest in exchanges:
        before = dict(state)
        after = note(state, _seen(size, Pace(waited=waited, rest=rest)))
        assert state == before
        state = after
    assert all(isinstance(value, float) and math.isfinite(value) for value in state.values())
    assert json.loads(json.dumps(state)) == state
    assert state["density"] == 0.5
    link = known(state)
    assert link is None or min(link.latency, link.per_byte, link.rest) >= 0


def test_what_is_remembered_does_not_grow():
    sizes = [len(_exchanges(SIZES * many, _line(0.002, 1e-6))) for many in (5, 9)]
    assert sizes[0] == sizes[1]
