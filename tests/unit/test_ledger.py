"""The ledger: rooms that follow agreed counts alone, and one number a parameter of each kind."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.ledger import Entered, Ledger, next_room
from laconic.segments import Segments
from laconic.types import Mean, Payload

MODEL = Segments.of(["a", "b", "empty", "c"], [4, 9, 0, 16])


def _ledger(weight: float = 0.0, dtype: torch.dtype = torch.float64) -> Ledger:
    return Ledger(MODEL, weight=weight, dtype=dtype, device=torch.device("cpu"))


def _entered(dtype: torch.dtype = torch.float64, clipped: float = 0.0, **deviation: float) -> Entered:
    segments = Segments.of(list(deviation), [MODEL[name].size for name in deviation])
    numbers = torch.tensor(list(deviation.values()), dtype=dtype)
    return Entered(
        segments=segments, deviation=numbers, largest=10 * numbers, clipped=torch.full_like(numbers, clipped)
    )


def _mean(
    *,
    sent: int = 0,
    counts: Mapping[str, tuple[int, ...]] | None = None,
    rooms: Mapping[str, int] | None = None,
    thresholds: list[float] | None = None,
    chosen: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Mean:
    nothing, at = torch.empty(0, dtype=dtype), torch.empty(0, dtype=torch.int64)
    told = None if thresholds is None else torch.tensor(thresholds, dtype=dtype)
    own = Payload(known=nothing, positions=at, values=nothing, wanted=at, thresholds=told) if chosen else None
    return Mean(
        values=nothing, finite=True, sent=sent, wanted=sent, counts=counts or {}, rooms=rooms or {}, own=own
    )


def _commit(ledger: Ledger, entered: Entered, mean: Mean | None = None, world_size: int = 2) -> None:
    ledger.commit(entered, mean or _mean(), world_size=world_size)


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=8))
def test_a_room_is_one_at_least_and_has_at_most_a_tenth_of_slack(counts):
    room = next_room(tuple(counts))
    assert 1 <= room <= max(1, 1.1 * max(counts))
    assert room >= min(counts)
    assert next_room(tuple(reversed(counts))) == room


@given(st.integers(0, 10**7), st.integers(1, 8))
def test_where_ranks_count_alike_what_qualified_fits(count, ranks):
    assert next_room((count,) * ranks) >= count


def test_rooms_follow_what_all_ranks_counted_and_nothing_else():
    ledger, other = _ledger(), _ledger()
    counts = {"c": (3, 7), "b": (0, 0)}
    _commit(ledger, _entered(b=1.0, c=1.0), _mean(counts=counts, rooms={"c": 3, "b": 1}))
    _commit(other, _entered(b=7.0, c=9.0, clipped=1.0), _mean(counts=counts, rooms={"c": 3, "b": 1}))
    assert ledger.rooms == other.rooms == {"c": next_room((3, 7)), "b": 1}


def test_a_segment_that_was_not_counted_keeps_its_room():
    ledger = _ledger()
    _commit(ledger, _entered(b=1.0), _mean(counts={"b": (3, 3)}, rooms={"b": 9}))
    _commit(ledger, _entered(c=1.0), _mean(counts={"c": (6, 6)}, rooms={"c": 9}))
    assert ledger.rooms == {"b": next_room((3, 3)), "c": next_room((6, 6))}


@given(st.lists(st.integers(0, 16), min_size=1, max_size=4))
def test_a_room_is_never_more_than_what_is_chosen_from(counts):
    for name, size in (("a", 4), ("b", 9), ("c", 16), ("4 parameters", MODEL.numel)):
        ledger, said = _ledger(), tuple(min(n, size) for n in counts)
        _commit(ledger, _entered(a=1.0, b=1.0, c=1.0), _mean(counts={name: said}, rooms={name: 1}))
        assert ledger.rooms == {name: min(next_room(said), size)}


def test_a_room_of_nothing_is_none():
    ledger = _ledger()
    _commit(ledger, _entered(empty=0.0), _mean(counts={"empty": (0, 0)}, rooms={"empty": 0}))
    assert ledger.rooms == {"empty": 0}


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=9), st.sampled_from([0.0, 0.5, 0.9]))
def test_the_running_deviation_is_a_mean_with_weights_that_fall_with_age(deviations, weight):
    ledger = _ledger(weight)
    running = deviations[0]
    for i, deviation in enumerate(deviations):
        running = weight * running + (1 - weight) * deviation if i else deviation
        _commit(ledger, _entered(b=deviation))
    assert float(ledger.running[1]) == pytest.approx(running)
    assert float(ledger.deviation[1]) == deviations[-1]
    assert [float(ledger.running[i]) for i in (0, 2, 3)] == [0.0, 0.0, 0.0]


@given(st.lists(st.floats(1e-3, 10.0), min_size=2, max_size=9), st.sampled_from([0.5, 0.9]))
def test_the_running_deviation_follows_a_rate_that_jumps_at_once(rates, weight):
    """Gradients of a steady size: in memory's units what this step adds is what the running deviation says."""
    ledger = _ledger(weight)
    for rate in rates[:-1]:
        ledger.begin(dict.fromkeys(MODEL.names, rate))
        _commit(ledger, _entered(b=3.0 * rate, c=2.0 * rate))
    ledger.begin({**dict.fromkeys(MODEL.names, rates[-1]), "c": 0.5 * rates[-1]})
    fresh = ledger.fresh(_entered(b=3.0 * rates[-1], c=rates[-1]), None, merged=False)
    assert fresh.running.tolist() == pytest.approx(fresh.deviation.tolist(), rel=1e-9)
    # In memory's units, and of the parameters that gradients came for.
    assert float(fresh.overall) == pytest.approx(rates[-1] * math.sqrt((9 * 9 + 16 * 1) / (9 + 16)))
    assert ledger.deviation.tolist() == pytest.approx([0.0, 3.0 * rates[-2], 0.0, 2.0 * rates[-2]])


