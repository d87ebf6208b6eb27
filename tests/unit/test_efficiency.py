"""Which amounts are looked at, and which of them gains most for its cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.costs import Affine, Bits, Packets
from laconic.efficiency import Curve, candidates
from laconic.sizes import Size

PAIRS = Size(fixed_bits=800, entry_bits=64)
WIRE = Size(fixed_bits=800, entry_bits=32, among=10**10)
PACKETS = Packets(payload_bytes=100, per_packet=150)


def _curve(gains: list[float], costs: list[float]) -> Curve:
    counts = np.arange(1.0, len(gains) + 1)
    return Curve(counts=counts, gains=np.array(gains), costs=np.array(costs))


@given(st.floats(1, 1e6), st.floats(1, 1e4), st.sampled_from([Bits(), Affine(fixed_bits=9.0), PACKETS]))
def test_amounts_lie_between_the_limits_ascend_and_are_not_too_many(low, factor, cost):
    counts = candidates(low, low * factor, WIRE, cost)
    assert len(counts) >= 1
    assert counts[0] >= low
    assert counts[-1] <= low * factor
    assert bool((np.diff(counts) > 0).all())
    assert len(counts) <= 1024


@given(st.integers(1, 10**6), st.integers(2, 10**4))
def test_amounts_reach_from_limit_to_limit_in_small_steps(low, factor):
    counts = candidates(low, low * factor, WIRE, Bits())
    assert (counts[0], counts[-1]) == (low, low * factor)
    # By at most a fiftieth, and what rounding adds.
    assert bool((np.diff(counts) <= 1 + 0.02 * counts[1:]).all())
    assert bool((counts == counts.round()).all())


def test_the_most_that_fit_packets_are_among_them():
    counts = candidates(1, 300, PAIRS, PACKETS)
    for packets in range(2, 25):
        full = (packets * 800 - 800) // 64
        bits = PAIRS.bits(torch.tensor([full, full + 1]))
        assert PACKETS.of(bits).tolist() == [150.0 * packets, 150.0 * (packets + 1)]
        assert full in counts


def test_of_coded_positions_too_the_most_that_fit_packets_are_among_them():
    size = Size(fixed_bits=800, entry_bits=32, among=5000)
    bits = size.bits(torch.arange(1, 302))
    counts = candidates(1, 300, size, PACKETS)
    for packets in range(2, 16):
        assert int((PACKETS.of(bits) <= 150.0 * packets).sum()) in counts


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (3.7, 3.7), (3.7, 4.2)])
def test_between_limits_that_meet_there_is_one_amount(low, high):
    assert candidates(low, high, WIRE, Bits()).tolist() == [low]


def test_the_best_has_the_most_gain_for_its_cost():
    curve = _curve([0.4, 0.7, 0.8, 0.85], [2.0, 3.0, 4.0, 5.0])
    assert curve.efficiency.tolist() == pytest.approx([0.2, 0.7 / 3, 0.2, 0.17])
    assert curve.best() == 1


def test_of_equals_the_smallest_is_best_also_up_to_rounding():
    assert _curve([0.25, 0.5, 0.75], [1.0, 2.0, 3.0]).best() == 0
    assert _curve([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]).best() == 0
    assert _curve([0.5 * (1 - 1e-15), 0.5], [1.0, 1.0]).best() == 0


def test_a_curve_is_shown_by_some_of_its_points_ends_included():
    curve = _curve([0.5] * 200, list(range(1, 201)))
    points = curve.points(most=10)
    assert len(points) == 10
    assert points[0] == (1.0, 0.5)
    assert points[-1] == (200.0, 0.5 / 200)
    assert len(_curve([0.5, 0.6], [1.0, 2.0]).points()) == 2
