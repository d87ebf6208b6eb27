"""Damping: chosen values divided by the root of their segment's mean delay, and nothing else changed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from contracts.registry import compressors
from contracts.vectors import Flat, flats, known_positions, normal, same_bits, segments_of, taken_by
from laconic.compressors import StdThreshold, TopK
from laconic.damping import Damped
from laconic.types import Compressor

CHOOSING = [c for c in compressors() if c.ranks_choose]


@settings(max_examples=12)
@given(flat=flats(torch.float64), data=st.data())
def test_values_are_divided_by_the_root_of_the_mean_delay_of_their_segment(flat, data):
    size = flat.x.numel()
    delays = torch.tensor(data.draw(st.lists(st.integers(1, 50), min_size=size, max_size=size)), dtype=torch.int32)
    # A draw is tried on all: to draw is what takes long.
    for inner in CHOOSING:
        note(repr(inner))
        _check_divided(inner, flat, delays)


def _check_divided(inner: Compressor, flat: Flat, delays: torch.Tensor) -> None:
    plain, damped = taken_by(inner, flat), taken_by(Damped(inner, delays), flat)
    expected = []
    for segment in plain.plan.choosing:
        end = segment.offset + segment.size
        here = [i for i, p in enumerate(plain.payload.positions.tolist()) if segment.offset <= p < end]
        late = [int(delays[plain.payload.positions[i]]) for i in here]
        expected += [float(plain.payload.values[i]) / math.sqrt(sum(late) / len(late)) for i in here]
    assert damped.payload.values.tolist() == pytest.approx(expected, rel=1e-12)
    assert torch.equal(damped.payload.positions, plain.payload.positions)
    assert torch.equal(damped.payload.wanted, plain.payload.wanted)
    # What is cut off is a lower rate, not a debt.
    assert same_bits(damped.left, plain.left)
    assert same_bits(damped.payload.known, plain.payload.known)


@pytest.mark.parametrize("inner", CHOOSING, ids=repr)
def test_what_never_waited_is_sent_as_it_is(inner):
    flat = Flat(normal(30, 1), segments_of([10, 20]))
    damped = taken_by(Damped(inner, torch.ones(30, dtype=torch.int32)), flat)
    assert same_bits(damped.payload.values, taken_by(inner, flat).payload.values)


def test_a_plan_is_the_inner_ones():
    inner, segments = StdThreshold(c=2.0, whole_below=3), segments_of([2, 30])
    plan = Damped(inner, torch.ones(32)).plan(segments, step=4, rooms={"p1": 7})
    assert (plan.rooms, plan.counted, plan.step, plan.known_count) == ((7,), True, 4, 2)
    assert torch.equal(known_positions(plan, 32), known_positions(inner.plan(segments, step=4, rooms={}), 32))


def test_entries_behind_the_last_one_are_nobodys():
    """On a device a payload has zeros behind its last entry: they must not count as late entries."""

    class Padded:
        """TopK with the unused room that a device leaves."""

        name, ranks_choose, counts_vary, reads_before = "padded", True, True, False

        def plan(self, segments, *, step, rooms):
            return StdThreshold(c=1.0, whole_below=0).plan(segments, step=step, rooms={"p0": 3, "p1": 2})

        def compress_(self, x, segments, plan, fresh):
            payload = TopK(density=0.25, whole_below=0).compress_(
                x, segments, TopK(density=0.25, whole_below=0).plan(segments, step=0, rooms={}), fresh
            )
            zeros = torch.zeros(3)
            return type(payload)(
                known=payload.known,
                positions=torch.cat([payload.positions, zeros.long()]),
                values=torch.cat([payload.values, zeros]),
                wanted=payload.wanted,
            )

    x = torch.tensor([0.0, 8.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0])
    delays = torch.tensor([100, 4, 100, 100, 9, 100, 100, 100])
    sent = taken_by(Damped(Padded(), delays), Flat(x, segments_of([4, 4])))
    assert sent.payload.values.tolist() == [4.0, 2.0, 0.0, 0.0, 0.0]


def test_where_all_is_sent_whole_nothing_is_damped():
    flat = Flat(normal(5, 1), segments_of([5]))
    sent = taken_by(Damped(TopK(density=0.5), torch.full((5,), 9)), flat)
    assert same_bits(sent.payload.known, flat.x)
