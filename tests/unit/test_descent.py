"""Gains of sparse steps: their laws, and the count that buys most (golden/test_cat.py has the descent itself)."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laconic.coding import best_width, position_bits
from laconic.costs import Affine, Bits, Packets, Seconds
from laconic.descent import Choice, alpha, beta, candidates, choose, omega, probabilities, qsgd_count
from laconic.sizes import Size

MEASURES = {"alpha": alpha, "beta": beta, "omega": omega}
every_measure = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=32))
vectors = st.lists(numbers, min_size=1, max_size=12).map(lambda v: torch.tensor(v, dtype=torch.float64))
fewer = settings(max_examples=30)
nonzero = vectors.filter(lambda g: bool(g.any()))
whole = st.lists(st.integers(-9, 9), min_size=1, max_size=14).filter(any)


@fewer
@given(vectors)
def test_alpha_rises_ever_more_slowly_from_at_least_its_share_to_one(g):
    gains = alpha(g)
    counts = torch.arange(1, len(g) + 1)
    assert (gains >= counts.double() / len(g) - 1e-12).all()
    assert gains[-1] == 1
    steps = gains.diff()
    assert (steps >= 0).all()
    assert (steps.diff() <= 1e-12).all()


@fewer
@given(vectors)
def test_one_magnitude_for_all_gains_at_most_what_values_gain(g):
    assert (beta(g) <= alpha(g) + 1e-12).all()
    assert (beta(g) > 0).all()
    assert beta(g)[0] == pytest.approx(float(alpha(g)[0]), abs=1e-12)


@given(nonzero)
@example(torch.tensor([2.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
@example(torch.tensor([0.7, 0.1, 0.3, 0.9, 0.0], dtype=torch.float64))
def test_omega_is_what_its_probabilities_give(g):
    gains = omega(g)
    assert (gains <= 1).all()
    assert (gains.diff() >= -1e-12).all()
    held = g[g != 0]
    assert (gains[len(held) - 1 :] == 1).all()
    for count in range(1, len(g) + 1):
        p = probabilities(g, count)
        assert ((p >= 0) & (p <= 1)).all()
        assert not p[g == 0].any()
        assert float(p.sum()) == pytest.approx(min(count, len(held)), rel=1e-12)
        moment = (held.square() / p[g != 0]).sum()
        assert float(gains[count - 1]) == pytest.approx(float(g.square().sum() / moment), rel=1e-9)


@fewer
@given(nonzero, st.floats(0, 1), st.data())
def test_no_other_probabilities_gain_more(g, share, data):
    """Uniform ones gain T / d; those in between are in between."""
    count = data.draw(st.integers(1, len(g)))
    best = float(omega(g)[count - 1])
    assert best >= count / len(g) - 1e-12
    mixed = share * probabilities(g, count) + (1 - share) * count / len(g)
    moments = torch.where(g == 0, 0.0, g.square() / mixed).nan_to_num(posinf=float("inf"))
    assert best >= float(g.square().sum() / moments.sum()) - 1e-9


@fewer
@given(nonzero, st.data())
def test_probabilities_are_in_proportion_to_magnitudes_up_to_one(g, data):
    count = data.draw(st.integers(1, len(g)))
    p = probabilities(g, count)
    chance = (p > 0) & (p < 1 - 1e-12)
    if chance.any():
        rates = p[chance] / g[chance].abs()
        assert float(rates.max()) == pytest.approx(float(rates.min()), rel=1e-9)
        assert (rates[0] * g[p == 1].abs() >= 1 - 1e-9).all()


@fewer
@given(vectors)
def test_qsgd_count_is_the_first_that_reaches_the_norm(g):
    magnitudes, norm = sorted(g.abs().tolist(), reverse=True), float(g.norm())
    count = qsgd_count(g)
    assert sum(magnitudes[:count]) >= norm * (1 - 1e-12)
    assert count == 1 or sum(magnitudes[: count - 1]) <= norm * (1 + 1e-12)


@every_measure
@fewer
@given(g=vectors, power=st.sampled_from([-1000, -400, 400, 1000]))
def test_gains_do_not_depend_on_scale_sign_or_order(measure, g, power):
    assert measure(-g.flip(0) * 2.0**10).tolist() == pytest.approx(measure(g).tolist(), rel=1e-12)
    moderate = g.where(g.abs() > 1e-3, 0.0)
    assert measure(moderate * 2.0**power).tolist() == pytest.approx(measure(moderate).tolist(), rel=1e-12)


# The choice, against a loop over all counts in fractions.


def _exact_gains(g: list[int], measure: str) -> list[Fraction]:
    a = sorted((abs(v) for v in g), reverse=True)
    total, gains = sum(v * v for v in a), []
    for t in range(1, len(a) + 1):
        if measure == "alpha":
            gains.append(Fraction(sum(v * v for v in a[:t]), total))
        elif measure == "beta":
            gains.append(Fraction(sum(a[:t]) ** 2, t * total))
        elif t >= sum(v > 0 for v in a):
            gains.append(Fraction(1))
        else:
            m = next(m for m in range(t) if (t - m) * a[m] <= sum(a[m:]))
            gains.append(total / (sum(v * v for v in a[:m]) + Fraction(sum(a[m:]) ** 2, t - m)))
    return gains


def _exact_cost(cost, bits: Fraction) -> Fraction:
    if isinstance(cost, Packets):
        packets = ceil(bits / 8 / Fraction(cost.payload_bytes))
        return Fraction(cost.per_packet) * packets + Fraction(cost.fixed)
    if isinstance(cost, Seconds):
        return Fraction(cost.latency_seconds) + bits / Fraction(cost.bits_per_second)
    return Fraction(cost.fixed_bits) + Fraction(cost.per_bit) * bits if isinstance(cost, Affine) else bits


amounts = st.integers(0, 200).map(lambda v: v / 8)
payloads = st.integers(1, 400).map(lambda v: v / 8)
any_cost = st.one_of(
    st.just(Bits()),
    st.builds(Affine, fixed_bits=amounts, per_bit=st.sampled_from([0.5, 1.0, 3.0])),
    st.builds(Packets, payload_bytes=payloads, per_packet=payloads, fixed=amounts),
    st.builds(Seconds, latency_seconds=amounts, bits_per_second=payloads),
)
sizes = st.one_of(
    st.builds(Size.pairs, st.integers(1, 100)),
    st.builds(Size.signs, st.integers(1, 100)),
    st.builds(Size, fixed_bits=amounts, entry_bits=payloads),
    st.builds(Size, fixed_bits=amounts, entry_bits=payloads, among=st.integers(14, 2000)),
)


def _coded(among: int, count: int) -> int:
    return position_bits(among, count, best_width(among, count)) if among else 0


@pytest.mark.parametrize("measure", MEASURES)
@given(g=whole, size=sizes, cost=any_cost, data=st.data())
def test_the_choice_is_that_of_a_loop_over_all_counts(measure, g, size, cost, data):
    floor = data.draw(st.integers(1, len(g)))
    ceiling = data.draw(st.integers(floor, len(g)))
    exact = {}
    for t, gain in enumerate(_exact_gains(g, measure), start=1):
        bits = Fraction(size.fixed_bits) + t * Fraction(size.entry_bits) + _coded(size.among, t)
        exact[t] = (gain, _exact_cost(cost, bits))
    best = max(range(floor, ceiling + 1), key=lambda t: (exact[t][0] / exact[t][1], -t))
    gains = MEASURES[measure](torch.tensor(g, dtype=torch.float64))
    choice = choose(gains, size, cost, floor=floor, ceiling=ceiling)
    assert choice.count == best
    assert choice.gain == pytest.approx(float(exact[best][0]), rel=1e-12)
    assert choice.cost == pytest.approx(float(exact[best][1]), rel=1e-12)


@fewer
@given(nonzero)
def test_without_overhead_one_entry_is_best(g):
    """Of equal entries each is worth its bits: they tie, and the smallest count is taken."""
    for gain in (alpha(g), omega(g)):
        assert choose(gain, Size.pairs(len(g)), Bits()).count == 1
    assert choose(alpha(torch.ones(50)), Size.pairs(50), Bits()).count == 1


def test_zeros_do_not_fill_a_packet():
    g = torch.tensor([5.0, 0.0, -4.0, 0.0, 3.0, 0.0, 0.0, 0.0])
    packet = Packets(payload_bytes=24, per_packet=30)
    assert choose(alpha(g), Size.pairs(8), packet).count == 3
    assert choose(alpha(g), Size.pairs(8), packet, floor=4).count == 4
    assert choose(alpha(torch.zeros(8)), Size.pairs(8), packet, floor=2).count == 2


def test_few_counts_are_looked_at_where_packets_make_the_others_pointless():
    g = torch.linspace(1, 2, 100_000)
    looked_at = candidates(alpha(g), Size.pairs(100_000), Packets.ethernet_tcp())
    assert looked_at[-1] == 100_000
    assert looked_at.numel() < 1500
    # Gains that fall must all be looked at.
    assert candidates(beta(torch.logspace(0, -3, 100)), Size.signs(100), Packets.ethernet_tcp()).numel() == 100
    # So must all where hardly an entry fits a step.
    assert (
        candidates(alpha(torch.ones(100)), Size.pairs(100), Packets(payload_bytes=1e-12, per_packet=1)).numel()
        == 100
    )


@pytest.mark.parametrize(("payload_bytes", "most"), [(0.1, [8, 16, 23, 32]), (0.3, [23, 47, 72, 95])])
def test_what_fits_is_what_the_cost_says_fits(payload_bytes, most):
    """3 * 0.8 / 0.1 rounds to 24, yet 24 entries are more than 3 packets; 3 * 2.4 / 0.1 rounds to less than 72."""
    size, cost = Size(fixed_bits=0, entry_bits=0.1), Packets(payload_bytes=payload_bytes, per_packet=1)
    spent = cost.of(size.bits(torch.arange(1, 98)))
    assert [int((spent <= packets).sum()) for packets in (1, 2, 3, 4)] == most
    assert set(most) <= set(candidates(alpha(torch.ones(97)), size, cost).tolist())


# Edges.


@every_measure
def test_a_gradient_of_zero_misses_nothing(measure):
    assert measure(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
    assert probabilities(torch.zeros(3), 2).tolist() == [0.0, 0.0, 0.0]
    assert qsgd_count(torch.zeros(3)) == 1


@every_measure
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_poisoned_gradient_has_no_gain_and_takes_the_floor(measure, bad):
    gain = measure(torch.tensor([1.0, bad, 0.0, 2.0]))
    assert gain.isnan().all()
    for cost in (Bits(), Packets.ethernet_tcp()):
        assert choose(gain, Size.pairs(4), cost, floor=2).count == 2
    assert qsgd_count(torch.tensor([1.0, bad, 0.0, 2.0])) == 1


@every_measure
def test_one_entry_is_everything(measure):
    assert measure(torch.tensor([-3e-30])).tolist() == [1.0]
    assert probabilities(torch.tensor([-3e-30]), 1).tolist() == [1.0]


@every_measure
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_any_precision_is_read_as_it_is_and_reckoned_in_double(measure, dtype):
    g = torch.tensor([0.3, -7.0, 0.0, 1e-4, 2.5, 2.5]).to(dtype)
    gain = measure(g.requires_grad_())
    assert gain.dtype == torch.float64
    assert not gain.requires_grad
    assert torch.equal(gain, measure(g.detach().double()))


def test_numbers_too_far_apart_for_double_are_zero_beside_the_largest():
    g = torch.tensor([1e300, 1e-300, 1e-300], dtype=torch.float64)
    assert omega(g).tolist() == alpha(g).tolist() == [1.0, 1.0, 1.0]
    assert probabilities(g, 2).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("g", [torch.ones(2, 2), torch.empty(0), torch.tensor(1.0), torch.ones(3).int()], ids=str)
def test_what_is_no_vector_of_floats_is_refused(g):
    for measure in (alpha, beta, omega, qsgd_count, lambda g: probabilities(g, 1)):
        with pytest.raises(ValueError, match=r"g must be a vector of floats .* got shape .*g\.flatten\(\)"):
            measure(g)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None])
def test_a_count_is_a_whole_number_over_zero(count):
    with pytest.raises(ValueError, match=r"count must be a whole number of 1 or more, got"):
        probabilities(torch.ones(3), count)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"floor": 0}, "floor must be a whole number of 1 or more, got 0"),
        ({"ceiling": 2.0}, r"ceiling must be a whole number of 1 or more, got 2\.0"),
        ({"floor": 3, "ceiling": 2}, r"in 1\.\.4, .*got 3 and 2\. For all counts"),
        ({"ceiling": 5}, r"in 1\.\.4, .*got 1 and 5\. For all counts"),
        ({"floor": 5}, r"in 1\.\.4, .*got 5 and None\. For all counts"),
    ],
)
def test_limits_that_leave_no_count_are_refused(limits, said):
    with pytest.raises(ValueError, match=said):
        choose(alpha(torch.ones(4)), Size.pairs(4), Bits(), **limits)


def test_gains_are_a_vector():
    for gain in (torch.ones(2, 2), torch.empty(0)):
        with pytest.raises(ValueError, match=r"gain must be a vector .*got shape .*Write alpha\(g\)"):
            choose(gain, Size.pairs(4), Bits())


def test_an_efficiency_is_gain_for_each_unit_of_cost():
    assert Choice(count=2, gain=0.75, cost=3.0).efficiency == 0.25


def test_a_link_that_is_still_to_be_measured_cannot_choose():
    with pytest.raises(ValueError, match="the tuner measures them"):
        choose(alpha(torch.ones(4)), Size.pairs(4), Seconds())
