"""What each parameter looks like after a step, read off a state that was written by hand."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.diagnosis import layers, owed_norms
from laconic.ledger import Entered
from laconic.segments import Segments
from laconic.state import State
from laconic.stats import Layer
from laconic.types import Mean, Payload

MODEL = Segments.of(["w", "b", "empty"], [4, 2, 0])


def _state(method: laconic.Method | None = None, **options) -> State:
    settings = {"rank": 0, "velocity": False, "track_age": False, "measure_every": 0, **options}
    method = method or laconic.sdagc(3.0, whole_below=3, scope="layer", values="exact")
    return State.begin(method, MODEL, dtype=torch.float64, device=torch.device("cpu"), **settings)


def _step(state: State, *, clipped: float = 0.0) -> None:
    """One step in which w was chosen from, with room for 2 of the 1 and 3 entries that qualified on two ranks."""
    numbers = torch.tensor([1.5, 2.0, 0.0], dtype=torch.float64)
    nothing, at = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
    own = Payload(known=nothing, positions=at, values=nothing, wanted=at, thresholds=numbers[:1] * 3)
    mean = Mean(values=nothing, finite=True, sent=7, wanted=8, counts={"w": (1, 3)}, rooms={"w": 2}, own=own)
    entered = Entered(segments=MODEL, deviation=numbers, largest=numbers, clipped=torch.full_like(numbers, clipped))
    state.ledger.commit(entered, mean, world_size=2)
    state.step += 1


def _layers(state: State) -> dict[str, Layer]:
    return {layer.name: layer for layer in layers(state, owed_norms(state), overall=0.5)}


def test_a_layer_tells_what_is_sent_what_waits_and_what_was_clipped():
    state = _state()
    state.memory["owed"].copy_(torch.tensor([0.0, 3.0, -4.0, 0.0, 0.0, 0.0]))
    for clipped in (1.0, 0.0, 0.0, 0.0):
        _step(state, clipped=clipped)
    w = _layers(state)["w"]
    assert w == Layer(
        name="w",
        entries=4,
        density=(1 + 2) / 8,
        threshold=4.5,
        c=3.0,
        owed_gradients=5.0 / (1.5 * 2),
        oldest=None,
        clipped_share=0.25,
    )


def test_a_parameter_sent_whole_has_no_threshold_and_owes_nothing():
    state = _state()
    _step(state)
    b = _layers(state)["b"]
    assert (b.density, b.threshold, b.owed_gradients) == (1.0, None, 0.0)


def test_before_the_first_step_there_is_little_to_tell():
    for layer in _layers(_state()).values():
        assert (layer.density, layer.threshold, layer.owed_gradients, layer.clipped_share) == (0.5, None, 0.0, 0.0)


def test_skipped_steps_do_not_dilute_the_share_of_clipped_ones():
    state = _state()
    _step(state, clipped=1.0)
    state.step += 3
    state.counters.skipped_steps = 3
    assert _layers(state)["w"].clipped_share == 1.0


def test_the_oldest_is_the_entry_longest_unsent_of_those_that_owe():
    state = _state(track_age=True)
    state.step = 10
    state.memory["sent_at"].copy_(torch.tensor([10, 2, 7, 10, 0, 10]))
    assert [_layers(state)[name].oldest for name in MODEL.names] == [0, 0, 0]
    state.memory["owed"].copy_(torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 5.0]))
    assert [_layers(state)[name].oldest for name in MODEL.names] == [3, 0, 0]
    state.memory["owed"].fill_(1.0)
    assert [_layers(state)[name].oldest for name in MODEL.names] == [8, 10, 0]


def test_the_coefficient_is_the_one_now_in_use():
    state = _state()
    state.setting = state.setting.at_c(7.0)
    assert _layers(state)["w"].c == 7.0
    assert _layers(_state(laconic.topk()))["w"].c is None


@pytest.mark.parametrize("method", [laconic.topk(memory="none"), laconic.dense()], ids=lambda m: m.name)
def test_without_memory_nothing_is_owed(method):
    state = _state(method)
    assert owed_norms(state).tolist() == [0.0, 0.0, 0.0]
    assert [layer.oldest for layer in _layers(state).values()] == [None] * 3
    with pytest.raises(ValueError, match=f"track_age: {method.name} keeps no memory, so nothing waits"):
        _state(method, track_age=True)


def test_ages_that_were_not_saved_are_counted_from_the_step_of_the_save():
    plain, aged = _state(), _state(track_age=True)
    plain.memory["owed"].fill_(1.0)
    _step(plain)
    _step(plain)
    aged.load_state_dict(plain.state_dict())
    assert [layer.oldest for layer in _layers(aged).values()] == [0, 0, 0]
    aged.step += 3
    assert [layer.oldest for layer in _layers(aged).values()] == [3, 3, 0]


@pytest.mark.parametrize("part", ["memory", "ledger", "alarm", "seen"])
def test_a_state_of_which_one_part_does_not_fit_changes_nothing(part):
    state, other = _state(), _state()
    other.memory["owed"].fill_(1.0)
    _step(other)
    saved = other.state_dict()
    saved[part] = {"something": {}}
    with pytest.raises(ValueError, match=r"\w"):
        state.load_state_dict(saved)
    assert state.step == 0
    assert not state.memory["owed"].any()
    assert state.ledger.state_dict() == _state().ledger.state_dict()


def test_ages_that_nobody_asks_for_are_left_out():
    plain, aged = _state(), _state(track_age=True)
    aged.memory["owed"].fill_(1.0)
    plain.load_state_dict(aged.state_dict())
    assert torch.equal(plain.memory["owed"], aged.memory["owed"])
    assert [layer.oldest for layer in _layers(plain).values()] == [None] * 3


def test_norms_are_a_number_a_parameter():
    state = _state()
    state.memory["owed"].copy_(torch.tensor([0.0, 3.0, -4.0, 0.0, 6.0, 8.0]))
    assert owed_norms(state).tolist() == [5.0, 10.0, 0.0]
