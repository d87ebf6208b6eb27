"""Quantisers of other papers, worked out by hand from their formulas."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from laconic import kernels
from laconic.codecs import Binned, Linear, OneBit, Qsgd, SignMean, TernGrad
from laconic.coding import Form
from letters import alone


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_sparseloco_bins_are_six_deviations_over_four_wide(shift):
    """[-3, -1, 1, 3]: deviation sqrt(5), width 3.354, so x / width + 2 = 1.106, 1.702, 2.298, 2.894."""
    values = torch.tensor([-3.0, -1.0, 1.0, 3.0]) + shift
    coded = Binned().encode(values, torch.tensor([4]), seed=0)
    assert coded.codes.tolist() == [1, 2, 2, 3]
    assert coded.numbers.tolist() == [[0.0, shift - 3.0, shift, shift + 3.0]]
    assert alone(Binned(), values.tolist()) == [shift - 3.0, shift, shift, shift + 3.0]


def test_qsgd_levels_that_are_whole_need_no_chance():
    """[3, -4] has norm 5; of 5 levels they are 3 and 4."""
    assert [alone(Qsgd(levels=5), [3.0, -4.0], seed) for seed in range(20)] == [[3.0, -4.0]] * 20


def test_qsgd_of_one_level_sends_the_norm_or_nothing():
    """0.6 and 0.8 of a level: the norm with these chances."""
    read = torch.tensor([alone(Qsgd(levels=1), [3.0, -4.0], seed) for seed in range(500)])
    assert {tuple(pair) for pair in read.tolist()} == {(0.0, 0.0), (0.0, -5.0), (5.0, 0.0), (5.0, -5.0)}
    up = (read != 0).double().mean(0)
    assert torch.all((up - torch.tensor([0.6, 0.8])).abs() < 5 * torch.tensor([0.24, 0.16]).sqrt() / sqrt(500))


def test_terngrad_clips_at_so_many_deviations():
    """Seven zeros and an 8: mean 1, variance 8 - 1, so that 2.5 deviations are 6.614."""
    for seed in range(20):
        assert alone(TernGrad(), [0.0] * 7 + [8.0], seed) == [0.0] * 7 + [pytest.approx(2.5 * sqrt(7), rel=1e-6)]


def test_terngrad_sends_the_largest_or_nothing():
    """[1, -2, 4]: mean 1, variance 7 - 1; 2.5 deviations are over 4, which is the scale and always sent."""
    read = {tuple(alone(TernGrad(), [1.0, -2.0, 4.0], seed)) for seed in range(100)}
    assert read == {(a, b, 4.0) for a in (0.0, 4.0) for b in (0.0, -4.0)}


def test_one_bit_sgd_sends_the_mean_of_either_side():
    """Zero counts as not negative."""
    assert alone(OneBit(), [1.0, -3.0, 2.0, -1.0]) == [1.5, -2.0, 1.5, -2.0]
    assert alone(OneBit(), [0.0, 4.0, -2.0]) == [2.0, 2.0, -2.0]
    assert alone(OneBit(), [1.0, 2.0]) == [1.5, 1.5]


def test_ef_sign_sends_the_mean_magnitude_with_the_sign():
    """|1| + |-3| + |2| = 6, over 3 values."""
    assert alone(SignMean(), [1.0, -3.0, 2.0]) == [2.0, -2.0, 2.0]


def test_linear_begins_at_the_least_magnitude():
    """[1, -3, 2.4, 1.9] in 2 bits: 1 or 3. In 4 bits steps of 2/7: 2.4 is 4.9 steps up, 1.9 is 3.15."""
    assert alone(Linear(bits=2), [1.0, -3.0, 2.4, 1.9]) == [1.0, -3.0, 3.0, 1.0]
    assert alone(Linear(bits=4), [1.0, -3.0, 2.4, 1.9]) == pytest.approx([1.0, -3.0, 1 + 10 / 7, 1 + 6 / 7])


def test_four_codes_of_two_bits_share_a_byte_the_first_lowest():
    codes = torch.tensor([1, 2, 3, 0, 3], dtype=torch.uint8)
    assert kernels.pack_codes(codes, 2).tolist() == [1 | 2 << 2 | 3 << 4, 3]


def test_a_sign_stands_over_its_magnitude():
    line = torch.tensor([[1.0, 0.5]])
    read = kernels.dequantise(
        torch.tensor([0, 7, 8, 15], dtype=torch.uint8), torch.tensor([4]), line, Form(kind="line", bits=4)
    )
    assert read.tolist() == [1.0, 4.5, -1.0, -4.5]
