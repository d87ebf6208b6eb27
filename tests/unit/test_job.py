"""One exchange of a step: what is held, what is committed, what is handed back, what is poisoned."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.futures import Future

from contracts.vectors import normal
from laconic.job import Job, Part
from laconic.memory import Memory
from laconic.segments import Segments
from laconic.types import Mean, Payload

MODEL = Segments.of(["a", "b"], [3, 2])


def _mean(values: torch.Tensor) -> Mean:
    return Mean(values=values, finite=True, sent=0, wanted=0)


def _memory(**kinds: torch.dtype) -> Memory:
    return Memory(MODEL, kinds={"owed": torch.float32, **kinds}, device=torch.device("cpu"))


def _commit(job: Job, memory: Memory, *, masking: bool = True, step: int = 0) -> None:
    if job.mean is None:
        job.mean = _mean(torch.zeros(5))
    job.commit(memory, step=step, masking=masking)


def _chosen(*positions: int, counts: dict[str, tuple[int, ...]] | None = None, **rooms: int) -> Mean:
    """A mean to which this rank sent the positions."""
    at, values = torch.tensor(positions, dtype=torch.int64), torch.ones(len(positions))
    own = Payload(known=values[:0], positions=at, values=values, wanted=torch.tensor([len(positions)]))
    rooms = rooms or {segment.name: segment.size for segment in MODEL}
    return replace(_mean(torch.zeros(5)), own=own, counts=counts or {}, rooms=rooms)


def test_what_is_held_is_out_of_the_exchange_and_comes_back_in_the_commit():
    x = normal(5, 1)
    job, before, memory = Job(x, MODEL, parts=[Part(x, MODEL, MODEL, Future())]), x.clone(), _memory()
    job.hold_(MODEL, {"a"})
    assert not x[:3].any()
    assert torch.equal(x[3:], before[3:])
    x[3:] = 0.0
    _commit(job, memory)
    assert torch.equal(memory["owed"][:3], before[:3])
    assert not memory["owed"][3:].any()


def test_nothing_is_held_that_is_not_named():
    job = Job(torch.ones(5), MODEL)
    job.hold_(MODEL, {"c"})
    assert job.held == []
    assert not job.held_back().any()
    assert job.x.tolist() == [1.0] * 5


def test_only_the_given_place_is_held():
    job = Job(torch.ones(5), MODEL)
    job.hold_(Segments((MODEL["b"],)), {"a", "b"})
    assert job.x.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert job.held_back().tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_the_mean_goes_back_to_where_it_came_from_times_each_factor():
    job = Job(torch.zeros(5), MODEL)
    buckets = [Segments.of(["b"], [2]), Segments.of(["a"], [3])]
    grads = [torch.full((s.numel,), -9.0) for s in buckets]
    for grad, segments in zip(grads, buckets, strict=True):
        place = Segments(tuple(MODEL[n] for n in segments.names))
        job.parts.append(Part(grad, segments, place, Future()))
    job.mean = _mean(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    job.hand_back({"b": 10.0})
    assert grads[0].tolist() == [40.0, 50.0]
    assert grads[1].tolist() == [1.0, 2.0, 3.0]


def test_a_mean_that_is_already_in_place_is_left_there():
    grad = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    job = Job(grad, MODEL, parts=[Part(grad, MODEL, MODEL, Future())])
    job.mean = _mean(grad)
    job.hand_back({})
    assert grad.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_what_a_narrow_gradient_cannot_carry_stays_in_x(factor):
    value, grad = 1.0 + 2**-9, torch.zeros(5, dtype=torch.bfloat16)
    job = Job(torch.full((5,), 0.5), MODEL, parts=[Part(grad, MODEL, MODEL, Future())])
    job.mean = _mean(torch.full((5,), value))
    factors = dict.fromkeys(MODEL.names, factor)
    job.round_(job.mean, factors, {})
    job.hand_back(factors)
    assert grad.tolist() == [factor] * 5
    assert job.x.tolist() == [0.5 + 2**-9] * 5


def test_what_overflows_a_narrow_gradient_stays_in_x():
    grad = torch.zeros(5, dtype=torch.float16)
    job = Job(torch.zeros(5), MODEL, parts=[Part(grad, MODEL, MODEL, Future())])
    job.mean = _mean(torch.tensor([65504.0, 70000.0, -70000.0, 1.0, 0.0]))
    job.round_(job.mean, {}, {})
    job.hand_back({})
    assert grad.tolist() == [65504.0, 65504.0, -65504.0, 1.0, 0.0]
    assert job.x.tolist() == [0.0, 70000.0 - 65504.0, 65504.0 - 70000.0, 0.0, 0.0]


def test_a_gradient_as_wide_as_the_mean_loses_nothing():
    x, values = normal(5, 1), normal(5, 2)
    job = Job(x.clone(), MODEL, parts=[Part(torch.zeros(5), MODEL, MODEL, Future())])
    job.round_(_mean(values), {}, {})
    assert torch.equal(job.x, x)
    assert torch.equal(values, normal(5, 2))


def test_a_parameter_that_no_gradient_came_for_keeps_what_it_owes():
    memory = _memory()
    memory.write("owed", MODEL, normal(5, 3))
    place = Segments((MODEL["b"],))
    job = Job(torch.ones(5), MODEL, parts=[Part(torch.ones(2), Segments.of(["b"], [2]), place, Future())])
    _commit(job, memory)
    assert torch.equal(memory["owed"][:3], normal(5, 3)[:3])
    assert memory["owed"][3:].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("masking", [True, False])
def test_the_velocity_of_what_was_chosen_starts_anew_where_it_is_masked(masking):
    x = torch.zeros(5)
    job, memory = Job(x, MODEL, parts=[Part(x, MODEL, MODEL, Future())]), _memory(velocity=torch.float32)
    job.velocity, job.mean = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), _chosen(1, 4)
    _commit(job, memory, masking=masking)
    assert memory["velocity"].tolist() == ([1.0, 0.0, 3.0, 4.0, 0.0] if masking else [1.0, 2.0, 3.0, 4.0, 5.0])


def test_the_step_of_the_last_sending_is_that_of_what_was_chosen():
    x = torch.zeros(5)
    job, memory = Job(x, MODEL, parts=[Part(x, MODEL, MODEL, Future())]), _memory(sent_at=torch.int32)
    memory["sent_at"].fill_(3)
    job.mean = _chosen(0, 3, a=2, b=2)
    _commit(job, memory, step=8)
    assert memory["sent_at"].tolist() == [9, 3, 3, 9, 3]


def test_a_parameter_that_goes_whole_is_sent_unless_it_is_held():
    x = torch.ones(5)
    job, memory = Job(x, MODEL, parts=[Part(x, MODEL, MODEL, Future())]), _memory(sent_at=torch.int32)
    job.mean = _chosen(3, b=1)
    _commit(job, memory, step=8)
    assert memory["sent_at"].tolist() == [9, 9, 9, 9, 0]
    job.hold_(MODEL, {"a"})
    _commit(job, memory, step=10)
    assert memory["sent_at"].tolist() == [9, 9, 9, 11, 0]


def test_of_parameters_that_are_chosen_from_as_one_none_goes_whole():
    x = torch.zeros(5)
    job, memory = Job(x, MODEL, parts=[Part(x, MODEL, MODEL, Future())]), _memory(sent_at=torch.int32)
    job.mean = replace(_chosen(2), rooms={"2 parameters": 1})
    _commit(job, memory, step=8)
    assert memory["sent_at"].tolist() == [0, 0, 9, 0, 0]


def test_a_zero_that_was_chosen_for_want_of_anything_else_was_not_sent():
    job = Job(torch.zeros(5), MODEL)
    mean = _chosen(1, 4)
    job.mean = replace(mean, own=replace(mean.own, values=torch.tensor([0.0, 2.0])))
    assert job.chosen().tolist() == [4]


def test_what_was_chosen_is_what_this_rank_sent_whatever_was_counted():
    job = Job(torch.zeros(5), MODEL)
    job.mean = _chosen(1, 2, 4, counts={"a": (1, 7), "b": (0, 1)}, a=2, b=3)
    assert job.chosen().tolist() == [1, 2, 4]
    job.mean = _mean(torch.zeros(5))
    assert job.chosen().tolist() == []


def test_poison_is_seen_by_every_caller():
    grads = [torch.ones(3), torch.ones(2)]
    parts = [Part(g, Segments((s,)), Segments((s,)), Future()) for g, s in zip(grads, MODEL, strict=True)]
    Job(torch.zeros(5), MODEL, parts=parts).poison()
    assert all(math.isnan(v) for g in grads for v in g.tolist())


def test_entries_that_all_ranks_drew_are_sent_and_no_parameter_is_whole():
    x = torch.zeros(5)
    job = Job(x, MODEL, parts=[Part(x, MODEL, MODEL, Future())])
    drawn = torch.tensor([0.0, 2.0, 0.0, 0.0, 3.0])
    memory = _memory(sent_at=torch.int32)
    for own in (None, Payload(known=drawn[1:3], positions=x[:0].long(), values=x[:0], wanted=x[:0].long())):
        job.mean = replace(_mean(drawn), own=own)
        memory["sent_at"].zero_()
        _commit(job, memory, step=6)
        assert memory["sent_at"].tolist() == [0, 7, 0, 0, 7]
