"""Which kernels run: one choice by device, said once where the fast ones are missing; the plain way for others."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version

import pytest
import torch

from contracts.vectors import segments_of
from laconic import kernels
from laconic.kernels import Inflow, Places, reference

LAYOUT = segments_of([3, 0, 5])
PLACES = Places(grad=LAYOUT, x=LAYOUT, home=LAYOUT)
SOME = [3.0, -1.0, 2.0, 0.0, -7.0, 7.0, 1.0, 0.5]
BOTH = [("cpu", "numba"), ("cuda", "triton")]


@pytest.fixture
def without(monkeypatch) -> Iterator[Callable[[str], None]]:
    """Make a package one that cannot be imported, and forget what was chosen with it."""

    def forget(package: str) -> None:
        for name in [n for n in sys.modules if n.startswith(("laconic.kernels.cpu", "laconic.kernels.cuda"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        kernels._fast.cache_clear()

    yield forget
    kernels._fast.cache_clear()


def _results(module, x: torch.Tensor) -> list[object]:
    """What the four kernels make of copies of x, or the kind of error."""

    def accumulate(x):
        ones = torch.ones(3).to(x.dtype)
        flow = Inflow(gain=ones, unit=ones, momentum=ones * 0, nesterov=ones * 0)
        done = module.accumulate_(x, x, flow, PLACES, owed=x.clone())
        return [x, done.norms, done.largest]

    def taken(take):
        def run(x):
            t = take(x)
            return [x, t.positions, t.values, t.wanted]

        return run

    def add(x):
        module.add_payloads_(x, [torch.tensor([1, 6])], [torch.tensor([5, 6], dtype=x.dtype)])
        return [x]

    level, largest = torch.tensor([1, 1, 9]).to(x.dtype), torch.tensor([3, 0, 7]).to(x.dtype)
    ways = [
        accumulate,
        taken(lambda x: module.take_top_(x, LAYOUT, [1, 0, 2])),
        taken(lambda x: module.take_above_(x, LAYOUT, level, [1, 1, 4])),
        taken(lambda x: module.take_above_(x, LAYOUT, level, [1, 1, 4], largest=largest)),
        add,
    ]
    found: list[object] = []
    for way in ways:
        around = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
        try:
            found.append([t.tolist() for t in way(around)])
        except (RuntimeError, TypeError) as error:
            found.append(type(error))
    return found


def test_on_cpu_numba_is_in_use_and_says_its_version():
    pytest.importorskip("numba")
    assert kernels.in_use("cpu") == kernels.in_use(torch.device("cpu", 0)) == f"numba {version('numba')}"


def test_on_cuda_triton_would_be_in_use():
    pytest.importorskip("triton")
    assert kernels.in_use("cuda").startswith("triton " + version("triton").split(".")[0])


def test_where_there_is_no_fast_twin_the_kernels_are_plain_torch():
    assert kernels.in_use("meta") == "plain torch"


def test_no_environment_variable_changes_the_choice():
    code = "from laconic import kernels; print(kernels.in_use('cpu'))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    told = {**os.environ, "LACONIC_KERNELS": "reference"}
    answer = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == kernels.in_use("cpu")


@pytest.mark.parametrize(("device", "package"), BOTH)
def test_without_its_compiler_a_device_has_plain_torch_and_that_is_said_once(device, package, without, caplog):
    without(package)
    with caplog.at_level(logging.DEBUG, logger="laconic"):
        for _ in range(5):
            assert kernels.in_use(device) == "plain torch"
            _results(kernels, torch.tensor(SOME))
    (record,) = [r for r in caplog.records if package in r.getMessage()]
    assert (record.name, record.levelno) == ("laconic", logging.WARNING)
    assert f"pip install {package}" in record.getMessage()
    assert "plain torch" in record.getMessage()
    assert device in record.getMessage()


def test_without_numba_the_kernels_give_the_same(without):
    x = torch.tensor(SOME)
    fast = _results(kernels, x)
    without("numba")
    plain = _results(kernels, x)
    assert plain == fast == _results(reference, x)
    assert kernels._twin(x) is reference


def test_a_vector_that_is_not_contiguous_takes_the_plain_way():
    x = torch.tensor([v for value in SOME for v in (value, 99.0)])[::2]
    assert not x.is_contiguous()
    assert kernels._twin(x) is reference
    assert _results(kernels, x) == _results(kernels, torch.tensor(SOME))
    around = torch.tensor([v for value in SOME for v in (value, 99.0)])
    kernels.take_top_(around[::2], LAYOUT, [3, 0, 5])
    assert around.tolist() == [0.0, 99.0] * 8


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float8_e5m2, torch.complex64], ids=str)
def test_an_unusual_dtype_works_or_is_refused_as_in_the_reference(dtype):
    x = torch.tensor([int(v) for v in SOME]).to(torch.float32).to(dtype)
    assert kernels._twin(x) is reference
    assert _results(kernels, x) == _results(reference, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_float_that_a_memory_may_have_gives_the_references_answers(dtype):
    x = torch.tensor(SOME).to(dtype)
    # The norms of so few entries are the same in any order, but for the last bit.
    here, there = _results(kernels, x), _results(reference, x)
    assert not any(isinstance(result, type) for result in there)
    assert here[1:] == there[1:]
    assert isinstance(here[0], list), here[0]
    assert [here[0][0], here[0][2]] == [there[0][0], there[0][2]]
    assert here[0][1] == pytest.approx(there[0][1], rel=4 * torch.finfo(dtype).eps)


def test_gradients_that_are_not_contiguous_are_read_as_the_reference_does():
    strided = torch.arange(32.0).view(8, 4)
    results = []
    for module in (kernels, reference):
        x = torch.zeros(8)
        done = module.accumulate_(x, strided[:, 1], Inflow.plain(3, like=x), PLACES, owed=strided[:, 2])
        module.add_payloads_(x, [torch.arange(8)[::2]], [strided[:4, 3]], scale=0.5)
        results.append((x.tolist(), done.largest.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("wrong", [0, 1, 2, 4])
def test_one_number_for_each_segment_is_wanted(wrong):
    x, right = torch.tensor(SOME), torch.ones(3)
    for what, call in {
        "counts": lambda: kernels.take_top_(x, LAYOUT, [1] * wrong),
        "thresholds": lambda: kernels.take_above_(x, LAYOUT, torch.ones(wrong), [1] * 3),
        "rooms": lambda: kernels.take_above_(x, LAYOUT, right, [1] * wrong),
    }.items():
        with pytest.raises(ValueError, match=f"{wrong} {what} .* 3 segments"):
            call()
    assert x.tolist() == SOME


def test_a_payload_without_values_for_its_rank_is_refused():
    with pytest.raises(ValueError, match="zip"):
        kernels.add_payloads_(torch.zeros(3), [torch.tensor([0])] * 2, [torch.ones(1)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_payload_of_another_dtype_is_refused_as_in_the_reference(dtype):
    """Not added by its bits: a bfloat16 one is 16256 as an integer."""
    for module in (reference, kernels):
        out = torch.zeros(3)
        with pytest.raises(RuntimeError):
            module.add_payloads_(out, [torch.tensor([1])], [torch.ones(1, dtype=dtype)])
        assert out.tolist() == [0.0] * 3


def test_a_payload_with_fewer_values_than_positions_is_refused_as_in_the_reference():
    for module in (reference, kernels):
        with pytest.raises((RuntimeError, ValueError)):
            module.add_payloads_(torch.zeros(3), [torch.tensor([0, 1])], [torch.ones(1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_warming_up_works_for_every_gradient(dtype):
    kernels.warm("cpu", dtype, [torch.float32, torch.float64, torch.bfloat16, torch.float16])
