"""The fast kernels see, round and read values as the definition does: codes to the bit, sums but for order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from contracts.spans import ends_of, values_of
from contracts.twins import FAMILIES, NEEDS, SEEDS, Twin, numpy_may_warn, same, twin_of
from laconic.coding import Form
from laconic.kernels import reference_coding
from laconic.kernels.reference_coding import BELOW_COUNT, COUNT, LARGEST, LEAST, MAGNITUDES, SQUARES

pytestmark = numpy_may_warn
SPANS: dict[str, st.SearchStrategy] = {
    "sizes": st.lists(st.sampled_from([0, 1, 2, 63, 200]), max_size=4),
    "padding": st.sampled_from([0, 5]),
    "family": st.sampled_from([*FAMILIES, "none"]),
    "seed": SEEDS,
}
CHANCE = st.sampled_from([None, 0, 1, -3, 2**31, 2**32 - 1, 2**40 + 2**31 + 9])
# What the definition's sums and the twins' may differ by: a rounding of 1e-16 an entry, of a few thousand of them.
TOLERANCE = 1e-12
every_float = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@pytest.fixture(scope="module", params=NEEDS)
def twin(request) -> Twin:
    return twin_of(request.param)


def _check_statistics(twin: Twin, values: Tensor, ends: Tensor) -> Tensor:
    expected = reference_coding.span_statistics(values, ends)
    got = twin.module.coding.span_statistics(values.to(twin.device), ends.to(twin.device)).cpu()
    assert got.shape == expected.shape
    assert got.dtype == torch.float64
    exact = [LEAST, LARGEST, BELOW_COUNT, COUNT]
    assert same(got[:, exact], expected[:, exact])
    scale = expected[:, MAGNITUDES].nan_to_num(0.0, posinf=0.0).unsqueeze(1).expand(-1, 6).clone()
    scale[:, SQUARES - MAGNITUDES] = expected[:, SQUARES].nan_to_num(0.0, posinf=0.0)
    finite = expected[:, MAGNITUDES:].isfinite()
    assert same(torch.where(finite, 0.0, got[:, MAGNITUDES:]), torch.where(finite, 0.0, expected[:, MAGNITUDES:]))
    away = (got - expected)[:, MAGNITUDES:].abs()
    assert (~finite | (away <= TOLERANCE * scale)).all()
    return got


@every_float
def test_statistics_are_the_definitions_but_for_the_order_of_sums(twin, dtype):
    def check(sizes, padding, family, seed):
        values = values_of(twin, family, sum(sizes) + padding, seed, dtype)
        _check_statistics(twin, values, ends_of(sizes))

    twin.holds(check, 40, **SPANS)


def test_statistics_depend_on_nothing_beside_a_span(twin):
    values, sizes = twin.draw("normal", 5000, 1, torch.float32), [700, 1500]
    alone = _check_statistics(twin, values[:2200].contiguous(), ends_of(sizes))
    assert same(_check_statistics(twin, values, ends_of(sizes)), alone)
    assert same(_check_statistics(twin, values[700:2200].contiguous(), ends_of(sizes[1:])), alone[1:])


def test_one_entry_that_is_no_number_is_seen_in_its_span(twin):
    values = torch.arange(-3.0, 3.0)
    for bad, at in ((torch.nan, 2), (torch.inf, 3), (-torch.inf, 5)):
        values[at] = bad
        _check_statistics(twin, values, ends_of([1, 3, 2]))


def test_statistics_of_a_span_that_programs_share_and_come_back_to(twin):
    _check_statistics(twin, twin.draw("normal", 17_500, 1, torch.float32), ends_of([17_450]))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@every_float
def test_values_are_rounded_to_the_definitions_codes(twin, dtype, bits):
    def check(sizes, padding, family, seed, chance, still):
        values, ends = values_of(twin, family, sum(sizes) + padding, seed, dtype), ends_of(sizes)
        numbers = torch.rand(len(sizes), 2, generator=torch.Generator().manual_seed(seed)).to(dtype) / bits
        # A line without length has one point.
        numbers[still:, 1] = 0
        expected = reference_coding.quantise_line(values, ends, numbers, bits=bits, seed=chance)
        there = (t.to(twin.device) for t in (values, ends, numbers))
        got = twin.module.coding.quantise_line(*there, bits=bits, seed=chance)
        assert got.dtype == torch.uint8
        assert torch.equal(got.cpu(), expected)

    twin.holds(check, 20, **SPANS, chance=CHANCE, still=st.integers(1, 5))


@pytest.mark.parametrize("kind", ["line", "table"])
@every_float
def test_codes_stand_for_what_the_definition_says(twin, dtype, kind):
    def check(sizes, padding, family, seed, bits):
        form, source, ends = Form(kind=kind, bits=bits), torch.Generator().manual_seed(seed), ends_of(sizes)
        codes = torch.randint(0, 2**bits, (sum(sizes) + padding,), generator=source, dtype=torch.uint8)
        numbers = values_of(twin, family, len(sizes) * form.numbers, seed, dtype).view(len(sizes), form.numbers)
        expected = reference_coding.dequantise(codes, ends, numbers, form)
        got = twin.module.coding.dequantise(*(t.to(twin.device) for t in (codes, ends, numbers)), form).cpu()
        assert same(got[: sum(sizes)], expected[: sum(sizes)])
        assert not got[sum(sizes) :].any()
        assert got.dtype == dtype

    twin.holds(check, 30, **SPANS, bits=st.sampled_from([1, 2, 4, 8]))


def test_many_spans_are_found_by_all_that_look_for_them(twin):
    sizes, form = [i * 5 % 7 for i in range(700)], Form(kind="line", bits=4)
    values, ends = twin.draw("normal", sum(sizes) + 9, 1, torch.float32), ends_of(sizes)
    if not twin.slow:
        _check_statistics(twin, values, ends)
    numbers = torch.rand(700, 2, generator=torch.Generator().manual_seed(1)) / 4
    codes = reference_coding.quantise_line(values, ends, numbers, bits=4, seed=9)
    there = [t.to(twin.device) for t in (values, ends, numbers)]
    assert torch.equal(twin.module.coding.quantise_line(*there, bits=4, seed=9).cpu(), codes)
    got = twin.module.coding.dequantise(codes.to(twin.device), *there[1:], form)
    assert same(got.cpu(), reference_coding.dequantise(codes, ends, numbers, form))
