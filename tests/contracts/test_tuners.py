"""The exam of every tuner: a pure pair whose state is a dict of numbers."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import pickle
from collections.abc import Iterator
from math import inf, nan

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from contracts.bad_settings import BAD_SETTINGS, NEEDED, refusal
from contracts.registry import TUNERS, compressors, tuners, tunes
from contracts.vectors import normal, segments_of
from laconic.compressors import TopK
from laconic.pace import Pace
from laconic.spectrum import Spectrum, measure
from laconic.tuners import Warmup
from laconic.types import Compressor, Observation, Tuner

every_tuner = pytest.mark.parametrize("tuner", tuners(), ids=repr)
# The compressors that a tuner says it can move. A draw is tried on all of them: to draw is what takes long.
MOVED = {tuner: [c for c in compressors() if tunes(tuner, c)] for tuner in tuners()}
# Of a vector, of one with nothing in it, of the smallest numbers and of the largest.
SPECTRA = [
    Spectrum.read(measure(x, segments_of([x.numel()]), turn=0))
    for x in (normal(300, 1), torch.zeros(9), torch.full((5,), 2.0**-126), torch.full((70,), 3e38))
]
AMOUNTS = {"density", "c", "k", "stages"}


@st.composite
def _seen(draw: st.DrawFn) -> Observation:
    entries = draw(st.integers(0, 10**6))
    sent = draw(st.integers(0, entries))
    wanted = draw(st.integers(sent, 10**7))
    choosable = draw(st.integers(0, entries))
    seconds = st.sampled_from([nan, 0.0, 1e-6, 0.01, 3.0, 1e30])
    return Observation(
        step=draw(st.integers(0, 1000)),
        entries=entries,
        sent=sent,
        wanted=wanted,
        skipped=draw(st.booleans()),
        qualified=draw(st.integers(0, choosable)),
        choosable=choosable,
        loss=draw(st.sampled_from([nan, inf, 0.0, -1.0, 0.5, 4.0])),
        alarmed=draw(st.booleans()),
        spectrum=draw(st.sampled_from([None, *SPECTRA])),
        fixed_bytes=draw(st.integers(1, 10**6)),
        message_bytes=draw(st.integers(0, 10**7)),
        value_bits=draw(st.sampled_from([0, 1, 4, 16, 32, 64])),
        room=draw(st.integers(0, 10**6)),
        ranks=draw(st.integers(1, 5)),
        change=draw(st.sampled_from([nan, 0.0, -3.0, 0.5, 1.0, 1e30])),
        pace=Pace(waited=draw(seconds), rest=draw(seconds)),
    )


def _moved_by(tuner: Tuner) -> Iterator[Compressor]:
    """The compressors that the tuner moves; where one fails, hypothesis shows which."""
    for compressor in MOVED[tuner]:
        note(repr(compressor))
        yield compressor


def _run(tuner: Tuner, compressor: Compressor, history: list[Observation]) -> list[Compressor]:
    """The compressor of each step: as the reducer does, each update gets what the one before returned."""
    state, path = tuner.init(compressor), []
    for seen in history:
        state, compressor = tuner.update(state, seen, compressor)
        path.append(compressor)
    return path


def _seen_at(step: int) -> Observation:
    return Observation(step=step, entries=100, sent=10, wanted=10, skipped=False, qualified=10, choosable=100)


def _densities(tuner: Warmup, final: float, steps: int) -> list[float]:
    return [c.density for c in _run(tuner, TopK(density=final), [_seen_at(step) for step in range(steps)])]


@every_tuner
@settings(max_examples=6)
@given(seen=_seen())
def test_init_and_update_are_pure(tuner, seen):
    for compressor in _moved_by(tuner):
        state = tuner.init(compressor)
        assert tuner.init(compressor) == state
        before = copy.deepcopy(state)
        once = tuner.update(state, seen, compressor)
        assert state == before
        assert tuner.update(dict(before), seen, compressor) == once


@every_tuner
@settings(max_examples=6)
@given(history=st.lists(_seen(), min_size=1, max_size=12))
def test_ranks_that_saw_the_same_have_the_same_setting_and_go_on_from_a_saved_state(tuner, history):
    for compressor in _moved_by(tuner):
        path = _run(tuner, compressor, history)
        assert _run(pickle.loads(pickle.dumps(tuner)), compressor, history) == path
        state, setting = tuner.init(compressor), compressor
        for seen, expected in zip(history, path, strict=True):
            state, setting = tuner.update(json.loads(json.dumps(state)), seen, setting)
            assert setting == expected


@every_tuner
@settings(max_examples=6)
@given(seen=_seen())
def test_the_state_is_a_dict_of_numbers_that_can_be_saved_as_it_is(tuner, seen):
    for compressor in _moved_by(tuner):
        for state in (tuner.init(compressor), tuner.update(tuner.init(compressor), seen, compressor)[0]):
            assert all(type(key) is str and isinstance(value, float) for key, value in state.items())
            saved = json.loads(json.dumps(state))
            assert saved == state
            assert tuner.update(saved, seen, compressor) == tuner.update(state, seen, compressor)


@every_tuner
@settings(max_examples=6)
@given(history=st.lists(_seen(), min_size=1, max_size=12))
def test_a_tuner_moves_the_amount_and_nothing_else(tuner, history):
    for compressor in _moved_by(tuner):
        before = dataclasses.asdict(compressor)
        for moved in _run(tuner, compressor, history):
            assert type(moved) is type(compressor)
            after = dataclasses.asdict(moved)
            assert {field for field in before if before[field] != after[field]} <= AMOUNTS
            assert getattr(moved, "c", 0.0) >= 0
            if hasattr(moved, "density"):
                assert 0 < moved.density <= 1


@every_tuner
def test_a_compressor_is_tuned_or_refused_at_the_start(tuner):
    for compressor in compressors():
        if tunes(tuner, compressor):
            _, tuned = tuner.update(tuner.init(compressor), _seen_at(0), compressor)
            assert type(tuned) is type(compressor)
        else:
            with pytest.raises(ValueError, match=rf"({compressor.name} has none|c must be .*, got [\d.]+)\. \w+ "):
                tuner.init(compressor)


@pytest.mark.parametrize("cls", TUNERS, ids=lambda c: c.__name__)
def test_every_tuner_has_a_compressor_to_move(cls):
    assert all(MOVED[tuner] for tuner in TUNERS[cls])


@every_tuner
def test_a_tuner_that_does_not_follow_the_loss_does_not_look_at_it(tuner):
    told = [dataclasses.replace(_seen_at(step), loss=9.0 - step) for step in range(6)]
    untold = [_seen_at(step) for step in range(6)]
    for compressor in MOVED[tuner]:
        assert (_run(tuner, compressor, told) == _run(tuner, compressor, untold)) is not tuner.needs_loss or (
            # At c = c_min there is nothing to move.
            getattr(compressor, "c", None) == getattr(tuner, "c_min", 1.0)
        ), compressor


@every_tuner
def test_a_tuner_is_frozen_data(tuner):
    twin = pickle.loads(pickle.dumps(tuner))
    assert twin == tuner
    assert hash(twin) == hash(tuner)
    for field in dataclasses.fields(tuner):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(tuner, field.name, 1)


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.floats(0.0001, 0.01))
def test_warm_up_falls_geometrically_to_the_final_density_and_stays(steps, start, final):
    densities = _densities(Warmup(steps=steps, start=start), final, steps + 5)
    assert densities[0] == pytest.approx(start)
    factor = (final / start) ** (1 / steps)
    for before, after in itertools.pairwise(densities[: steps + 1]):
        assert after / before == pytest.approx(factor, rel=1e-6)
    assert densities[steps:] == [final] * 5


@given(st.integers(1, 40), st.floats(0.0001, 1.0), st.floats(0.0001, 1.0))
def test_warm_up_never_rises_and_never_goes_below_the_final_density(steps, start, final):
    densities = _densities(Warmup(steps=steps, start=start), final, steps + 3)
    for before, after in itertools.pairwise(densities):
        assert after <= before * (1 + 1e-12)
    assert min(densities) == densities[-1] == final
    assert max(densities) <= max(start, final) * (1 + 1e-12)


def test_warm_up_depends_on_the_step_alone_so_that_a_resumed_run_goes_on():
    tuner, final = Warmup(steps=10, start=0.5), TopK(density=0.01)
    straight = _densities(tuner, 0.01, 12)
    for step, density in enumerate(straight):
        assert tuner.update(tuner.init(final), _seen_at(step), final)[1].density == density


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [(cls, field, value) for cls in TUNERS for field, value in BAD_SETTINGS.get(cls, [])],
)
def test_a_bad_setting_is_refused_with_what_it_got_what_it_wants_and_what_to_do(cls, field, value):
    # A budget is a share or bits a second, never both.
    needed = {} if field == "bits_per_second" else NEEDED.get(cls, {})
    with pytest.raises((ValueError, TypeError), match=refusal(field, value)):
        cls(**{**needed, field: value})


@pytest.mark.parametrize("cls", TUNERS, ids=lambda c: c.__name__)
def test_every_setting_has_a_bad_value_that_is_refused(cls):
    refused = {field for field, _ in BAD_SETTINGS.get(cls, [])}
    assert refused == {field.name for field in dataclasses.fields(cls)}
