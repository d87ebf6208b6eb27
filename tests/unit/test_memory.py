"""Memory: vectors by parameter name, whatever the layout they are read and written in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.vectors import normal
from laconic.memory import Memory
from laconic.segments import Segments

MODEL = Segments.of(["a", "b", "c", "empty"], [4, 2, 3, 0])


def _memory(**kinds: torch.dtype) -> Memory:
    return Memory(MODEL, kinds=kinds or {"owed": torch.float32}, device=torch.device("cpu"))


def _layout(names: list[str]) -> Segments:
    return Segments.of(names, [MODEL[n].size for n in names])


def _filled() -> Memory:
    memory = _memory()
    memory["owed"].copy_(normal(MODEL.numel, 1))
    return memory


@given(st.permutations(MODEL.names), st.integers(1, 4))
def test_what_is_written_in_one_layout_is_read_in_any_other(names, cut):
    memory, x = _memory(), normal(MODEL.numel, 2)
    layout = _layout(list(names))
    memory.write("owed", layout, x)
    views = dict(zip(layout.names, layout.views(x), strict=True))
    for part in (names[:cut], names[cut:]):
        if part:
            expected = torch.cat([views[n] for n in part])
            assert torch.equal(memory.read("owed", _layout(list(part))), expected)


def test_writing_some_parameters_leaves_the_others():
    memory = _filled()
    before = memory["owed"].clone()
    memory.write("owed", _layout(["b"]), torch.tensor([7.0, 8.0]))
    assert memory["owed"][4:6].tolist() == [7.0, 8.0]
    assert torch.equal(memory["owed"][:4], before[:4])
    assert torch.equal(memory["owed"][6:], before[6:])


def test_read_is_a_copy():
    memory = _filled()
    before = memory["owed"].clone()
    memory.read("owed", _layout(["a"])).fill_(9.0)
    assert torch.equal(memory["owed"], before)


def test_a_saved_state_is_a_copy_and_comes_back():
    memory = _filled()
    state, before = memory.state_dict(), memory["owed"].clone()
    memory["owed"].zero_()
    assert torch.equal(torch.cat([state["owed"][n] for n in MODEL.names]), before)
    other = _memory()
    other.load_state_dict(state)
    assert torch.equal(other["owed"], before)
    state["owed"]["a"].fill_(5.0)
    assert torch.equal(other["owed"], before)


def test_kinds_are_vectors_of_their_own():
    memory = _memory(owed=torch.float32, velocity=torch.float64, sent_at=torch.int32)
    memory.write("velocity", MODEL, torch.ones(MODEL.numel))
    assert not memory["owed"].any()
    assert memory.read("velocity", _layout(["c"])).tolist() == [1.0, 1.0, 1.0]
    assert set(memory.state_dict()) == {"owed", "velocity", "sent_at"}
    assert [memory[kind].dtype for kind in memory.state_dict()] == [torch.float32, torch.float64, torch.int32]


def test_a_kind_that_is_not_kept_is_none():
    nothing = Memory(MODEL, kinds={}, device=torch.device("cpu"))
    assert nothing.state_dict() == {}
    assert nothing.get("owed") is None
    memory = _filled()
    assert memory.get("owed") is memory["owed"]
    assert memory.get("velocity") is None


def _without(state: dict, name: str) -> dict:
    return {"owed": {k: v for k, v in state["owed"].items() if k != name}}


def _with(state: dict, name: str, value: torch.Tensor) -> dict:
    return {"owed": {**state["owed"], name: value}}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda s: {}, r"kinds of memory: missing \['owed'\]"),
        (lambda s: {**s, "velocity": s["owed"]}, r"kinds of memory: .*unknown \['velocity'\]"),
        (lambda s: _without(s, "c"), r"parameters in 'owed': missing \['c'\]"),
        (lambda s: _with(s, "d", torch.ones(1)), r"unknown \['d'\]"),
        (lambda s: _with(s, "c", torch.ones(4)), r"'owed' of c has 4 entries, the parameter has 3\. Load"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_taken(spoil, says):
    memory, other = _filled(), _memory()
    before = memory["owed"].clone()
    with pytest.raises(ValueError, match=says):
        memory.load_state_dict(spoil(other.state_dict()))
    assert torch.equal(memory["owed"], before)


def test_a_kind_with_a_start_may_be_missing_or_be_there_without_need():
    saved = _filled().state_dict()
    aged = _memory(owed=torch.float32, sent_at=torch.int32)
    aged.load_state_dict(saved, start={"sent_at": 7})
    assert torch.equal(aged["owed"], _filled()["owed"])
    assert aged["sent_at"].tolist() == [7] * MODEL.numel
    aged["sent_at"].copy_(torch.arange(MODEL.numel))
    again, plain = _memory(owed=torch.float32, sent_at=torch.int32), _memory()
    again.load_state_dict(aged.state_dict(), start={"sent_at": 7})
    assert again["sent_at"].tolist() == list(range(MODEL.numel))
    plain.load_state_dict(aged.state_dict(), start={"sent_at": 7})
    assert torch.equal(plain["owed"], _filled()["owed"])


def test_a_start_is_for_its_own_kind_alone():
    aged = _memory(owed=torch.float32, sent_at=torch.int32)
    aged["sent_at"].fill_(3)
    with pytest.raises(ValueError, match=r"kinds of memory: missing \['owed'\]"):
        aged.load_state_dict({}, start={"sent_at": 7})
    with pytest.raises(ValueError, match=r"kinds of memory: missing \['sent_at'\]"):
        aged.load_state_dict(_filled().state_dict())
    short = {"owed": _filled().state_dict()["owed"], "sent_at": {"a": torch.ones(4)}}
    with pytest.raises(ValueError, match=r"parameters in 'sent_at': missing"):
        aged.load_state_dict(short, start={"sent_at": 7})
    assert (aged["sent_at"].tolist(), aged["owed"].any().item()) == ([3] * MODEL.numel, False)


@pytest.mark.parametrize("foreign", [None, 3, [torch.ones(2)]])
def test_what_is_no_state_at_all_is_refused(foreign):
    memory = _filled()
    for state in (foreign, {"owed": foreign}):
        with pytest.raises(TypeError, match="expected names and tensors"):
            memory.load_state_dict(state)
    assert torch.equal(memory["owed"], _filled()["owed"])


def test_vectors_saved_in_the_parameters_shape_are_taken():
    memory, state = _memory(), _filled().state_dict()
    memory.load_state_dict(_with(state, "a", state["owed"]["a"].view(2, 2)))
    assert torch.equal(memory["owed"], _filled()["owed"])
