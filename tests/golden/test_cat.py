"""CAT against values worked out from its formulas (Khirirat et al. 2021; PAPERS.md 4.8), and its lemmas."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.costs import Affine, Bits, Packets
from laconic.descent import Size, alpha, beta, choose, omega, probabilities, qsgd_count

G = torch.tensor([4, -3, 2, -1.5, 1, -0.5, 0.25, 0.1], dtype=torch.float64)
COUNTS = torch.arange(1, 9)
PAIRS, SIGNS = Size.pairs(8), Size.signs(8)


def _close(ours, golden, digits=6):
    # Printed to so many digits: off by at most half of the last.
    assert ours.tolist() == pytest.approx(golden, abs=0.5001 * 10**-digits)


def test_the_vector_is_the_one_meant():
    assert float(G.square().sum()) == pytest.approx(32.5725, abs=1e-12)
    assert float(G.norm()) == pytest.approx(5.707232, abs=5e-7)
    assert float(G.abs().sum()) == pytest.approx(12.35, abs=1e-12)
    assert float(G.abs().sum() / G.abs().max()) == pytest.approx(3.0875, abs=1e-12)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7], [7, 2, 5, 0, 6, 1, 3, 4]], ids=["sorted", "mixed"])
def test_gains_of_each_count(order):
    g = G[order]
    _close(alpha(g), [0.491212, 0.767519, 0.890322, 0.959398, 0.990099, 0.997774, 0.999693, 1])
    _close(beta(g), [0.491212, 0.752168, 0.828920, 0.846189, 0.812035, 0.736818, 0.658147, 0.585319])
    _close(omega(g)[[0, 1, 2, 3, 5]], [0.213559, 0.427117, 0.640676, 0.828580, 0.987869])


def test_single_precision_has_the_same_gains():
    for measure in (alpha, beta, omega):
        assert measure(G.float()).tolist() == pytest.approx(measure(G).tolist(), rel=1e-7)


def test_probabilities_of_four():
    p = probabilities(G, 4)
    _close(p, [1, 1, 0.7477, 0.5607, 0.3738, 0.1869, 0.0935, 0.0374], digits=4)
    assert float(p.sum()) == pytest.approx(4, abs=1e-12)


def test_nothing_saturates_below_the_ratio_of_norms():
    for count in (1, 2, 3):
        assert float(probabilities(G, count).max()) == pytest.approx(count / 3.0875, abs=1e-12)
        assert float(omega(G)[count - 1]) == pytest.approx(count * 32.5725 / 12.35**2, abs=1e-12)
    assert float(probabilities(G, 4)[0]) == 1.0


def test_sizes():
    assert PAIRS.bits(COUNTS).tolist() == [35 * t for t in range(1, 9)]
    assert SIGNS.bits(COUNTS).tolist() == [32 + 4 * t for t in range(1, 9)]
    assert Size.pairs(47_236, value_bits=64).bits(COUNTS)[0] == 16 + 64
    assert Size.signs(47_236, value_bits=64).bits(COUNTS)[0] == 64 + 16 + 1


def test_positions_among_d_take_the_bits_that_tell_them_apart():
    sizes = {d: Size.pairs(d, value_bits=1).entry_bits - 1 for d in (1, 2, 3, 4, 5, 8, 9, 47_236, 2**24, 2**24 + 1)}
    assert sizes == {1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 47_236: 16, 2**24: 24, 2**24 + 1: 25}


@pytest.mark.parametrize(
    ("cost", "golden"), [(Bits(), 1), (Affine(fixed_bits=100), 2), (Affine(fixed_bits=1000), 5)], ids=str
)
def test_how_many_entries(cost, golden):
    assert choose(alpha(G), PAIRS, cost).count == golden


@pytest.mark.parametrize(
    ("cost", "golden"), [(Bits(), 3), (Affine(fixed_bits=100), 3), (Affine(fixed_bits=1000), 4)], ids=str
)
def test_how_many_signs(cost, golden):
    assert choose(beta(G), SIGNS, cost).count == golden


@pytest.mark.parametrize(
    ("most", "fixed", "each", "golden"), [(128, 0, 128, 3), (128, 64, 192, 3), (70, 10, 80, 2)]
)
def test_how_many_entries_in_packets(most, fixed, each, golden):
    """All in bits: a packet's payload, what a message costs, what a packet costs."""
    cost = Packets(payload_bytes=most / 8, per_packet=each / 8, fixed=fixed / 8)
    choice = choose(alpha(G), PAIRS, cost)
    assert choice.count == golden
    assert choice.cost == (each + fixed) / 8
    # As many pairs as one packet holds.
    assert choice.count == most // 35


