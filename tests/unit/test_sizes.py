"""Sizes: what our wire's positions take, to the bit, and how many entries fit so many bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import segments_of
from laconic.coding import Form, best_width, position_bits
from laconic.sizes import Size
from laconic.types import Plan
from laconic.wire import Frame

among_many = st.integers(1, 10**10)
FORMS = [Form(kind="float"), Form(kind="bfloat16", bits=16), Form(kind="line", bits=4), Form(kind="table", bits=1)]
some = settings(max_examples=40)
value_bits = st.sampled_from([0.5, 1, 2, 4, 8.5, 16, 32, 64])


def _coded(among: int, count: int) -> int:
    return position_bits(among, count, best_width(among, count))


def _numbers(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("among", [1, 2, 3, 7, 64, 65, 300])
def test_positions_take_what_the_wire_gives_them_and_more_take_more(among):
    size = Size(fixed_bits=100, entry_bits=0.5, among=among)
    counts = torch.arange(among + 1)
    bits = size.bits(counts)
    assert bits.tolist() == [100 + 0.5 * t + _coded(among, t) for t in range(among + 1)]
    assert bool((bits.diff() > 0).all())


@some
@given(among=among_many, share=st.floats(0, 1), value=value_bits)
def test_so_it_is_of_large_vectors(among, share, value):
    count = max(1, round(share * among))
    size = Size(fixed_bits=64, entry_bits=value, among=among)
    bits = size.bits(torch.tensor([count - 1, count]))
    assert bits.tolist() == [64 + value * t + _coded(among, t) for t in (count - 1, count)]
    assert bits[0] < bits[1]


@some
@given(count=st.integers(1, 10**7), factor=st.integers(1, 10**4))
def test_no_other_width_would_take_less(count, factor):
    among = count * factor
    least = min(position_bits(among, count, width) for width in range(40))
    assert float(Size(fixed_bits=0, entry_bits=1, among=among).bits(_numbers(count))) == count + least


@some
@given(among=st.integers(1, 10**8), share=st.floats(0, 1), form=st.sampled_from(FORMS), known=st.integers(0, 999))
def test_a_message_is_as_large_as_that_but_for_padding(among, share, form, known):
    room = max(1, round(share * among))
    plan = Plan(known=slice(0), known_sizes=(known,), choosing=segments_of([among]), rooms=(room,), counted=True)
    frame = Frame(plan=plan, form=form, dtype=torch.float32, notes=5, spectrum=True)
    size = Size(fixed_bits=8 * frame.fixed, entry_bits=frame.value_bits, among=among)
    assert frame.total <= float(size.bits(_numbers(room))) / 8 <= frame.total + 24


@pytest.mark.parametrize("among", [0, 1, 5, 64, 300])
@pytest.mark.parametrize("value", [0.1, 1, 3.7, 32])
def test_the_most_that_fit_are_those_of_a_loop(among, value):
    size = Size(fixed_bits=10, entry_bits=value, among=among)
    there = size.bits(torch.arange((among or 300) + 1))
    for bits in (there[:-1], there[:-1] + 0.01, there[1:] - 0.01, _numbers(0, 5, 9.99, 10)):
        fits = [max(0, int((there <= b).sum()) - 1) for b in bits]
        assert size.most(bits).tolist() == fits


@some
@given(among=among_many, share=st.floats(0, 1), value=value_bits)
def test_what_fits_exactly_fits_and_a_bit_less_does_not(among, share, value):
    count = max(1, round(share * among))
    size = Size(fixed_bits=64, entry_bits=value, among=among)
    full = float(size.bits(_numbers(count)))
    assert size.most(_numbers(full, full - 0.25)).tolist() == [count, count - 1]


def test_all_that_there_is_is_the_most():
    size = Size(fixed_bits=64, entry_bits=4, among=1000)
    assert size.most(_numbers(float("inf"), 1e9, 0.0, -float("inf"))).tolist() == [1000, 1000, 0, 0]
    assert size.most(torch.tensor(float("inf"))).tolist() == 1000
    assert Size.pairs(1000).most(_numbers(float("inf"), -5.0)).tolist() == [float("inf"), 0]


def test_between_whole_counts_a_message_grows_too():
    size = Size(fixed_bits=0, entry_bits=32, among=100_000)
    bits = size.bits(torch.linspace(0, 500, 5001, dtype=torch.float64))
    assert bool((bits.diff() > 0).all())


def test_the_denser_the_less_a_position_costs_down_to_a_bitmap():
    size = Size(fixed_bits=0, entry_bits=32, among=1_000_000)
    counts = _numbers(100, 1000, 10_000, 100_000, 500_000, 1_000_000)
    assert (size.bits(counts) / counts - 32).tolist() == pytest.approx(
        [15.21, 11.951, 8.54, 5.125, 2.0, 1.0], abs=0.1
    )


def test_sizes_are_checked():
    for make in (lambda: Size(fixed_bits=0, entry_bits=0), lambda: Size(fixed_bits=0, entry_bits=-1)):
        with pytest.raises(ValueError, match=r"entry_bits must be .*, got .*has 32"):
            make()
    with pytest.raises(ValueError, match=r"among must be a whole number of 0 or more, got 2\.5\. Where entry_bits"):
        Size(fixed_bits=0, entry_bits=32, among=2.5)
    for make in (Size.pairs, Size.signs):
        with pytest.raises(ValueError, match="d must be a whole number"):
            make(0)
        with pytest.raises(ValueError, match="value_bits must be a whole number"):
            make(8, value_bits=0)
