"""The pieces of the measured theory: the contraction factor, ratios, and what settles."""

from __future__ import annotations

import math

import pytest
import torch

from contracts.vectors import segments_of
from laconic.compressors import Dense, RandomK, TopK
from laconic.memory import Memory
from laconic.segments import Segments
from laconic.theory import Probe, _gamma, _ratio, _square

MODEL = segments_of([1, 2, 1])


def _probe(every: int) -> Probe:
    drift = Memory(MODEL, kinds={"drift": torch.float32}, device=torch.device("cpu"))
    return Probe(every=every, drift=drift)


def _settled(probe: Probe, step: int, *, finite: bool) -> None:
    probe._propose(Segments.of(["p2", "p0"], [1, 1]), torch.tensor([5.0, 7.0]))
    probe._norms.fresh, probe._norms.mismatch, probe._norms.gamma = 4.0, 1.0, 0.5
    probe.settle(step, finite=finite)


@pytest.mark.parametrize(("density", "kept"), [(0.25, 5), (0.001, 1), (1.0, 20)])
def test_gamma_is_the_root_of_the_share_that_stays(density, kept):
    assert _gamma(segments_of([20]), TopK(density=density, whole_below=0), 0) == math.sqrt(1 - kept / 20)
    assert _gamma(segments_of([20]), RandomK(density=density), 0) == math.sqrt(1 - kept / 20)


def test_gamma_is_the_worst_over_segments():
    topk = TopK(density=0.1, whole_below=5)
    assert _gamma(segments_of([4, 0, 10, 15]), topk, 0) == math.sqrt(1 - 1 / 10)
    assert _gamma(segments_of([4, 0]), topk, 0) == 0.0


def test_gamma_is_zero_where_everything_is_sent():
    assert _gamma(segments_of([20, 3]), Dense(), 0) == 0.0


def test_squares_are_summed_in_double_precision():
    assert _square(torch.full((3,), 1e30)) == pytest.approx(3e60)
    assert _square(torch.empty(0)) == 0.0


def test_a_ratio_to_nothing_is_zero():
    assert _ratio(3.0, 0.0) == 0.0
    assert _ratio(3.0, 2.0) == 1.5


def test_a_step_is_taken_over_into_drift_and_history():
    probe = _probe(2)
    _settled(probe, 0, finite=True)
    assert probe.drift["drift"].tolist() == [7.0, 0.0, 0.0, 5.0]
    (seen,) = probe.history
    assert (seen.step, seen.gradient_norm, seen.xi) == (0, 2.0, 0.5)
    assert seen.drift_bound == (0.5 + 0.5) / (1 - 0.5) * 2.0


def test_a_step_that_is_not_due_moves_the_drift_only():
    probe = _probe(2)
    _settled(probe, 1, finite=True)
    assert probe.drift["drift"].tolist() == [7.0, 0.0, 0.0, 5.0]
    assert probe.history == []


def test_a_poisoned_step_leaves_no_trace():
    probe = _probe(1)
    _settled(probe, 0, finite=False)
    assert not probe.drift["drift"].any()
    assert probe.history == []
    assert (probe.largest_xi, probe.largest_fresh) == (0.0, 0.0)
    probe.settle(1, finite=True)
    assert not probe.drift["drift"].any()
    assert probe.history[0].xi == 0.0