@pytest.mark.parametrize("seed", range(5))
def test_packets_are_filled(seed):
    g = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 3
    size, cost = Size.pairs(5000), Packets(payload_bytes=512, per_packet=576, fixed=6400)
    for gain in (alpha(g), omega(g)):
        choice = choose(gain, size, cost)
        packets = round((choice.cost - 6400) / 576)
        assert packets > 1
        assert choice.count == packets * 8 * 512 // 45
        everything = gain / cost.of(size.bits(torch.arange(1, 5001)))
        assert choice.efficiency == pytest.approx(float(everything.max()), rel=1e-12)


def test_the_rule_of_thumb_of_qsgd():
    assert qsgd_count(G) == 2
    assert 4 < math.sqrt(32.5725) <= 4 + 3


# Quadratics F(x) = x'Ax / 2: what each scheme promises holds (PAPERS.md 4.3).


def _quadratic(seed: int, d: int):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(d, d, dtype=torch.float64, generator=generator)
    a = root @ torch.diag(torch.rand(d, dtype=torch.float64, generator=generator) ** 4) @ root.T
    x = torch.randn(d, dtype=torch.float64, generator=generator) ** 3
    return a, x, float(torch.linalg.eigvalsh(a)[-1])


def _f(a, x):
    return float(0.5 * x @ a @ x)


def _top(g, count):
    kept = torch.zeros_like(g, dtype=torch.bool)
    kept[g.abs().argsort(descending=True, stable=True)[:count]] = True
    return kept


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_entries_descend_by_alpha(seed):
    a, x, smooth = _quadratic(seed, 6)
    g = a @ x
    for count, gain in enumerate(alpha(g).tolist(), start=1):
        after = _f(a, x - torch.where(_top(g, count), g, 0.0) / smooth)
        assert after <= _f(a, x) - gain / (2 * smooth) * float(g @ g) + 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_signs_descend_by_beta_with_either_magnitude(seed):
    """The norm with the published step, or the mean magnitude with 1 / L: the same point."""
    a, x, smooth = _quadratic(seed, 6)
    g = a @ x
    for count, gain in enumerate(beta(g).tolist(), start=1):
        kept = _top(g, count)
        after = x - torch.where(kept, g[kept].abs().mean() * g.sign(), 0.0) / smooth
        published = x - gain**0.5 / (count**0.5 * smooth) * torch.where(kept, g.norm() * g.sign(), 0.0)
        assert after.tolist() == pytest.approx(published.tolist(), rel=1e-10, abs=1e-12)
        assert _f(a, after) <= _f(a, x) - gain / (2 * smooth) * float(g @ g) + 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_chance_descends_by_omega_in_expectation(seed):
    """Over all outcomes, each with its probability."""
    a, x, smooth = _quadratic(seed, 5)
    g = a @ x
    outcomes = torch.tensor(list(product([0.0, 1.0], repeat=5)), dtype=torch.float64)
    for count, gain in enumerate(omega(g).tolist(), start=1):
        p = probabilities(g, count)
        weights = torch.where(outcomes == 1, p, 1 - p).prod(dim=1)
        points = x - gain / smooth * outcomes * g / p
        expected = float(weights @ (0.5 * (points @ a * points).sum(dim=1)))
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
        assert expected <= _f(a, x) - gain / (2 * smooth) * float(g @ g) + 1e-12


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), st.sampled_from([0.5, 1.0, 7.0]))
def test_alpha_is_all_there_is_where_curvature_is_the_same_everywhere(values, smooth):
    x = torch.tensor(values, dtype=torch.float64)
    g, before = smooth * x, 0.5 * smooth * float(x @ x)
    for count, gain in enumerate(alpha(g).tolist(), start=1):
        after = x - torch.where(_top(g, count), g, 0.0) / smooth
        bound = before - gain / (2 * smooth) * float(g @ g)
        assert 0.5 * smooth * float(after @ after) == pytest.approx(bound, rel=1e-12, abs=1e-12 * before)
