"""Costs of a message: the formulas, their units, and what is refused."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic import costs
from laconic.costs import Affine, Bits, Packets, Seconds

LINK = Seconds(latency_seconds=2e-3, bits_per_second=1e6)
ALL = [Bits(), Affine(fixed_bits=64, per_bit=0.5), Packets.ethernet_tcp(), Packets.cat_paper(), LINK]
every_cost = pytest.mark.parametrize("cost", ALL, ids=str)


def _of(cost, bits):
    return float(cost.of(torch.tensor([bits]))[0])


@every_cost
@given(bits=st.lists(st.integers(1, 10**12), min_size=2, max_size=6))
def test_more_bits_never_cost_less_and_no_message_is_free(cost, bits):
    spent = cost.of(torch.tensor(sorted(bits)))
    assert spent.dtype == torch.float64
    assert (spent > 0).all()
    assert (spent.diff() >= 0).all()


@every_cost
@given(bits=st.integers(0, 10**9))
def test_a_cost_jumps_where_it_says_and_nowhere_else(cost, bits):
    if cost.step_bits is None:
        assert _of(cost, bits + 1) > _of(cost, bits)
    else:
        inside = math.ceil(bits / cost.step_bits) == math.ceil((bits + 1) / cost.step_bits)
        assert (_of(cost, bits + 1) == _of(cost, bits)) == inside


def test_the_formulas():
    assert _of(Bits(), 35) == 35
    assert _of(Affine(fixed_bits=100, per_bit=3), 35) == 205
    assert _of(LINK, 500_000) == pytest.approx(0.502, abs=1e-15)
    assert [_of(Packets(payload_bytes=10, per_packet=12, fixed=5), b) for b in (1, 80, 81, 160)] == [17, 17, 29, 29]
    assert [_of(Packets(payload_bytes=8.75, per_packet=10), b) for b in (70, 71)] == [10, 20]


def test_the_units():
    assert [cost.unit for cost in ALL] == ["bits", "bits", "bytes", "bytes", "seconds"]
    assert [cost.name for cost in ALL] == ["bits", "affine", "packets", "packets", "seconds"]


def test_a_full_packet_is_payload_and_headers():
    assert _of(Packets.ethernet_tcp(), 8 * 1460) == 1518
    assert _of(Packets.ethernet_udp(), 8 * 1472) == 1526
    assert _of(Packets.ieee_802_15_4(), 8 * 110) == 133
    assert _of(Packets.ieee_802_15_4(overhead_bytes=82), 8 * 51 + 1) == 266
    assert _of(Packets.cat_paper(), 8 * 512) == 576 + 64
    assert _of(Packets.cat_paper(), 8 * 512 + 1) == 2 * 576 + 64


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bits", Bits()),
        ("packets", Packets.ethernet_tcp()),
        ("udp", Packets.ethernet_udp()),
        ("802.15.4", Packets.ieee_802_15_4()),
        ("paper", Packets.cat_paper()),
        ("seconds", Seconds()),
    ],
)
def test_a_name_is_enough(name, wanted):
    assert costs.by_name(name) == wanted
    assert name in costs.COSTS


def test_every_name_gives_a_cost():
    assert len({repr(costs.by_name(name)) for name in costs.COSTS}) == len(costs.COSTS) == 6


@pytest.mark.parametrize("name", ["joules", "", None, 3])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=r"no cost is called .* bits, packets, udp, 802\.15\.4, paper, seconds\.$"):
        costs.by_name(name)


def test_a_link_without_numbers_is_to_be_measured():
    measured = Seconds()
    assert measured.measured
    assert not LINK.measured
    assert measured.at(2e-3, 1e6) == LINK
    assert LINK.at(0.0, 5).of(torch.tensor([10])).tolist() == [2.0]
    with pytest.raises(ValueError, match=r"the tuner measures them.* write Seconds\(latency_seconds="):
        measured.of(torch.tensor([1]))


def test_half_a_link_is_refused():
    for half in ({"latency_seconds": 1e-3}, {"bits_per_second": 1e9}):
        with pytest.raises(ValueError, match=r"a latency and a rate, got .*None.*Give both, or neither"):
            Seconds(**half)


NEEDED = {
    Affine: {"fixed_bits": 1.0},
    Packets: {"payload_bytes": 1.0, "per_packet": 1.0},
    Seconds: {"latency_seconds": 0.0, "bits_per_second": 1.0},
}
POSITIVE = {"payload_bytes", "bits_per_second"}
FIELDS = [(cls, field.name) for cls in NEEDED for field in fields(cls)]


@pytest.mark.parametrize(("cls", "field"), FIELDS)
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "1", True, [1.0]], ids=repr)
def test_a_bad_constant_is_refused_with_what_it_got_and_what_to_write(cls, field, value):
    with pytest.raises(ValueError, match=rf"{field} must be a finite number .*, got .*\. \w.*\.") as refused:
        cls(**{**NEEDED[cls], field: value})
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("cls", "field"), FIELDS)
def test_zero_is_a_number_but_no_payload_and_no_rate(cls, field):
    settings = {**NEEDED[cls], field: 0.0}
    if field in POSITIVE:
        with pytest.raises(ValueError, match=rf"{field} must be a finite number over 0, got 0\.0\."):
            cls(**settings)
    else:
        # Without what a packet costs, the message must.
        made = cls(**settings, **({"fixed": 1.0} if field == "per_packet" else {}))
        assert getattr(made, field) == 0.0


def test_a_message_that_costs_nothing_is_refused():
    with pytest.raises(ValueError, match=r"must cost something.*Bits\(\)"):
        Affine(fixed_bits=0, per_bit=0)
    with pytest.raises(ValueError, match=r"must cost something.*per_packet=1"):
        Packets(payload_bytes=1, per_packet=0)


@pytest.mark.parametrize("overhead", [-1, 133, math.nan, None])
def test_an_overhead_that_leaves_no_payload_is_refused(overhead):
    with pytest.raises(ValueError, match=r"overhead_bytes must be .*, got .*It is 23 to 82"):
        Packets.ieee_802_15_4(overhead_bytes=overhead)


@every_cost
def test_a_cost_is_data(cost):
    assert eval(repr(cost)) == cost
    with pytest.raises(FrozenInstanceError):
        cost.fixed = 3.0
