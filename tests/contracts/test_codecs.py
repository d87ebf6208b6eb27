"""The exam of codecs: nothing is lost, what is said to be sent is read, and errors keep to their formulas."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, sqrt

import pytest
import torch
from torch import Tensor

from contracts.registry import every_codec
from contracts.vectors import DTYPES, normal, same_bits, segments_of
from covering import crossed, in_turn
from laconic import kernels
from laconic.codecs import BFloat16, Binned, Exact, Linear, Qsgd, TernGrad
from laconic.coding import Codec
from laconic.exchanges.lettering import give_back_
from laconic.types import Payload
from letters import Letter, Part, alone, decoded

every_coding = pytest.mark.parametrize(("codec", "dtype"), in_turn(every_codec(), DTYPES))
# Some spans are empty, one has a single value.
SPANS = (40, 0, 1, 300, 0, 7)
ENDS = torch.tensor(SPANS).cumsum(0)


def by_chance(codec: Codec) -> bool:
    return isinstance(codec, Qsgd | TernGrad) or (isinstance(codec, Linear) and codec.rounding == "stochastic")


def spans_of(values: Tensor) -> list[Tensor]:
    return list(values.split(SPANS))


@every_coding
def test_codes_and_numbers_have_the_form_that_is_promised(codec, dtype):
    values = normal(sum(SPANS), 1, dtype)
    before, form = values.clone(), codec.form
    coded = codec.encode(values, ENDS, seed=5)
    assert same_bits(values, before)
    assert coded.codes.shape == values.shape
    assert coded.numbers.shape == (len(SPANS), form.numbers)
    assert coded.numbers.dtype == dtype
    assert coded.codes.dtype == {"float": dtype, "bfloat16": torch.bfloat16}.get(form.kind, torch.uint8)
    if form.kind in ("line", "table"):
        assert int(coded.codes.max()) < 2**form.bits
        packed = kernels.pack_codes(coded.codes, form.bits)
        assert packed.numel() == -(-values.numel() * form.bits // 8)
        assert torch.equal(kernels.unpack_codes(packed, form.bits, values.numel()), coded.codes)


def _letter(codec: Codec, dtype: torch.dtype) -> tuple[Letter, Tensor]:
    """A message of a vector's entries: forty that go whole, then every third one."""
    x = normal(1000, 3, dtype)
    at = range(40, 1000, 3)
    part = Part(size=960, room=len(at), chosen=tuple(p - 40 for p in at))
    letter = Letter(parts=(part,), known=(30, 0, 10), values=[*x[:40].tolist(), *x[40::3].tolist()], dtype=dtype)
    return replace(letter, codec=codec, seed=9), x


@every_coding
def test_what_is_sent_and_what_is_given_back_is_what_was_there(codec, dtype):
    letter, x = _letter(codec, dtype)
    taken = replace(letter.payload, positions=letter.payload.positions + 40)
    left = x.clone()
    left[:40] = 0
    left[taken.positions] = 0
    sent = replace(letter.pack().sent, positions=taken.positions)
    give_back_(left, letter.plan, taken, sent)
    arrived = torch.zeros_like(x)
    arrived[:40] = sent.known
    arrived[taken.positions] += sent.values
    assert torch.all((left + arrived - x).abs() <= 2 * torch.finfo(dtype).eps * (arrived.abs() + x.abs()))
    owed = left[:40].any() or left[taken.positions].any()
    assert bool(owed) is not isinstance(codec, Exact)


@every_coding
def test_what_packing_says_is_what_the_spans_are_read_as(codec, dtype):
    letter, _ = _letter(codec, dtype)
    packed = letter.pack()
    (message,) = letter.read(packed.message)
    taken: Payload = letter.payload
    ends = torch.tensor([30, 30, 40, 40 + taken.values.numel()])
    expected = decoded(codec, torch.cat([taken.known, taken.values]), ends, seed=9)
    for read in (packed.sent, message.payload):
        assert same_bits(torch.cat([read.known, read.values]), expected)


@every_coding
def test_a_seed_gives_the_same_bits_again(codec, dtype):
    values = normal(sum(SPANS), 1, dtype)
    first, again, other = (decoded(codec, values, ENDS, seed) for seed in (5, 5, 6))
    assert same_bits(first, again)
    assert same_bits(first, other) is not by_chance(codec)


@pytest.mark.parametrize("codec", [c for c in every_codec() if by_chance(c)], ids=str)
def test_the_codecs_own_seed_is_another_draw(codec):
    values = normal(300, 1)
    ends = torch.tensor([300])
    assert not same_bits(decoded(codec, values, ends), decoded(replace(codec, seed=99), values, ends))


POISONS = [(nan,), (inf,), (-inf,), (nan, inf, -inf)]


@pytest.mark.parametrize(("codec", "poison", "dtype"), crossed(every_codec(), POISONS, DTYPES))
def test_what_is_not_finite_harms_no_other_span(codec, poison, dtype):
    sound = normal(sum(SPANS), 1, dtype)
    bad = sound.clone()
    bad[50 : 50 + len(poison)] = torch.tensor(poison, dtype=dtype)
    expected, read = (spans_of(decoded(codec, values, ENDS, seed=5)) for values in (sound, bad))
    for span, (one, other) in enumerate(zip(expected, read, strict=True)):
        assert span == 3 or same_bits(one, other)


@every_coding
@pytest.mark.parametrize("sizes", [(), (0,), (0, 0, 0)], ids=str)
def test_spans_may_be_empty(codec, dtype, sizes):
    coded = codec.encode(torch.empty(0, dtype=dtype), torch.tensor(sizes, dtype=torch.int64).cumsum(0), seed=0)
    assert coded.codes.numel() == 0
    assert torch.isfinite(coded.numbers).all()


