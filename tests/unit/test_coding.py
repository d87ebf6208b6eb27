"""Index coding: within a tenth of the entropy, the width that is least, and what a whole message costs."""

from __future__ import annotations

from math import lgamma, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import normal, segments_of
from laconic.codecs import Linear
from laconic.coding import Form, best_width, blocks_of, padded, position_bits, upper_bits
from laconic.compressors import TopK
from laconic.exchanges.lettering import header_of
from laconic.kernels import fresh_of
from laconic.types import Envelope
from laconic.wire import Frame, pack, unpack

DENSITIES = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1]
SIZES = [10**5, 123_457, 10**6, 2**24, 10**7, 10**8, 10**9]


def _entropy(size: int, count: int) -> float:
    """log2 C(size, count): the bits that no code of positions can do without."""
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2)


def _bits(size: int, count: int) -> int:
    return position_bits(size, count, best_width(size, count))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("density", DENSITIES)
def test_positions_stay_within_a_tenth_of_the_entropy(size, density):
    count = round(density * size)
    assert _entropy(size, count) <= _bits(size, count) <= 1.10 * _entropy(size, count)


@pytest.mark.parametrize(
    ("size", "count", "entropy"),
    [(10**6, 10**3, 11.40), (10**6, 10**4, 8.08), (25_600_000, 25_600, 11.41), (47_236, 100, 10.28)],
    ids=str,
)
def test_the_entropy_is_that_of_the_table(size, count, entropy):
    assert _entropy(size, count) / count == pytest.approx(entropy, abs=0.005)
    assert 1.0 <= _bits(size, count) / _entropy(size, count) <= 1.06


@settings(max_examples=200)
@given(size=st.integers(1, 10**6), share=st.floats(0, 1))
def test_no_other_width_takes_fewer_bits(size, share):
    room = max(1, round(share * size))
    assert _bits(size, room) == min(position_bits(size, room, width) for width in range(24))


@given(st.lists(st.tuples(st.integers(0, 10**5), st.floats(0, 1)), min_size=1, max_size=5))
def test_blocks_lie_one_behind_the_other(each):
    sizes, rooms = [size for size, _ in each], tuple(round(size * share) for size, share in each)
    blocks = blocks_of(segments_of(sizes), rooms)
    upper = lower = offset = 0
    for row, size, room in zip(blocks.rows.tolist(), sizes, rooms, strict=False):
        width = best_width(size, room)
        assert row == [offset, size, room, width, upper, lower]
        upper, lower, offset = upper + upper_bits(size, room, width), lower + room * width, offset + size
    assert blocks.bits == upper + lower
    assert (blocks.upper_bytes, blocks.lower_bytes) == (padded(upper), padded(lower))


def test_a_bitmap_is_a_bit_an_entry():
    assert (best_width(1000, 500), _bits(1000, 500)) == (0, 1000)
    assert _bits(1000, 1000) == 1000


def test_no_room_takes_no_bits():
    assert _bits(1000, 0) == _bits(0, 0) == 0


@pytest.mark.parametrize(("bits", "expected"), [(0, 0), (1, 8), (64, 8), (65, 16)])
def test_parts_are_rounded_up_to_eight_bytes(bits, expected):
    assert padded(bits) == expected


@pytest.mark.parametrize(
    ("form", "value_bits", "numbers"),
    [
        (Form(kind="float"), 32, 0),
        (Form(kind="bfloat16", bits=16), 16, 0),
        (Form(kind="line", bits=4), 4, 2),
        (Form(kind="table", bits=1), 1, 2),
        (Form(kind="table", bits=8), 8, 256),
    ],
    ids=str,
)
def test_a_form_says_what_a_value_takes_and_a_span_shares(form, value_bits, numbers):
    assert (form.value_bits(4), form.numbers) == (value_bits, numbers)


def test_a_thousandth_in_four_bits_takes_at_most_17_bits_a_sent_coordinate():
    """A real message of 2 million entries in four parameters: header, scales and padding are in it."""
    segments, codec = segments_of([1_500_000, 1000, 480_000, 19_000]), Linear(bits=4)
    compressor = TopK(density=0.001, whole_below=0)
    x = normal(segments.numel, 0)
    plan = compressor.plan(segments, step=0, rooms={})
    frame = Frame(plan=plan, form=codec.form, dtype=x.dtype)
    payload = compressor.compress_(x, segments, plan, fresh_of(x, segments))
    header = header_of(payload, frame, Envelope(step=0, world_size=1))
    packed = pack(frame, payload, header, codec, seed=0)
    (message,) = unpack(packed.message.unsqueeze(0), frame, header)
    sent = message.payload.values.numel()
    assert sent == payload.values.numel() >= 0.001 * segments.numel
    assert torch.equal(message.payload.positions, payload.positions)
    assert 8 * packed.message.numel() <= 17 * sent