def test_a_step_in_which_nothing_came_teaches_nothing():
    """At rate 0 a parameter takes nothing in; that must not pull its threshold to zero."""
    ledger = _ledger(0.5)
    _commit(ledger, _entered(a=4.0, b=2.0))
    ledger.begin({**dict.fromkeys(MODEL.names, 1.0), "a": 0.0})
    for _ in range(5):
        _commit(ledger, _entered(a=0.0, b=2.0))
    ledger.begin(dict.fromkeys(MODEL.names, 1.0))
    _commit(ledger, _entered(b=0.0))
    assert ledger.running.tolist() == [4.0, 2.0, 0.0, 0.0]
    assert ledger.deviation.tolist() == [0.0, 0.0, 0.0, 0.0]
    fresh = ledger.fresh(_entered(a=1.0), None, merged=False)
    assert fresh.running.tolist() == [4.0]


def test_a_rate_so_small_that_the_deviation_overflows_teaches_nothing():
    ledger = _ledger(0.5, torch.float32)
    _commit(ledger, _entered(torch.float32, a=4.0))
    ledger.begin(dict.fromkeys(MODEL.names, 1e-38))
    _commit(ledger, _entered(torch.float32, a=1e5))
    assert ledger.running.tolist() == [4.0, 0.0, 0.0, 0.0]


def test_what_a_compressor_may_know_is_in_the_order_of_what_came_in():
    ledger = _ledger(0.5)
    _commit(ledger, _entered(a=1.0, b=2.0, c=3.0))
    entered, before = _entered(c=30.0, a=10.0), torch.ones(3)
    fresh = ledger.fresh(entered, before, merged=False)
    assert fresh.deviation.tolist() == [30.0, 10.0]
    assert fresh.running.tolist() == [3.0, 1.0]
    assert fresh.largest.tolist() == [300.0, 100.0]
    assert fresh.before is before
    # The root mean square over all 29 entries of the model.
    assert float(fresh.overall) == pytest.approx(math.sqrt((4 * 1 + 9 * 4 + 16 * 9) / 29))


def test_merged_it_is_one_segment_over_all_that_came_in():
    ledger = _ledger(0.5)
    _commit(ledger, _entered(a=1.0, b=2.0, c=3.0))
    fresh = ledger.fresh(_entered(a=1.0, c=2.0), None, merged=True)
    assert fresh.deviation.tolist() == pytest.approx([math.sqrt((4 * 1 + 16 * 4) / 20)])
    assert fresh.largest.tolist() == [20.0]
    assert fresh.running.tolist() == [float(fresh.overall)]


def test_merged_it_is_the_same_to_the_bit_in_whatever_order_parameters_came_in():
    ledger, deviation = _ledger(0.5), {"a": 1 / 5, "b": 1 / 7, "c": 1 / 3}
    seen = set()
    for names in itertools.permutations(deviation):
        entered = _entered(**{name: deviation[name] for name in names})
        fresh = ledger.fresh(entered, None, merged=True)
        seen.add((float(fresh.deviation), float(fresh.largest)))
    assert len(seen) == 1


def test_before_the_first_step_there_is_no_running_deviation():
    fresh = _ledger(0.9).fresh(_entered(a=4.0), None, merged=False)
    assert (fresh.running.tolist(), float(fresh.overall), fresh.before) == ([0.0], 0.0, None)


def test_what_it_hands_out_does_not_change_with_the_next_commit():
    ledger = _ledger(0.5)
    _commit(ledger, _entered(a=1.0))
    fresh = ledger.fresh(_entered(a=5.0), None, merged=False)
    _commit(ledger, _entered(a=5.0))
    assert fresh.running.tolist() == [1.0]


def test_norms_are_deviations_times_the_root_of_the_size():
    ledger = _ledger()
    _commit(ledger, _entered(a=3.0, b=2.0))
    assert ledger.gradient_norms().tolist() == [6.0, 6.0, 0.0, 0.0]


