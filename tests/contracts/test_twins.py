"""The Numba twin under threads: their number, others at work at the same time and a fork change no bit."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from types import ModuleType

import pytest
import torch
from torch import Tensor

from contracts.twins import FLOATS, laid_out, twin_of, vector
from contracts.vectors import normal, segments_of
from laconic.kernels import Inflow, Places

# Enough for three threads; a border of their shares lies inside a segment.
SIZES = [200_000, 0, 7, 260_001]
NUMEL = sum(SIZES)


@pytest.fixture(scope="module")
def cpu() -> ModuleType:
    return twin_of("cpu").module


@pytest.fixture(autouse=True)
def _threads_as_before(cpu, monkeypatch) -> Iterator[None]:
    """Let short vectors have threads too; a test may ask for any number of them."""
    before = torch.get_num_threads()
    monkeypatch.setattr(cpu, "_WORTH_A_THREAD", 1 << 16)
    yield
    torch.set_num_threads(before)


class _Work:
    """What all four kernels need for one run, made before: in a forked process torch's own threads are gone."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        memory = torch.float64 if dtype == torch.float64 else torch.float32
        layout = segments_of(SIZES)
        self.places = Places(grad=layout, x=laid_out(SIZES, [3, 2, 1, 0])[0], home=laid_out(SIZES, [2, 0, 3, 1])[0])
        self.layout, count = layout, len(SIZES)
        numbers = normal(3 * count, seed).to(memory).view(3, count)
        nesterov = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=memory)
        self.inflow = Inflow(gain=numbers[0], unit=numbers[1], momentum=numbers[2], nesterov=nesterov)
        self.grad = vector("normal", NUMEL, seed, dtype)
        self.owed, self.velocity = (normal(NUMEL, seed + i).to(memory) for i in (1, 2))
        self.x, self.proposed, self.out = (torch.zeros(NUMEL, dtype=memory) for _ in range(3))
        families = ["normal", "equal", "clustered", "few"]
        self.takes = [vector(family, NUMEL, seed, dtype) for family in families for _ in range(2)]
        self.thresholds = torch.tensor([1.2, 0.0, 0.5, 1.0], dtype=dtype)
        self.payloads = [normal(n, seed + n).to(memory) for n in SIZES]
        self.positions = [torch.arange(s.offset, s.offset + s.size) for s in layout]

    def run(self, cpu: ModuleType) -> list[str]:
        """Run the kernels, once: they work in place. Return digests of all that they wrote."""
        done = cpu.accumulate_(
            self.x,
            self.grad,
            self.inflow,
            self.places,
            owed=self.owed,
            velocity=self.velocity,
            proposed=self.proposed,
        )
        results = [self.x, self.proposed, *astuple(done)]
        for i, x in enumerate(self.takes):
            if i % 2:
                taken = cpu.take_top_(x, self.layout, [1500, 1, 3, 100_000])
            else:
                taken = cpu.take_above_(x, self.layout, self.thresholds, [900, 3, 7, 200_000], turn=i)
            results += [x, taken.positions, taken.values, taken.wanted]
        cpu.add_payloads_(self.out, self.positions, self.payloads, scale=1 / 3)
        return [_digest(t) for t in [*results, self.out]]


def _digest(x: Tensor) -> str:
    return hashlib.sha256(x.contiguous().view(torch.uint8).numpy()).hexdigest()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_number_of_threads_changes_no_bit(cpu, dtype):
    torch.set_num_threads(1)
    alone = _Work(1, dtype).run(cpu)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert _Work(1, dtype).run(cpu) == alone
        assert threads in cpu._pools, "the work was too small for that many threads"


def test_more_threads_than_work_change_no_bit(cpu):
    """One chunk, or none, and eight threads."""
    for size in (0, 1, 65_536, 140_000):
        results = []
        for threads in (1, 8):
            torch.set_num_threads(threads)
            x = vector("few", size, 1, torch.float32)
            taken = cpu.take_top_(x, segments_of([size]), [size // 3])
            results.append([t.tolist() for t in (x, taken.positions, taken.values)])
        assert results[0] == results[1]


@pytest.mark.parametrize("threads", [1, 2])
def test_two_python_threads_at_once_get_the_bits_they_get_alone(cpu, threads):
    torch.set_num_threads(threads)
    seeds = [1, 100]
    alone = [_Work(seed).run(cpu) for seed in seeds]
    assert alone[0] != alone[1]
    for _ in range(3):
        works = [_Work(seed) for seed in seeds]
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda work: work.run(cpu), works)) == alone


def _in_child(pipe, work: _Work, cpu: ModuleType) -> None:
    pipe.send((torch.get_num_threads(), work.run(cpu), list(cpu._pools)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_gets_the_same_bits_on_threads_of_its_own(cpu):
    """The threads of the process that forked are not in the child: to wait for them would be for ever."""
    torch.set_num_threads(2)
    expected, work = _Work(1).run(cpu), _Work(1)
    assert 2 in cpu._pools
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(there, work, cpu), daemon=True)
    child.start()
    try:
        assert here.poll(60), "the child hangs"
        assert here.recv() == (2, expected, [2])
    finally:
        child.kill()
        child.join()
    # And the parent's threads still work.
    assert _Work(1).run(cpu) == expected


@pytest.mark.skipif("LACONIC_LARGE" not in os.environ, reason="needs 5 GB of memory: set LACONIC_LARGE to run it")
def test_entries_beyond_two_to_the_31_are_found_where_they_are(cpu):
    border = 1 << 31
    layout = segments_of([border + 10, 990])
    x = torch.zeros(border + 1000, dtype=torch.bfloat16)
    positions, values = (
        [5, border - 1, border, border + 9, border + 10, border + 999],
        [1.0, -2.0, 3.0, -4.0, 5.0, 6.0],
    )
    for threads in (1, 2):
        torch.set_num_threads(threads)
        x[positions] = torch.tensor(values, dtype=x.dtype)
        taken = cpu.take_above_(x, layout, torch.tensor([0.5, 0.5], dtype=x.dtype), [9, 9])
        assert taken.positions.tolist() == positions
        assert taken.values.tolist() == values
        assert taken.wanted.tolist() == [4, 2]
        assert not x[positions].any()
