"""What is planned for: invented layouts, DDP's buckets, users' functions, and the fit of a link."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.lab.work import Place
from laconic.plan.measure_link import casting, fit
from laconic.plan.profile import invented, within
from laconic.plan.work import OfFunction, OfSize, Subject, in_buckets
from laconic.segments import Segments

PLACE = Place(rank=0, ranks=1, device=torch.device("cpu"), seed=0, batch=1, data_home=Path("."))


@given(st.integers(1, 10_000_000), st.integers(1, 64))
def test_an_invented_layout_has_the_parameters_asked_for(parameters, layers):
    layout = OfSize(parameters=parameters, step_seconds=0.1, layers=layers).layout()
    assert layout.numel == parameters
    assert len(set(layout.names)) == len(layout)
    assert all(s.size % s.rows == 0 for s in layout)


@given(st.lists(st.integers(1, 9_000_000), min_size=1, max_size=30))
def test_buckets_hold_every_parameter_once_from_the_end_of_the_model(sizes):
    model = Segments.of([str(i) for i in range(len(sizes))], sizes)
    buckets = in_buckets(model)
    assert [name for b in buckets for name in b.names] == list(reversed(model.names))
    # A bucket is closed by the parameter that fills it.
    assert all(4 * (b.numel - b.items[-1].size) < 25 << 20 for b in buckets)


def test_a_part_of_a_large_model_stands_for_the_whole():
    seen = invented(OfSize(parameters=40_000_000, step_seconds=0.2, layers=20), entries=8_000_000)
    kept = sum(b.numel for b in seen.buckets)
    assert kept <= 8_000_000
    assert seen.profile.parameters == pytest.approx(40_000_000, abs=10)
    assert len(seen.profile.ready) == len(seen.buckets) == len(seen.gradients[0])
    assert within(seen, kept) is seen


def test_invented_gradients_lie_on_the_device_that_trains():
    meta = torch.device("meta")
    seen = invented(OfSize(parameters=1000, step_seconds=0.2, layers=2), entries=1000, device=meta)
    assert {g.device for step in seen.gradients for g in step} == {meta}


def test_casts_are_timed_by_the_clock_that_waits_for_the_device(monkeypatch):
    ticks, asked = count(), set()
    monkeypatch.setattr("laconic.plan.measure_link.now", lambda device: asked.add(device) or float(next(ticks)))
    meta = torch.device("meta")
    assert casting([torch.empty(8, device=meta)]) == ((1.0,), (1.0,))
    assert asked == {meta}


def test_a_fit_finds_the_link_that_was_there():
    # A gathered message passes a cable three times among four ranks, in three rounds.
    found = fit("gather", {size: 3 * 2e-4 + 3 * size * 8e-8 for size in (64, 4096, 1 << 20)}, ranks=4)
    assert found.latency == pytest.approx(2e-4)
    assert found.per_byte == pytest.approx(8e-8)


def test_a_function_in_a_file_and_in_a_package(tmp_path, monkeypatch):
    (tmp_path / "planned_here.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(3, 2), lambda m: m(torch.ones(1, 3)).sum()\n"
    )
    monkeypatch.chdir(tmp_path)
    for where in (f"{tmp_path}/planned_here.py:make", "planned_here:make"):
        subject = OfFunction(where=where).subject(PLACE)
        assert isinstance(subject, Subject)
        assert subject.loss(subject.model).shape == ()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("train.py", "module:function"),
        ("nowhere.py:make", "no file nowhere.py"),
        ("no.such.module:make", "no module"),
        ("laconic.plan.work:nothing", "no function 'nothing'"),
    ],
)
def test_functions_that_are_not_there_are_named(where, says):
    with pytest.raises(ValueError, match=says):
        OfFunction(where=where).find()


def test_what_a_function_returns_is_checked():
    with pytest.raises(ValueError, match="must return"):
        OfFunction(where="os:getcwd").subject(PLACE)


def test_sizes_must_be_sizes():
    with pytest.raises(ValueError, match="--params 25_000_000"):
        OfSize(parameters=0, step_seconds=0.1)
