"""The spectrum: 72 bytes that know what every amount gains well enough to choose by, whatever the vector."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import DTYPES, flats, normal, segments_of
from laconic import descent
from laconic.segments import Segments
from laconic.spectrum import SPECTRUM_BYTES, Spectrum, measure

COUNTS = [1, 3, 10, 30, 100, 300, 1000, 2000]
GAINS = {"alpha": descent.alpha, "beta": descent.beta, "omega": descent.omega}
# Magnitudes of several kinds: light tails, heavy tails, hardly any difference, many decades.
SHAPES = {
    "normal": lambda g: g,
    "cubed": lambda g: g**3,
    "even": lambda g: g.sign() * (1 + 0.1 * g.abs()),
    "decades": lambda g: g.sign() * 10 ** (-2 * g.abs()),
    "mostly zeros": lambda g: torch.where(g > 0.5, g, 0.0),
}
SIZE = 4000


def _one(x: torch.Tensor, turn: int = 0) -> Spectrum:
    return Spectrum.read(measure(x, segments_of([x.numel()]), turn=turn))


def _gain(seen: Spectrum, gain: str, counts: list[int]) -> list[float]:
    return seen.gains(gain, np.array(counts, dtype=np.float64)).tolist()


every_shape = pytest.mark.parametrize("shape", SHAPES)
every_gain = pytest.mark.parametrize("gain", GAINS)


@every_gain
@every_shape
def test_gains_are_those_of_the_vector_to_a_few_percent_of_a_full_step(gain, shape):
    x = SHAPES[shape](normal(SIZE, 5))
    exact = GAINS[gain](x)[torch.tensor(COUNTS) - 1].tolist()
    ours = _gain(_one(x), gain, COUNTS)
    # Where all entries are in one bin, its count is all there is to know.
    assert ours == pytest.approx(exact, abs=0.06 if shape == "even" else 0.02)
    # Few entries are as large as their bins are wide.
    assert ours == pytest.approx(exact, rel=0.05 if gain == "omega" else 0.25)


@pytest.mark.parametrize("fixed", [10, 100, 1000])
@every_gain
@every_shape
def test_the_amount_that_looks_best_is_nearly_the_best(gain, shape, fixed):
    x = SHAPES[shape](normal(SIZE, 5))
    counts = np.arange(1.0, SIZE + 1)
    at = int(np.argmax(_one(x).gains(gain, counts) / (fixed + counts)))
    efficiency = GAINS[gain](x).numpy() / (fixed + counts)
    assert efficiency[at] >= 0.9 * efficiency.max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(data=st.data())
def test_any_finite_vector_has_gains_that_are_shares(dtype, data):
    flat = data.draw(flats(dtype))
    sent = measure(flat.x, flat.segments, turn=data.draw(st.integers(0, 5)))
    assert (sent.dtype, sent.numel()) == (torch.uint8, SPECTRUM_BYTES)
    seen = Spectrum.read(sent)
    counts = [1, 2, 5, 100]
    for gain in GAINS:
        gains = _gain(seen, gain, counts)
        assert all(0 <= g <= 1 + 1e-9 for g in gains)
    assert _gain(seen, "alpha", counts) == sorted(_gain(seen, "alpha", counts))
    assert _gain(seen, "omega", counts) == sorted(_gain(seen, "omega", counts))


@given(st.binary(min_size=SPECTRUM_BYTES, max_size=SPECTRUM_BYTES))
def test_any_bytes_from_outside_can_be_read_and_weighed(raw):
    seen = Spectrum.read(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    mean = Spectrum.mean([seen, _one(normal(50, 1))])
    for gain in GAINS:
        assert all(math.isfinite(g) and g >= 0 for g in _gain(mean, gain, COUNTS))


@pytest.mark.parametrize("scale", [2.0**-112, 2.0**-60, 1.0, 2.0**100], ids=str)
def test_gains_do_not_depend_on_the_scale(scale):
    x = normal(SIZE, 3).clamp(-8, 8)
    one, other = _one(x), _one(x * scale)
    for gain in GAINS:
        # Of the smallest floats some are lost, which hold next to nothing.
        assert _gain(other, gain, COUNTS) == pytest.approx(_gain(one, gain, COUNTS), rel=0.02)


def test_small_counts_travel_exactly_and_others_to_a_few_percent():
    for count in range(12):
        assert _one(torch.ones(count)).entries == count
    for count in (12, 100, 5001, 100_000):
        assert _one(torch.ones(count)).entries == pytest.approx(count, rel=0.045)


@pytest.mark.parametrize("turn", [0, 1, 7])
def test_of_a_large_vector_a_part_is_looked_at_and_stands_for_all(turn):
    x = normal(500_011, 2)
    segments, counts = segments_of([300_000, 11, 200_000]), [1000, 10_000, 100_000]
    seen = Spectrum.read(measure(x, segments, turn=turn))
    exact = descent.alpha(x)[torch.tensor(counts) - 1].tolist()
    assert seen.entries == pytest.approx(x.numel(), rel=0.05)
    assert _gain(seen, "alpha", counts) == pytest.approx(exact, rel=0.1)


def test_turns_take_another_part_each_and_every_entry_in_the_end():
    found = []
    for place in (0, 64, 65, 299_999):
        x = torch.zeros(300_000)
        x[place] = 1.0
        found.append(sum(_one(x, turn).entries > 0 for turn in range(3)))
    assert found == [1, 1, 1, 1]


def test_segments_that_are_not_chosen_from_do_not_show():
    x = torch.cat([torch.full((5,), 8.0), torch.ones(7), torch.full((3,), 8.0), torch.full((2,), 0.5)])
    model = Segments.of(["a", "b", "c", "d"], [5, 7, 3, 2])
    chosen = Segments(tuple(s for s in model if s.name in ("b", "d")))
    seen = Spectrum.read(measure(x, chosen, turn=0))
    assert seen.entries == 9


def test_with_minus_it_is_that_of_the_difference_wherever_that_lies():
    owed, fresh = normal(600_000, 1), normal(600_000, 2) * 0.1
    here, home = Segments.of(["b", "a"], [200_000, 400_000]), Segments.of(["a", "b"], [400_000, 200_000])
    x = torch.cat([(owed + fresh)[400_000:], (owed + fresh)[:400_000]])
    placed = Segments.of(["a", "b"], [400_000, 200_000]).among(here.names)
    seen = Spectrum.read(measure(x, here, turn=1, minus=owed, home=placed))
    exact = descent.alpha(fresh)[torch.tensor([100, 10_000]) - 1].tolist()
    assert seen.entries == pytest.approx(home.numel, rel=0.05)
    assert _gain(seen, "alpha", [100, 10_000]) == pytest.approx(exact, rel=0.12)


@settings(max_examples=20)
@given(st.integers(1, 6), st.floats(-20, 20))
def test_double_precision_is_read_alike(seed, power):
    x = normal(300, seed) * 2.0**power
    assert torch.equal(measure(x, segments_of([300]), turn=0), measure(x.double(), segments_of([300]), turn=0))


def test_the_total_of_parts_is_the_spectrum_of_the_whole():
    a, b = normal(11, 1), normal(11, 2) * 100
    whole, parts = _one(torch.cat([a, b])), Spectrum.total([_one(a), _one(b)])
    assert parts.top == whole.top
    assert parts.counts == whole.counts
    assert Spectrum.total([]).entries == 0


def test_the_mean_of_alike_ranks_is_that_of_one_and_of_unlike_ones_between():
    one, other = _one(normal(500, 1)), _one(4 * normal(500, 2))
    assert Spectrum.mean([one, one, one]) == Spectrum.mean([one])
    both = Spectrum.mean([one, other])
    assert both.entries == pytest.approx((one.entries + other.entries) / 2, rel=0.01)
    assert both.top == other.top


def test_what_is_far_below_the_largest_is_left_out():
    seen = Spectrum.total([_one(torch.ones(8)), _one(torch.full((4,), 2.0**-40))])
    assert seen.entries == 8
    assert _gain(seen, "alpha", [8]) == [1.0]


@pytest.mark.parametrize(
    "x", [torch.zeros(9), torch.empty(0), torch.full((4,), math.nan), torch.tensor([math.inf])]
)
def test_of_nothing_all_is_gained(x):
    seen = _one(x)
    assert seen.entries == 0
    assert all(_gain(seen, gain, [1, 50]) == [1.0, 1.0] for gain in GAINS)
