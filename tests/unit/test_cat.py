"""CAT as a tuner: from what all ranks saw to the amount of the next step, by observations made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from math import nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import normal, segments_of
from laconic import descent
from laconic.compressors import StdThreshold, TopK
from laconic.costs import Affine, Bits, Packets, Seconds
from laconic.pace import UNKNOWN_PACE, Pace
from laconic.sizes import Size
from laconic.spectrum import Spectrum, measure
from laconic.tuners import Budget, Cat
from laconic.tuners.amounts import at_count
from laconic.types import Compressor, Observation, Tuner, TunerState

ENTRIES, RANKS, FIXED = 20_000, 4, 400
WIRE = Size(fixed_bits=8 * FIXED, entry_bits=32, among=ENTRIES)
G = normal(ENTRIES, 3) ** 3
SPECTRUM = Spectrum.read(measure(G, segments_of([ENTRIES]), turn=0))
START = TopK(density=0.01, whole_below=0)
Wait = Callable[[float], float]


def bytes_of(room: int) -> int:
    """How many bytes a message with room for so many entries has; parts are padded, as the fixed bytes say."""
    return -(-int(WIRE.bits(torch.tensor([room]))) // 64) * 8


def seen_of(room: int = 200, **more: object) -> Observation:
    """What all ranks saw of a step in which each had room for so many entries."""
    told = Observation(
        step=1,
        entries=ENTRIES * RANKS,
        sent=room * RANKS,
        wanted=room * RANKS,
        skipped=False,
        qualified=room * RANKS,
        choosable=ENTRIES * RANKS,
        spectrum=SPECTRUM,
        message_bytes=bytes_of(room),
        fixed_bytes=FIXED,
        value_bits=32,
        room=room,
        ranks=RANKS,
        world_size=RANKS,
    )
    return replace(told, **more)


def chosen(tuner: Tuner, seen: Observation) -> float:
    """The amount after one observation."""
    state, _ = tuner.update(tuner.init(START), seen, START)
    return state["count"]


def rooms_over(
    tuner: Tuner, steps: int, wait: Wait, *, rest: float = 0.1, state: TunerState | None = None, room: int = 200
) -> tuple[list[int], TunerState]:
    """Run a tuner on a link that makes ranks wait so long for so many bytes; return the rooms, and its state."""
    setting: Compressor = START.at_density(room / ENTRIES)
    state, pace, rooms = tuner.init(setting) if state is None else state, UNKNOWN_PACE, []
    for _ in range(steps):
        state, setting = tuner.update(state, seen_of(room, pace=pace), setting)
        pace = Pace(waited=wait(bytes_of(room)), rest=rest)
        room = max(1, round(setting.density * ENTRIES))
        rooms.append(room)
    return rooms, state


def line(latency: float, per_byte: float) -> Wait:
    return lambda size: latency + per_byte * size


def best_on(latency: float, per_byte: float, *, rest: float = 0.1) -> descent.Choice:
    """The best amount for this very vector and link."""
    cost = Seconds(latency_seconds=rest + latency, bits_per_second=8 / per_byte)
    return descent.choose(descent.alpha(G), WIRE, cost, ceiling=ENTRIES // 2)


def efficiency_on(room: int, latency: float, per_byte: float, *, rest: float = 0.1) -> float:
    return float(descent.alpha(G)[room - 1]) / (rest + latency + per_byte * bytes_of(room))


def test_where_only_bits_cost_one_entry_is_best():
    assert chosen(Cat(cost=Bits(), coding="published"), seen_of()) == 1.0


@pytest.mark.parametrize("gain", ["alpha", "beta", "omega"])
@pytest.mark.parametrize("fixed_bits", [1e3, 1e5])
def test_the_amount_is_nearly_the_best_for_this_very_vector(gain, fixed_bits):
    count = round(chosen(Cat(cost=Affine(fixed_bits=fixed_bits), gain=gain, coding="published"), seen_of()))
    gains = getattr(descent, gain)(G)
    size = Size.signs(ENTRIES) if gain == "beta" else Size.pairs(ENTRIES)
    best = descent.choose(gains, size, Affine(fixed_bits=fixed_bits), ceiling=ENTRIES // 2)
    ours = float(gains[count - 1]) / (fixed_bits + float(size.bits(torch.tensor([count]))))
    assert ours >= 0.9 * best.efficiency


def test_the_more_a_message_costs_by_itself_the_more_it_carries():
    counts = [chosen(Cat(cost=Affine(fixed_bits=10.0**power)), seen_of()) for power in range(2, 8)]
    assert counts == sorted(counts)
    assert counts[-1] > 4 * counts[0]


@pytest.mark.parametrize("cost", [Packets.cat_paper(), Packets.ethernet_tcp(), Packets.ieee_802_15_4()], ids=repr)
@pytest.mark.parametrize("coding", ["wire", "published"])
def test_packets_are_filled(cost, coding):
    count = chosen(Cat(cost=cost, coding=coding), seen_of())
    size = Size.pairs(ENTRIES) if coding == "published" else WIRE
    now, more = cost.of(size.bits(torch.tensor([count, count + 1]))).tolist()
    assert more == now + cost.per_packet


@given(st.floats(1e-4, 0.2), st.floats(1.0, 5.0), st.floats(1.0, 1e8))
def test_the_amount_stays_between_floor_and_ceiling(floor, factor, fixed_bits):
    tuner = Cat(cost=Affine(fixed_bits=fixed_bits), floor=floor, ceiling=min(1.0, floor * factor))
    count = chosen(tuner, seen_of())
    assert floor * ENTRIES * (1 - 1e-9) <= count <= max(1.0, tuner.ceiling * ENTRIES) * (1 + 1e-9)


def test_limits_hold_where_they_bind():
    held = {"floor": 0.02, "ceiling": 0.03}
    assert chosen(Cat(cost=Bits(), **held), seen_of()) == 0.02 * ENTRIES
    assert chosen(Cat(cost=Affine(fixed_bits=1e9), **held), seen_of()) == 0.03 * ENTRIES


def test_a_link_that_is_known_is_an_overhead_and_a_rate():
    slow, fast = (Cat(cost=Seconds(latency_seconds=0.1, bits_per_second=b)) for b in (1e5, 1e7))
    assert chosen(slow, seen_of()) < chosen(fast, seen_of())
    same = Cat(cost=Affine(fixed_bits=0.1 * 1e5))
    assert chosen(slow, seen_of()) == chosen(same, seen_of())
    # A pace that was measured does not matter to it.
    assert chosen(slow, seen_of(pace=Pace(waited=9.0, rest=9.0))) == chosen(slow, seen_of())


@pytest.mark.parametrize(
    "tuner", [Cat(cost=Affine(fixed_bits=1e4)), Cat(), Cat(gain="lag"), Cat(gain="curvature")], ids=repr
)
def test_a_skipped_step_moves_nothing_and_its_time_counts(tuner):
    state = rooms_over(tuner, 5, line(0.01, 1e-6))[1]
    poisoned = seen_of(skipped=True, pace=Pace(waited=7.0, rest=7.0))
    after, setting = tuner.update(state, poisoned, START)
    assert setting == START
    assert {key: after[key] for key in ("count", "gain", "cost")} == {
        key: state[key] for key in ("count", "gain", "cost")
    }
    # What it sent was sent: the next pace belongs to its bytes.
    assert after.get("link.sent") == (poisoned.message_bytes if tuner.measures else None)


def test_one_outlier_of_the_change_is_forgotten_soon():
    tuner = Cat(cost=Bits(), gain="curvature")
    state = tuner.init(START)
    for change in (0.3, 1e9, *[0.3] * 10):
        state, _ = tuner.update(state, seen_of(change=change), START)
    assert state["change"] < 0.5


def test_a_threshold_is_not_driven_on_for_ever_by_a_count_out_of_reach():
    rule = StdThreshold(c=3.0, whole_below=0)
    for _ in range(200):
        rule = at_count(rule, 1, seen_of(ENTRIES))
    assert rule.c < 1e5


def test_before_anything_is_known_the_start_holds():
    for tuner, seen in [
        (Cat(cost=Bits()), seen_of(spectrum=None)),
        (Cat(cost=Bits()), seen_of(spectrum=Spectrum.total([]))),
        (Cat(cost=Bits()), seen_of(choosable=0)),
        (Cat(), seen_of()),
    ]:
        state, setting = tuner.update(tuner.init(START), seen, START)
        assert setting == START
        assert "count" not in state


def test_a_measured_link_is_followed_to_nearly_the_best_amount():
    rooms, _ = rooms_over(Cat(), 40, line(0.01, 1e-5))
    best = best_on(0.01, 1e-5)
    assert efficiency_on(rooms[-1], 0.01, 1e-5) >= 0.95 * best.efficiency


@pytest.mark.parametrize("gain", ["alpha", "lag", "curvature"])
def test_after_the_rate_falls_tenfold_less_is_sent_and_more_when_it_is_back(gain):
    tuner = Cat(gain=gain)
    before, state = rooms_over(tuner, 40, line(0.002, 1e-5))
    during, state = rooms_over(tuner, 25, line(0.002, 1e-4), state=state, room=before[-1])
    after, _ = rooms_over(tuner, 25, line(0.002, 1e-5), state=state, room=during[-1])
    assert during[-1] < 0.8 * before[-1]
    assert after[-1] > 1.2 * during[-1]


def test_an_amount_grows_at_most_twofold_from_step_to_step():
    rooms, _ = rooms_over(Cat(), 30, line(0.5, 1e-9), room=3)
    assert rooms[-1] > 100
    assert all(after <= 2 * before for before, after in itertools.pairwise(rooms))


def test_what_is_known_comes_from_the_observation_alone():
    """Ranks that saw the same choose the same, to the bit: nothing else enters."""
    for gain in ("alpha", "lag", "curvature"):
        paths = [rooms_over(Cat(gain=gain), 12, line(0.01, 1e-5)) for _ in range(2)]
        assert paths[0] == paths[1]


def test_what_comes_late_by_a_step_costs_as_much_as_a_step_of_all_so_far():
    tuner, counts = Cat(cost=Affine(fixed_bits=1e4), gain="lag"), []
    for step in (20, 100, 1000, 10_000):
        curve = tuner.curve(tuner.init(START), seen_of(step=step))
        late = (1 / SPECTRUM.gains("omega", curve.counts) - 1) / 2
        assert curve.gains.tolist() == pytest.approx((step / (step + late)).tolist())
        counts.append(float(curve.counts[curve.best()]))
    # The longer a run, the less a lateness matters.
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0]


def test_a_run_that_has_just_begun_counts_as_some_steps_old():
    tuner = Cat(cost=Affine(fixed_bits=1e4), gain="lag")
    assert chosen(tuner, seen_of(step=1)) == chosen(tuner, seen_of(step=20)) > chosen(tuner, seen_of(step=200))


def test_the_more_is_used_up_at_once_the_more_is_sent():
    def after(change: float) -> float:
        tuner = Cat(cost=Affine(fixed_bits=1e4), gain="curvature")
        state = tuner.init(START)
        for _ in range(40):
            state, _ = tuner.update(state, seen_of(change=change), START)
        return state["count"]

    counts = [after(change) for change in (-1.0, 0.01, 0.1, 0.5, 1.0)]
    assert counts == sorted(counts)
    assert counts[1] < counts[3]


def test_a_change_that_is_not_known_keeps_the_mean_of_those_before():
    tuner = Cat(cost=Bits(), gain="curvature")
    state, _ = tuner.update(tuner.init(START), seen_of(change=0.5), START)
    assert state["change"] == 0.5
    for change, mean in [(nan, 0.5), (1.0, 0.6)]:
        state, _ = tuner.update(state, seen_of(change=change), START)
        assert state["change"] == pytest.approx(mean)


def test_of_what_it_wants_the_spectrum():
    assert Cat(gain="curvature").spectrum_of == "change"
    assert Cat(gain="lag").spectrum_of == "fresh"
    assert {Cat(gain=gain).spectrum_of for gain in ("alpha", "beta", "omega")} == {"owed"}


def test_a_curve_holds_what_was_chosen_from():
    tuner = Cat(cost=Affine(fixed_bits=1e4))
    state, _ = tuner.update(tuner.init(START), seen_of(), START)
    curve = tuner.curve(state, seen_of())
    assert curve.counts[curve.best()] == state["count"]
    assert curve.gains[curve.best()] == pytest.approx(state["gain"])
    assert curve.costs[curve.best()] == pytest.approx(state["cost"])


@pytest.mark.parametrize("tuner", [Cat(cost=Affine(fixed_bits=1e4)), Budget(share=0.1)], ids=repr)
def test_a_compressor_without_a_threshold_has_the_share_as_its_density(tuner):
    _, state = rooms_over(tuner, 10, line(0.01, 1e-5))
    _, setting = tuner.update(state, seen_of(), START)
    assert setting == START.at_density(tuner.update(state, seen_of(), START)[0]["count"] / ENTRIES)


def test_a_threshold_rises_to_send_less_and_falls_to_send_more():
    rule = StdThreshold(c=3.0, whole_below=0)
    qualified = seen_of(500)
    assert at_count(rule, 500, qualified) == rule
    less, more = at_count(rule, 100, qualified), at_count(rule, 2000, qualified)
    assert more.c < rule.c < less.c
    # A part of the way: what is owed answers late, and a coefficient that follows fast would swing.
    assert at_count(rule, 1, seen_of(ENTRIES)).c == pytest.approx(3.0 * 1.25)
    assert at_count(rule, ENTRIES, seen_of(1)).c == pytest.approx(3.0 / 1.25)


def test_a_threshold_never_falls_to_zero_where_all_would_be_sent_whole():
    rule = StdThreshold(c=1e-3, whole_below=0)
    assert at_count(rule, ENTRIES, seen_of(1)).c > 0
