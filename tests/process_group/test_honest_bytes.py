"""Honest bytes: what stats report is what was handed to the collectives, to the byte."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import laconic
from covering import in_turn
from laconic import wire
from laconic.codecs import Exact, Linear, SignMean
from laconic.exchanges import GatherMean, ShardedMean
from laconic.segments import Segments
from laconic.transports import process_group
from laconic.types import Plan
from models import attach, build, loss, train

METHODS = [
    laconic.dense(),
    laconic.topk(0.05),
    laconic.topk(0.05, warmup_steps=3),
    laconic.topk_sgd(0.05),
    laconic.randomk(0.05),
    laconic.sdagc(3.0, scope="layer", values="exact"),
    laconic.sdagc(3.0, clip=0.5, whole_below=0, law="target", density=0.05, scope="layer", values="exact"),
    laconic.dgc(0.05, warmup_steps=3, clip=0.5, clip_scope="layer"),
    laconic.gaussiank(0.05),
    replace(laconic.sdagc(3.0, scope="layer", values="exact"), exchange=GatherMean(values=Linear(bits=4))),
    replace(laconic.dense(), memory="gradient", exchange=GatherMean(values=SignMean())),
]
# Exchanges of two rounds: sums of factors, and parts for each rank before what becomes of them.
OF_TWO_ROUNDS = [
    laconic.powersgd(1),
    replace(laconic.topk(0.05), exchange=ShardedMean()),
    replace(laconic.sdagc(3.0, scope="layer", values="exact"), exchange=ShardedMean(values=Linear(bits=4))),
]
COUNTED = [m for m in METHODS if m.compressor.counts_vary]
# Where a message's size depends on the step, ranks shake hands once more before the first exchange.
# Three numbers and their seal.
HANDSHAKE_BYTES = 32
KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])
EVERY = METHODS + OF_TWO_ROUNDS


def _label(method):
    return f"{method.name}-{method.tuner.name}-{method.exchange}"


class Counter:
    """Counts what this rank hands to torch.distributed, at the calls themselves."""

    def __init__(self) -> None:
        self.bytes = self.calls = 0

    def add(self, tensor) -> None:
        self.calls += 1
        self.bytes += tensor.numel() * tensor.element_size()

    @contextmanager
    def listening(self, group):
        def counted(call):
            def counting(out, *args, **kwargs):
                # What is summed is handed over and replaced; elsewhere the first argument is what comes back.
                self.add(out if call is dist_calls["all_reduce"] else args[0])
                return call(out, *args, **kwargs)

            return counting

        def broadcast(tensor, *args, **kwargs):
            # Only the first rank hands bytes over; the others receive.
            self.add(tensor if dist.get_rank(group) == 0 else tensor[:0])
            return dist_calls["broadcast"](tensor, *args, **kwargs)

        gather = process_group._all_gather
        dist_calls = {name: getattr(dist, name) for name in ("all_reduce", "all_to_all_single", "broadcast")}
        process_group._all_gather, dist.broadcast = counted(gather), broadcast
        dist.all_reduce = counted(dist_calls["all_reduce"])
        dist.all_to_all_single = counted(dist_calls["all_to_all_single"])
        try:
            yield self
        finally:
            process_group._all_gather = gather
            for name, call in dist_calls.items():
                setattr(dist, name, call)


def _counted(group, kind, method, measure_every):
    model, optimizer, _ = build(group, kind, None)
    with Counter().listening(group) as counter:
        link = attach(model, optimizer, method, group, measure_every=measure_every)
        setup = (counter.bytes, counter.calls)
        train(model, optimizer, group, range(5))
    return setup, (counter.bytes, counter.calls), link.stats


@KINDS
@pytest.mark.parametrize("method", EVERY, ids=_label)
def test_reported_bytes_are_the_bytes_handed_over(pool, kind, method):
    for setup, total, stats in pool.run(3, _counted, kind, method, 0):
        assert stats.wire_bytes + stats.setup_bytes == total[0]
        assert stats.wire_bytes > 0
        # Ranges are re-cut as steps go by, and shape messages.
        cut = method.exchange.name == "sharded_mean"
        shakes = method.compressor.counts_vary or method.tuner.name == "warmup" or cut
        assert stats.setup_bytes == setup[0] + shakes * HANDSHAKE_BYTES
        # Nothing but the exchanges themselves: sizes are known, not asked for.
        assert total[1] - setup[1] == stats.collectives + shakes


@KINDS
@pytest.mark.parametrize("method", [m for m in METHODS if m.memory != "none" and m not in COUNTED], ids=_label)
def test_what_measuring_costs_is_counted_too(pool, kind, method):
    for setup, total, stats in pool.run(2, _counted, kind, method, 2):
        assert stats.wire_bytes + stats.setup_bytes == total[0]
        assert total[1] - setup[1] - 1 <= stats.collectives <= total[1] - setup[1]
        assert len(stats.history) == 3


@pytest.mark.parametrize(("method", "kind"), in_turn(EVERY, ["ddp", "plain"], ids=_label))
def test_one_rank_alone_hands_nothing_over(pool, kind, method):
    [(_, total, stats)] = pool.run(1, _counted, kind, method, 0)
    assert total == (0, 0)
    assert (stats.wire_bytes, stats.setup_bytes, stats.collectives) == (0, 0, 0)
    assert stats.steps == 5
    assert stats.ratio == float("inf")


def _collectives_and_buckets(group, kind, method):
    model, optimizer, link = build(group, kind, method)
    begin, buckets, calls = link.reducer.begin, [], []

    def watched(*args, **kwargs):
        buckets[-1] += 1
        return begin(*args, **kwargs)

    link.reducer.begin = watched
    for step in range(4):
        buckets.append(0)
        before = link.stats.collectives
        train(model, optimizer, group, [step])
        calls.append(link.stats.collectives - before)
    return buckets, calls


@pytest.mark.parametrize("method", METHODS, ids=_label)
def test_a_step_of_ddp_has_one_collective_a_bucket_and_one_in_all_over_the_whole_model(pool, method):
    for buckets, calls in pool.run(3, _collectives_and_buckets, "ddp", method):
        assert max(buckets) > 1
        assert calls == ([1] * 4 if method.scope == "model" else buckets)


@pytest.mark.parametrize("method", METHODS, ids=_label)
def test_a_step_of_a_plain_module_has_one_collective(pool, method):
    for buckets, calls in pool.run(3, _collectives_and_buckets, "plain", method):
        assert buckets == calls == [1] * 4


@pytest.mark.parametrize("method", OF_TWO_ROUNDS, ids=_label)
def test_two_rounds_are_two_collectives(pool, method):
    for buckets, calls in pool.run(3, _collectives_and_buckets, "ddp", method):
        # Where a bucket has no matrix that is worth it, one round does.
        assert all(bucket <= handed <= 2 * bucket for bucket, handed in zip(buckets, calls, strict=True))
        assert sum(calls) > sum(buckets)


def _sizes(group, kind, values):
    method = replace(laconic.topk_sgd(0.05), exchange=GatherMean(values=values))
    model, optimizer, link = build(group, kind, method)
    train(model, optimizer, group, range(3))
    entries = sum(p.numel() for p in model.parameters())
    return link.stats, entries, len(list(model.parameters()))


@KINDS
@pytest.mark.parametrize("values", [Exact(), Linear(bits=4)], ids=str)
def test_the_bytes_of_topk_follow_from_its_density(pool, kind, values):
    for stats, entries, parameters in pool.run(2, _sizes, kind, values):
        whole = Segments.of(["all"], [entries])
        chosen = (round(0.05 * entries),)
        plan = Plan(known=torch.empty(0, dtype=torch.int64), known_sizes=(), choosing=whole, rooms=chosen)
        notes = parameters if kind == "plain" else 0
        frame = wire.Frame(plan=plan, form=values.form, dtype=torch.float32, notes=notes)
        assert stats.wire_bytes == 3 * frame.total
        assert stats.dense_bytes == 3 * 4 * entries
        assert stats.ratio == stats.dense_bytes / stats.wire_bytes
        assert stats.density == round(0.05 * entries) / entries


def _padded(group, kind, method):
    """Of each step: the bytes of this rank's message, and the mean number of entries that ranks sent."""
    model, optimizer, link = build(group, kind, method)
    slack = []
    for step in range(6):
        before = link.stats.wire_bytes
        train(model, optimizer, group, [step])
        sent = link.state_dict()["seen"]["sent"] / dist.get_world_size(group)
        slack.append((link.stats.wire_bytes - before, sent))
    return slack


@pytest.mark.parametrize("method", COUNTED, ids=_label)
def test_unused_room_travels_and_is_counted(pool, method):
    value_bits = method.exchange.values.form.value_bits(4)
    for slack in pool.run(3, _padded, "plain", method):
        # Header, counts, positions, notes and unused room come on top of what values take.
        assert all(handed > wire.HEADER_BYTES + value_bits * sent / 8 for handed, sent in slack)


def _skipped(group, kind, method):
    model, optimizer, _ = build(group, kind, None)
    with Counter().listening(group) as counter:
        link = attach(model, optimizer, method, group)
        for step in range(3):
            bad = step == 1 and dist.get_rank(group) == 0
            (loss(model, dist.get_rank(group), step) * (float("inf") if bad else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return counter.bytes, link.stats


@pytest.mark.parametrize(("method", "kind"), in_turn(EVERY, ["plain", "ddp"], ids=_label))
def test_a_skipped_step_is_counted_as_what_it_was(pool, kind, method):
    for total, stats in pool.run(2, _skipped, kind, method):
        assert stats.skipped_steps == 1
        assert stats.wire_bytes + stats.setup_bytes == total