@every_coding
def test_an_empty_span_among_others_shares_finite_numbers(codec, dtype):
    coded = codec.encode(normal(sum(SPANS), 1, dtype), ENDS, seed=0)
    assert torch.isfinite(coded.numbers).all()


@every_coding
def test_zeros_are_zeros(codec, dtype):
    assert alone(codec, [0.0, -0.0, 0.0], dtype=dtype) == [0.0] * 3


@every_coding
@pytest.mark.parametrize("value", [0.75, -0.75])
def test_values_that_are_all_equal_arrive_as_they_are(codec, dtype, value):
    """But for QSGD, whose levels are those of the norm."""
    read = alone(codec, [value] * 5, dtype=dtype)
    if isinstance(codec, Qsgd):
        step = 0.75 * sqrt(5) / codec.levels
        assert all(abs(v - value) <= step * 1.001 for v in read)
    else:
        assert read == [value] * 5


@every_coding
def test_unused_room_behind_changes_nothing_and_stands_for_nothing(codec, dtype):
    values = normal(sum(SPANS), 1, dtype)
    longer = torch.cat([values, torch.zeros(13, dtype=dtype)])
    read = decoded(codec, longer, ENDS, seed=5)
    assert same_bits(read[:-13], decoded(codec, values, ENDS, seed=5))
    assert read[-13:].tolist() == [0.0] * 13


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("rounding", "steps"), [("nearest", 0.5), ("stochastic", 1.0)])
def test_linear_errs_by_half_a_step_at_most_and_by_chance_by_one(bits, rounding, steps, dtype):
    values = normal(sum(SPANS), 1, dtype)
    read = decoded(Linear(bits=bits, rounding=rounding), values, ENDS)
    for span, arrived in zip(spans_of(values), spans_of(read), strict=True):
        if not span.numel():
            continue
        size = span.abs()
        step = (size.max() - size.min()) / (2 ** (bits - 1) - 1)
        assert torch.all((span - arrived).abs() <= steps * step + 4 * torch.finfo(dtype).eps * size.max())
        assert torch.equal(arrived.sign(), span.sign())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bfloat16_errs_by_a_256th_of_a_value_at_most(dtype):
    values = normal(2000, 1, dtype) * torch.logspace(-30, 30, 2000, dtype=dtype)
    read = decoded(BFloat16(), values, torch.tensor([2000]))
    assert torch.all((read - values).abs() <= 2.0**-8 * values.abs())
    assert alone(BFloat16(), [1e39, -1e39], dtype=torch.float64) == [
        torch.finfo(torch.bfloat16).max * s for s in (1, -1)
    ]


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_qsgd_errs_by_a_level_at_most(levels):
    values = normal(300, 1)
    read = decoded(Qsgd(levels=levels), values, torch.tensor([300]))
    assert torch.all((read - values).abs() <= values.norm() / levels * 1.0001)


def _drift(codec: Codec, values: Tensor, draws: int) -> Tensor:
    """How far the mean over many seeds is from the values, in standard errors: those of the draws themselves."""
    ends = torch.tensor([values.numel()])
    read = torch.stack([decoded(codec, values, ends, seed) for seed in range(draws)]).double()
    spread = read.std(0).clamp(min=1e-6 * float(values.abs().max()))
    return (read.mean(0) - values.double()).abs() / (spread / sqrt(draws))


@pytest.mark.parametrize(
    "codec",
    [
        *(Linear(bits=bits, rounding="stochastic") for bits in (2, 4, 8)),
        *(Qsgd(levels=levels) for levels in (1, 7, 127)),
        TernGrad(deviations=100.0),
    ],
    ids=str,
)
def test_what_is_rounded_by_chance_is_right_in_the_mean(codec):
    """Fixed seeds, forty values: 5 standard errors are far out for an unbiased draw."""
    assert torch.all(_drift(codec, normal(40, 2), 1000) < 5)


def test_nearest_rounding_would_not_pass_for_chance():
    assert torch.any(_drift(Linear(bits=4), normal(40, 2), 50) > 5)


def test_draws_of_neighbours_are_not_alike():
    """Of 4000 equal chances half come up, and a draw says nothing of the next one."""
    values = torch.cat([torch.full((4000,), 0.5), torch.tensor([0.0, 1.0])])
    up = decoded(Linear(bits=2, rounding="stochastic"), values, torch.tensor([4002]))[:4000].double()
    assert abs(float(up.mean()) - 0.5) < 5 * 0.5 / sqrt(4000)
    assert abs(float(((up[1:] - 0.5) * (up[:-1] - 0.5)).mean())) < 5 * 0.25 / sqrt(4000)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_bins_keep_each_spans_sum(bits):
    values = normal(sum(SPANS), 1, torch.float64)
    for span, read in zip(spans_of(values), spans_of(decoded(Binned(bits=bits), values, ENDS)), strict=True):
        assert float(read.sum()) == pytest.approx(float(span.sum()), abs=1e-12)


def test_segments_are_spans_of_their_own():
    """One loud parameter does not make another one coarse."""
    sizes = (3, 3)
    letter = Letter(
        parts=tuple(Part(size=3, room=3, chosen=(0, 1, 2)) for _ in sizes),
        values=[100.0, -300.0, 200.0, 0.001, -0.003, 0.002],
        codec=Linear(bits=8),
    )
    assert letter.plan.choosing == segments_of(list(sizes))
    assert letter.pack().sent.values.tolist() == pytest.approx(letter.payload.values.tolist(), rel=0.01)
