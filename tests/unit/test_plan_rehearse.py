"""Rehearsals: what a method asks for is what it sends, whoever the method is."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch

import laconic
from laconic.exchanges import TwoLevel
from laconic.methods import METHODS
from laconic.plan.rehearse import Stage, rehearse, rehearse_local
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.sim.network import Cable, Network
from laconic.transports import Lockstep

BUCKETS = (Segments.of(["d", "c"], [64, 32 * 64], [1, 32]), Segments.of(["b", "a"], [64, 64 * 64], [1, 64]))
ENTRIES = sum(b.numel for b in BUCKETS)


def _stage(**more) -> Stage:
    torch.manual_seed(0)
    gradients = tuple(tuple(torch.randn(b.numel) for b in BUCKETS) for _ in range(2))
    return Stage(**({"buckets": BUCKETS, "gradients": gradients, "warmup": 2, "steps": 2, "seconds": 9.0} | more))


def _rounds(rehearsal):
    return [r for job in rehearsal.jobs for r in job.rounds]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_can_be_rehearsed(name):
    method, stage = METHODS[name](), _stage(warmup=1, steps=1)
    if method.local is None:
        seen = rehearse(method, stage, ranks=2)
        assert len(seen.selecting) == len(BUCKETS)
    else:
        seen = rehearse_local(method, stage, ranks=2).exchange
    assert seen.ranks == 2
    assert sum(r.size for r in _rounds(seen)) > 0
    assert min([*seen.selecting, seen.closing, *(r.after for r in _rounds(seen))]) >= 0


def test_dense_adds_every_bucket_up_as_it_comes():
    seen = rehearse(laconic.dense(), _stage(), ranks=3)
    assert [(job.bucket, [(r.kind, r.size) for r in job.rounds]) for job in seen.jobs] == [
        (i, [("sum", 4.0 * bucket.numel)]) for i, bucket in enumerate(BUCKETS)
    ]


def test_what_selects_over_the_model_begins_behind_the_last_bucket():
    seen = rehearse(laconic.topk(0.01, scope="model"), _stage(), ranks=2)
    assert [job.bucket for job in seen.jobs] == [2]


def test_sizes_are_what_is_sent():
    method, sent = laconic.topk(0.01), []
    world = Lockstep(2)
    model = _stage().model()
    reducers = [Reducer(method, model, port) for port in world.ports]
    for step in range(4):
        for rank, reducer in enumerate(reducers):
            reducer.begin_step()
            for grad, segments in zip(_stage().gradient(step, rank), BUCKETS, strict=True):
                reducer.begin(grad.clone(), segments)
        for reducer in reducers:
            reducer.end_step()
        sent.append(world.ports[0].wire_bytes)
    seen = rehearse(method, _stage(), ranks=2)
    assert sum(r.size for r in _rounds(seen)) == (sent[3] - sent[1]) / 2


def test_low_rank_has_two_rounds_a_bucket():
    seen = rehearse(laconic.powersgd(1), _stage(), ranks=2)
    assert [len(job.rounds) for job in seen.jobs] == [2, 2]


def test_nodes_add_up_inside_before_their_leaders_talk():
    method = replace(laconic.topk(0.01), exchange=TwoLevel(node_size=2))
    seen = rehearse(method, _stage(), ranks=2)
    assert seen.ranks == 2
    assert {r.among for r in _rounds(seen)} == {"node", "leaders"}
    leaders = [job for job in seen.jobs if any(r.among == "leaders" for r in job.rounds)]
    assert len(leaders) == 2
    assert all(seen.jobs[job.behind].rounds[-1].size == 4.0 * BUCKETS[i].numel for i, job in enumerate(leaders))


def test_a_local_method_tells_where_it_stands_and_then_how_far_it_walked():
    seen = rehearse_local(laconic.local_sgd(16), _stage(), ranks=2)
    table, drift = _rounds(seen.exchange)
    assert (table.kind, drift.kind, drift.size) == ("gather", "sum", 4.0 * ENTRIES)
    assert table.size < 200


def test_running_statistics_are_averaged_at_a_sync():
    seen = rehearse_local(laconic.local_sgd(16), _stage(buffers=(48,)), ranks=2)
    assert len(_rounds(seen.exchange)) > 2


def test_a_method_that_weighs_the_link_sees_the_one_that_is_planned_for():
    slow, fast = (Network(ranks=2, cables=(Cable(bits_per_second=rate, latency=1e-4),)) for rate in (1e5, 1e12))
    few, many = (
        sum(r.size for r in _rounds(rehearse(laconic.cat("seconds"), _stage(network=net, warmup=20), ranks=2)))
        for net in (slow, fast)
    )
    assert few < many


def test_work_is_timed_by_the_clock_that_waits_for_the_device(monkeypatch):
    ticks = count()
    monkeypatch.setattr("laconic.plan.ear.now", lambda _: float(next(ticks)))
    seen = rehearse_local(laconic.local_sgd(16), _stage(), ranks=2)
    # Every lap is one tick or more: perf_counter would have seen less than a second.
    assert min(r.after for r in _rounds(seen.exchange)) >= 1.0


def test_an_error_in_a_rehearsal_is_raised_not_waited_for():
    stage = _stage()
    with pytest.raises(ValueError, match="node_size"):
        rehearse(replace(laconic.topk(0.01), exchange=TwoLevel()), stage, ranks=2)
