"""The exam of every compressor: what is sent plus what is left is what was there, and the plan is known before."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.bad_settings import BAD_SETTINGS, NEEDED, refusal
from contracts.registry import COMPRESSORS, compressors, everything, selects, sparsifiers
from contracts.vectors import DTYPES, Flat, Sent, flats, known_positions, normal, same_bits, segments_of, taken_by
from laconic import kernels, wire
from laconic.codecs import Exact
from laconic.kernels import reference
from laconic.types import Plan, Sparsifier, Thresholder

every_compressor = pytest.mark.parametrize("compressor", compressors(), ids=repr)
every_selection = pytest.mark.parametrize("compressor", [c for c in compressors() if selects(c)], ids=repr)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
steps = st.integers(0, 10**6)
# Agreed rooms of the first segments: none yet, too few, more than enough.
rooms = st.dictionaries(st.sampled_from(["p0", "p1", "p2"]), st.integers(0, 12), max_size=3)
# Thirty compressors sit every exam: fewer examples each.
fewer = settings(max_examples=5)


def _same_plan(a: Plan, b: Plan, numel: int) -> bool:
    same = (a.known_count, a.choosing, a.rooms, a.counted) == (b.known_count, b.choosing, b.rooms, b.counted)
    return same and torch.equal(known_positions(a, numel), known_positions(b, numel))


def _header(sent: Sent, step: int) -> wire.Header:
    return wire.Header(
        fingerprint=3,
        step=step,
        count=sent.payload.values.numel(),
        wanted=sent.payload.wanted.sum(),
        finite=True,
        rates=0,
        value_bytes=sent.left.element_size(),
    )


@every_dtype
@every_selection
@fewer
@given(data=st.data(), step=steps, rooms=rooms)
def test_sent_and_left_are_what_was_there_to_the_bit(compressor, dtype, data, step, rooms):
    flat = data.draw(flats(dtype))
    sent = taken_by(compressor, flat, step, rooms)
    rebuilt = sent.left.clone()
    for at, values in ((sent.plan.known, sent.payload.known), (sent.payload.positions, sent.payload.values)):
        assert not sent.left[at].any()
        rebuilt[at] = values
    assert same_bits(rebuilt, flat.x)
    assert torch.equal(sent.decoded() + sent.left, flat.x)


@every_dtype
@every_compressor
@fewer
@given(data=st.data(), step=steps, rooms=rooms)
def test_sent_and_left_are_what_was_there_to_rounding(compressor, dtype, data, step, rooms):
    flat = data.draw(flats(dtype))
    # The mean of two of the largest numbers that there are is more than the largest.
    flat = Flat(flat.x.clamp(-1e30, 1e30), flat.segments)
    sent = taken_by(compressor, flat, step, rooms)
    error = (sent.decoded() + sent.left - flat.x).abs()
    assert bool((error <= 2 * torch.finfo(dtype).eps * sent.decoded().abs().maximum(flat.x.abs())).all())
    untouched = torch.ones_like(flat.x, dtype=torch.bool)
    for at in (sent.plan.known, sent.payload.positions):
        untouched[at] = False
    assert same_bits(sent.left[untouched], flat.x[untouched])


@every_compressor
@fewer
@given(flat=flats(torch.float32), step=steps, rooms=rooms)
def test_positions_ascend_in_range_and_are_not_known_ones(compressor, flat, step, rooms):
    sent = taken_by(compressor, flat, step, rooms)
    numel, known, positions = flat.x.numel(), known_positions(sent.plan, flat.x.numel()), sent.payload.positions
    assert positions.dtype == torch.int64
    assert bool((positions.diff() > 0).all())
    assert bool(((positions >= 0) & (positions < numel)).all())
    assert len(set(known.tolist())) == known.numel() == sent.plan.known_count
    assert not set(known.tolist()) & set(positions.tolist())


@every_dtype
@every_compressor
@fewer
@given(data=st.data(), step=steps, rooms=rooms)
def test_a_payload_fits_its_plan(compressor, dtype, data, step, rooms):
    flat = data.draw(flats(dtype))
    sent = taken_by(compressor, flat, step, rooms)
    payload, plan = sent.payload, sent.plan
    assert payload.known.numel() == plan.known_count
    assert payload.wanted.dtype == torch.int64
    wanted = payload.wanted.tolist()
    assert all(0 <= n <= s.size for n, s in zip(wanted, plan.choosing, strict=True))
    # How many were chosen of each segment is what the plan and the counts say.
    at = payload.positions
    chosen = [int(((at >= s.offset) & (at < s.offset + s.size)).sum()) for s in plan.choosing]
    assert chosen == [min(n, room) for n, room in zip(wanted, plan.rooms, strict=True)]
    assert payload.positions.numel() == payload.values.numel() == sum(chosen) <= plan.capacity
    assert payload.known.dtype == payload.values.dtype == dtype
    assert payload.count == plan.known_count + payload.values.numel()
    assert payload.thresholds is None or payload.thresholds.numel() == len(plan.choosing)


@every_compressor
@fewer
@given(sizes=st.lists(st.integers(0, 5000), max_size=4), step=steps, rooms=rooms)
def test_a_plan_has_room_for_some_of_each_segment_and_never_for_more_than_all(compressor, sizes, step, rooms):
    segments = segments_of(sizes)
    plan = compressor.plan(segments, step=step, rooms=rooms)
    assert compressor.ranks_choose or plan.capacity == 0
    assert plan.counted is compressor.counts_vary
    assert all(min(1, s.size) <= room <= s.size for s, room in zip(plan.choosing, plan.rooms, strict=True))
    assert plan.capacity == sum(plan.rooms)
    assert plan.known_count + sum(s.size for s in plan.choosing) <= segments.numel
    assert all(segments[s.name] == s for s in plan.choosing)


@every_compressor
@fewer
@given(flat=flats(torch.float32), step=steps)
def test_plan_and_payload_are_pure_functions_the_same_on_every_rank(compressor, flat, step):
    here = taken_by(compressor, flat, step)
    torch.manual_seed(step)
    before = torch.get_rng_state()
    other_rank = pickle.loads(pickle.dumps(compressor))
    there = taken_by(other_rank, Flat(flat.x, segments_of([s.size for s in flat.segments])), step)
    assert _same_plan(here.plan, there.plan, flat.x.numel())
    assert same_bits(here.payload.known, there.payload.known)
    assert torch.equal(here.payload.positions, there.payload.positions)
    assert same_bits(here.payload.values, there.payload.values)
    assert torch.equal(here.payload.wanted, there.payload.wanted)
    assert torch.equal(torch.get_rng_state(), before)


@every_dtype
@every_compressor
@fewer
@given(data=st.data(), notes=st.integers(0, 17), step=steps)
def test_a_message_has_the_size_of_its_plan_and_says_what_the_payload_says(compressor, dtype, data, notes, step):
    flat = data.draw(flats(dtype))
    sent = taken_by(compressor, flat, step)
    said, header = torch.ones(notes, dtype=torch.uint8), _header(sent, step)
    frame = wire.Frame(plan=sent.plan, form=Exact().form, dtype=dtype, notes=notes)
    packed = wire.pack(frame, sent.payload, header, Exact(), notes=said).message
    assert packed.numel() == frame.total
    (read,) = wire.unpack(packed.unsqueeze(0), frame, header)
    assert same_bits(read.payload.known, sent.payload.known)
    assert same_bits(read.payload.values, sent.payload.values)
    assert torch.equal(read.payload.positions, sent.payload.positions)
    assert read.header.wanted == int(sent.payload.wanted.sum())
    assert list(read.header.counts) == (sent.payload.wanted.tolist() if sent.plan.counted else [])


@every_compressor
@pytest.mark.parametrize("step", [0, 1001])
@pytest.mark.parametrize("rooms", [{}, {"p0": 1, "p3": 2}, {"p0": 5, "p3": 30, "p4": 12}], ids=str)
def test_where_the_host_does_not_know_the_counts_the_message_is_the_same(compressor, rooms, step, monkeypatch):
    """On a GPU a payload has all the room of its plan, and zeros behind its last entry."""
    flat = Flat(normal(48, 4), segments_of([5, 0, 1, 30, 12]))
    here = taken_by(compressor, flat, step, rooms)
    monkeypatch.setattr(kernels, "_twin", lambda x: reference)
    monkeypatch.setattr(reference, "_take_passed_", reference._take_static_)
    there = taken_by(compressor, flat, step, rooms)
    assert here.plan.counted is False or there.payload.values.numel() == there.plan.capacity
    assert torch.equal(there.payload.wanted, here.payload.wanted)
    assert torch.equal(there.left, here.left)
    frame = wire.Frame(plan=here.plan, form=Exact().form, dtype=torch.float32)
    packed = [wire.pack(frame, s.payload, _header(here, step), Exact()).message for s in (here, there)]
    assert torch.equal(*packed)


@pytest.mark.parametrize(
    "compressor", [c for c in compressors() if c.counts_vary and c.name != "stochastic"], ids=repr
)
def test_where_room_is_short_every_entry_that_qualifies_is_sent_sooner_or_later(compressor):
    """The same vector in every step: what lies at the end of a layer gets its turn as well."""
    flat, tight = Flat(normal(48, 4), segments_of([5, 0, 1, 30, 12])), {"p0": 1, "p2": 1, "p3": 1, "p4": 1}
    qualifies = set(
        taken_by(compressor, flat, 0, {s.name: s.size for s in flat.segments}).payload.positions.tolist()
    )
    sent: set[int] = set()
    for step in range(3 * 30):
        payload = taken_by(compressor, flat, step, tight).payload
        sent.update(payload.positions.tolist())
    assert sent == qualifies


@every_compressor
def test_with_everything_sent_nothing_is_left(compressor):
    sends_all = everything(compressor)
    for sizes in ([], [0], [1], [5, 0, 1, 30], [200]):
        flat = Flat(normal(sum(sizes), 1), segments_of(sizes))
        if sends_all is not None:
            sent = taken_by(sends_all, flat)
            assert same_bits(sent.decoded(), flat.x)
            assert not sent.left.any()


@pytest.mark.parametrize("compressor", sparsifiers(), ids=repr)
def test_a_density_can_be_moved_and_moves_nothing_else(compressor):
    assert isinstance(compressor, Sparsifier)
    moved = compressor.at_density(0.25)
    assert moved.density == pytest.approx(0.25)
    back = moved.at_density(compressor.density)
    # A threshold has a coefficient, and a density by a formula only.
    assert (back.at_c(compressor.c) if isinstance(compressor, Thresholder) else back) == compressor
    assert back.density == pytest.approx(compressor.density)


@pytest.mark.parametrize("compressor", [c for c in compressors() if isinstance(c, Thresholder)], ids=repr)
def test_a_coefficient_can_be_moved_and_moves_nothing_else(compressor):
    moved = compressor.at_c(2.5)
    assert (moved.c, moved.at_c(compressor.c)) == (2.5, compressor)
    assert moved.at_density(compressor.density) == compressor, "there and back again"


@every_compressor
def test_a_payload_does_not_share_memory_with_what_is_left(compressor):
    segments = segments_of([20, 3])
    x = normal(23, 1)
    plan = compressor.plan(segments, step=0, rooms={})
    payload = compressor.compress_(x, segments, plan, kernels.fresh_of(x, segments))
    known, values = payload.known.clone(), payload.values.clone()
    x.fill_(7.0)
    assert torch.equal(payload.known, known)
    assert torch.equal(payload.values, values)


@every_compressor
def test_what_is_known_of_a_vector_is_read_only(compressor):
    segments = segments_of([20, 3])
    x, before = normal(23, 1), normal(23, 2)
    fresh = dataclasses.replace(kernels.fresh_of(x, segments), before=before)
    twin = {f.name: getattr(fresh, f.name).clone() for f in dataclasses.fields(fresh)}
    compressor.compress_(x, segments, compressor.plan(segments, step=0, rooms={}), fresh)
    assert all(torch.equal(getattr(fresh, name), value) for name, value in twin.items())


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
    sent = taken_by(compressor, Flat(torch.full((sum(sizes),), -2.0), segments_of(sizes)))
    assert sent.payload.count == sum(sizes)
    assert bool((sent.left.abs() < 2.0).all())
    assert not selects(compressor) or not sent.left.any()


@every_compressor
def test_a_vector_of_zeros_stays_one(compressor):
    flat = Flat(torch.zeros(23), segments_of([20, 3]))
    sent = taken_by(compressor, flat)
    assert not sent.decoded().any()
    assert not sent.left.any()


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [(cls, field, value) for cls in COMPRESSORS for field, value in BAD_SETTINGS.get(cls, [])],
)
def test_a_bad_setting_is_refused_with_what_it_got_what_it_wants_and_what_to_do(cls, field, value):
    with pytest.raises(ValueError, match=refusal(field, value)):
        cls(**{**NEEDED.get(cls, {}), field: value})


@pytest.mark.parametrize("cls", COMPRESSORS, ids=lambda c: c.__name__)
def test_every_setting_has_a_bad_value_that_is_refused(cls):
    refused = {field for field, _ in BAD_SETTINGS.get(cls, [])}
    assert refused == {field.name for field in dataclasses.fields(cls)}