def test_thresholds_are_this_ranks_by_parameter_and_below_zero_where_there_is_none():
    ledger = _ledger()
    assert ledger.thresholds.tolist() == [-1.0] * 4
    _commit(ledger, _entered(c=1.0, a=1.0, b=1.0), _mean(rooms={"c": 1, "b": 1}, thresholds=[3.0, 2.0]))
    assert ledger.thresholds.tolist() == [-1.0, 2.0, -1.0, 3.0]
    _commit(ledger, _entered(a=1.0, b=1.0, c=1.0), _mean(rooms={"4 parameters": 5}, thresholds=[9.0]))
    assert ledger.thresholds.tolist() == [9.0, 9.0, -1.0, 9.0]


def test_clipped_steps_are_counted():
    ledger = _ledger()
    for clipped in (1.0, 0.0, 1.0):
        _commit(ledger, _entered(a=1.0, clipped=clipped))
    assert ledger.clipped.tolist() == [2.0, 0.0, 0.0, 0.0]


def test_the_share_sent_is_what_fitted_over_all_ranks_and_one_where_a_parameter_goes_whole():
    ledger = _ledger()
    counts, rooms = {"b": (2, 9), "c": (4, 4)}, {"b": 3, "c": 8}
    _commit(ledger, _entered(a=1.0, b=1.0, c=1.0), _mean(sent=21, counts=counts, rooms=rooms))
    assert ledger.shares == {"a": 1.0, "b": (2 + 3) / 18, "c": (4 + 4) / 32}


def test_the_share_of_a_fixed_choice_is_its_room():
    ledger = _ledger()
    _commit(ledger, _entered(b=1.0), _mean(sent=6, rooms={"b": 3}))
    assert ledger.shares == {"b": 3 / 9}


def test_the_share_sent_is_of_what_arrived():
    """By sharded_mean not all that ranks chose is told."""
    ledger = _ledger()
    _commit(ledger, _entered(b=1.0), _mean(sent=3, rooms={"b": 3}))
    assert ledger.shares == {"b": 1.5 / 9}


@pytest.mark.parametrize("chosen", [True, False], ids=["merged", "known to all"])
def test_where_parameters_are_not_told_apart_the_share_is_that_of_all(chosen):
    ledger = _ledger()
    mean = _mean(sent=10, rooms={"2 parameters": 5} if chosen else {}, chosen=chosen)
    _commit(ledger, _entered(a=1.0, c=1.0), mean)
    assert ledger.shares == {"a": 0.25, "c": 0.25}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_saved_ledger_goes_on_to_the_bit_even_through_text(dtype):
    ledger, other = _ledger(0.9, dtype), _ledger(0.9, dtype)
    for step in range(1, 4):
        entered = _entered(dtype, a=1 / 3 / step, b=0.1, c=math.pi, clipped=float(step % 2))
        mean = _mean(counts={"b": (7, step)}, rooms={"b": 3}, thresholds=[step / 7], dtype=dtype)
        _commit(ledger, entered, mean)
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert other.state_dict() == ledger.state_dict()
    for kind in ("running", "deviation", "clipped", "thresholds"):
        assert torch.equal(getattr(other, kind), getattr(ledger, kind))
    assert float(other.thresholds[1]) > 0
    for each in (ledger, other):
        _commit(each, _entered(dtype, a=0.7, b=0.2, c=0.3))
    assert torch.equal(other.running, ledger.running)


def test_a_saved_state_is_a_copy():
    ledger = _ledger()
    _commit(ledger, _entered(b=2.0), _mean(counts={"b": (3, 3)}, rooms={"b": 3}))
    state = ledger.state_dict()
    _commit(ledger, _entered(b=5.0), _mean(counts={"b": (9, 9)}, rooms={"b": 3}))
    assert (state["deviation"]["b"], state["rooms"]) == (2.0, {"b": next_room((3, 3))})
    assert ledger.rooms != state["rooms"]


@pytest.mark.parametrize("kind", ["running", "deviation", "clipped", "thresholds"])
def test_a_state_of_another_model_is_refused(kind):
    ledger = _ledger()
    for wrong in ({}, {"a": 1.0}, {**ledger.state_dict()[kind], "d": 1.0}):
        with pytest.raises(ValueError, match=rf"the saved ledger .*has other parameters in \['{kind}'\]\. Load"):
            ledger.check({**ledger.state_dict(), kind: wrong})
    ledger.check(ledger.state_dict())


@pytest.mark.parametrize("kind", ["running", "deviation", "clipped", "thresholds", "rooms", "shares"])
def test_a_state_that_lacks_something_is_refused(kind):
    state = _ledger().state_dict()
    del state[kind]
    with pytest.raises(ValueError, match=rf"the saved ledger lacks \['{kind}'\].* Load the state"):
        _ledger().check(state)
