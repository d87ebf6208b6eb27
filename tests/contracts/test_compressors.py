"""The exam of every compressor: what is sent plus what is left is what was there, and the plan is known before."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.registry import BAD_SETTINGS, COMPRESSORS, NEEDED, compressors, sparsifiers
from contracts.vectors import DTYPES, Flat, flats, known_positions, normal, same_bits, segments_of
from laconic import wire
from laconic.types import Compressor, Payload, Plan, Sparsifier

every_compressor = pytest.mark.parametrize("compressor", compressors(), ids=repr)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
steps = st.integers(0, 10**6)
# Nine compressors sit every exam: fewer examples each.
fewer = settings(max_examples=30)


def _taken(compressor: Compressor, flat: Flat, step: int) -> tuple[Payload, torch.Tensor, Plan]:
    plan, left = compressor.plan(flat.segments, step=step), flat.x.clone()
    return compressor.compress_(left, flat.segments, plan), left, plan


def _same_plan(a: Plan, b: Plan, numel: int) -> bool:
    counts = (a.known_count, a.capacity) == (b.known_count, b.capacity)
    return counts and torch.equal(known_positions(a, numel), known_positions(b, numel))


@every_dtype
@every_compressor
@fewer
@given(data=st.data(), step=steps)
def test_sent_and_left_are_what_was_there_to_the_bit(compressor, dtype, data, step):
    flat = data.draw(flats(dtype))
    payload, left, plan = _taken(compressor, flat, step)
    rebuilt, sent = left.clone(), torch.zeros_like(left)
    for at, values in ((plan.known, payload.known), (payload.positions, payload.values)):
        assert not left[at].any()
        rebuilt[at] = values
        sent[at] += values
    assert same_bits(rebuilt, flat.x)
    assert torch.equal(sent + left, flat.x)


@every_compressor
@fewer
@given(flat=flats(torch.float32), step=steps)
def test_positions_ascend_in_range_and_are_not_known_ones(compressor, flat, step):
    payload, _, plan = _taken(compressor, flat, step)
    numel, known = flat.x.numel(), known_positions(plan, flat.x.numel())
    assert payload.positions.dtype == torch.int64
    assert bool((payload.positions.diff() > 0).all())
    assert bool(((payload.positions >= 0) & (payload.positions < numel)).all())
    assert len(set(known.tolist())) == known.numel() == plan.known_count
    assert not set(known.tolist()) & set(payload.positions.tolist())


@every_dtype
@every_compressor
@fewer
@given(data=st.data(), step=steps)
def test_a_payload_fits_its_plan(compressor, dtype, data, step):
    flat = data.draw(flats(dtype))
    payload, _, plan = _taken(compressor, flat, step)
    assert payload.known.numel() == plan.known_count
    assert payload.positions.numel() == payload.values.numel() <= plan.capacity
    assert payload.wanted >= payload.values.numel()
    assert payload.known.dtype == payload.values.dtype == dtype
    assert payload.count == plan.known_count + payload.values.numel()


@every_compressor
@fewer
@given(sizes=st.lists(st.integers(0, 5000), max_size=4), step=steps)
def test_ranks_that_do_not_choose_send_known_entries_only(compressor, sizes, step):
    capacity = compressor.plan(segments_of(sizes), step=step).capacity
    assert compressor.ranks_choose or capacity == 0


@every_compressor
@fewer
@given(flat=flats(torch.float32), step=steps)
def test_plan_and_payload_are_pure_functions_the_same_on_every_rank(compressor, flat, step):
    here, _, plan = _taken(compressor, flat, step)
    torch.manual_seed(step)
    before = torch.get_rng_state()
    other_rank = pickle.loads(pickle.dumps(compressor))
    there, _, their_plan = _taken(other_rank, Flat(flat.x, segments_of([s.size for s in flat.segments])), step)
    assert _same_plan(plan, their_plan, flat.x.numel())
    assert same_bits(here.known, there.known)
    assert torch.equal(here.positions, there.positions)
    assert same_bits(here.values, there.values)
    assert torch.equal(torch.get_rng_state(), before)


@every_dtype
@every_compressor
@fewer
@given(data=st.data(), notes=st.integers(0, 17), step=steps)
def test_the_size_of_a_message_follows_from_the_plan(compressor, dtype, data, notes, step):
    flat = data.draw(flats(dtype))
    payload, _, plan = _taken(compressor, flat, step)
    header = wire.Header(
        fingerprint=3,
        step=step,
        count=payload.values.numel(),
        wanted=payload.wanted,
        finite=True,
        rates=0,
        value_bytes=dtype.itemsize,
    )
    numel, said = flat.x.numel(), torch.ones(notes, dtype=torch.uint8)
    packed = wire.pack(payload, plan, header, numel=numel, notes=said)
    promised = wire.message_bytes(plan, numel=numel, notes=notes, value_bytes=dtype.itemsize)
    assert packed.numel() == promised


@pytest.mark.parametrize("compressor", sparsifiers(), ids=repr)
def test_a_density_can_be_moved_and_moves_nothing_else(compressor):
    assert isinstance(compressor, Sparsifier)
    moved = compressor.at_density(0.25)
    assert moved.density == 0.25
    assert moved.at_density(compressor.density) == compressor


@every_compressor
def test_a_payload_does_not_share_memory_with_what_is_left(compressor):
    segments = segments_of([20, 3])
    x = normal(23, 1)
    payload = compressor.compress_(x, segments, compressor.plan(segments, step=0))
    known, values = payload.known.clone(), payload.values.clone()
    x.fill_(7.0)
    assert torch.equal(payload.known, known)
    assert torch.equal(payload.values, values)


@every_compressor
def test_a_compressor_is_frozen_data(compressor):
    twin = pickle.loads(pickle.dumps(compressor))
    assert twin == compressor
    assert hash(twin) == hash(compressor)
    assert repr(twin) == repr(compressor)
    for field in dataclasses.fields(compressor):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(compressor, field.name, 1)


def test_unlike_compressors_have_unlike_names():
    assert len({repr(c) for c in compressors()}) == len(compressors())


@every_compressor
@pytest.mark.parametrize("sizes", [[0], [0, 0], [1], [0, 1, 0], [1, 1, 1]], ids=str)
def test_empty_and_single_entries(compressor, sizes):
    flat = Flat(torch.full((sum(sizes),), -2.0), segments_of(sizes))
    payload, left, _ = _taken(compressor, flat, 0)
    assert payload.count == sum(sizes)
    assert not left.any()


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [(cls, field, value) for cls in COMPRESSORS for field, value in BAD_SETTINGS.get(cls, [])],
)
def test_a_bad_setting_is_refused_with_what_it_got_what_it_wants_and_what_to_do(cls, field, value):
    with pytest.raises(ValueError, match=rf"{field} must be .*, got {re.escape(repr(value))}\. \w.*\.$"):
        cls(**{**NEEDED.get(cls, {}), field: value})


@pytest.mark.parametrize("cls", COMPRESSORS, ids=lambda c: c.__name__)
def test_every_setting_has_a_bad_value_that_is_refused(cls):
    refused = {field for field, _ in BAD_SETTINGS.get(cls, [])}
    assert refused == {field.name for field in dataclasses.fields(cls)}
