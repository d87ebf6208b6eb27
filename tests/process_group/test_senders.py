"""Some ranks send over gloo: the bits and the bytes of lockstep, and a wrong message is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.codecs import Binned
from laconic.collectives import AllGather
from laconic.compressors import ChunkTopK
from laconic.exchanges import GatherMean
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports import Lockstep, ProcessGroupTransport
from models import digest

MODEL = Segments.of(["a", "b", "c", "scalar"], [3000, 257, 40, 1])
BUCKETS = [("scalar", "c"), ("b", "a")]
TURNS = {2: [(0,), (1,), (0, 1)], 3: [(2,), (0, 1), None, (1, 2)], 4: [(0, 3), (2,), (0, 1, 2, 3), None, (1, 2, 3)]}
LOCO = replace(
    laconic.topk(0.02),
    compressor=ChunkTopK(k=8, chunk=512),
    exchange=GatherMean(over="senders", values=Binned()),
    decay=0.95,
)
CASES = {
    "topk": laconic.topk(0.02),
    "gaussiank": laconic.gaussiank(0.02, whole_below=0),
    "randomk": replace(laconic.randomk(0.02), exchange=GatherMean()),
    "sdagc": laconic.sdagc(3.0, momentum=False, clip=0.5, scope="layer", values="exact"),
    "loco": LOCO,
}


def _begin(reducer, rank, step, senders):
    source, grads = torch.Generator().manual_seed(100 * rank + step), []
    reducer.begin_step(rates=dict.fromkeys(MODEL.names, 0.1), senders=senders)
    for i, names in enumerate(BUCKETS):
        sizes = [MODEL[name].size for name in names]
        grads.append(torch.randn(sum(sizes), generator=source))
        notes = torch.tensor([1, rank], dtype=torch.uint8) if i == 0 else None
        reducer.begin(grads[-1], Segments.of(names, sizes), notes=notes)
    return grads


def _summary(reducer, seen):
    state, stats = reducer.state_dict(), reducer.stats()
    numbers = (stats.steps, stats.wire_bytes, stats.collectives, stats.density)
    return seen, digest(state["memory"]["owed"].values()), numbers, state["ledger"]["rooms"]


def _over_gloo(group, method, turns):
    rank, seen = dist.get_rank(group), []
    reducer = Reducer(method, MODEL, ProcessGroupTransport(group, torch.device("cpu")), fingerprint=7)
    for step, senders in enumerate(turns):
        grads = _begin(reducer, rank, step, senders)
        reducer.end_step()
        seen.append((digest(grads), reducer.outcome.notes.tolist()))
    return _summary(reducer, seen)


def _in_lockstep(ranks, method, turns):
    world = Lockstep(ranks)
    reducers = [Reducer(method, MODEL, port, fingerprint=7) for port in world.ports]
    seen = [[] for _ in reducers]
    for step, senders in enumerate(turns):
        grads = [_begin(r, rank, step, senders) for rank, r in enumerate(reducers)]
        for reducer in reducers:
            reducer.end_step()
        for rank, reducer in enumerate(reducers):
            seen[rank].append((digest(grads[rank]), reducer.outcome.notes.tolist()))
    return [_summary(r, s) for r, s in zip(reducers, seen, strict=True)]


@pytest.mark.parametrize("ranks", TURNS)
@pytest.mark.parametrize("case", CASES)
def test_gloo_and_lockstep_give_the_same_bits_and_bytes(pool, case, ranks):
    theirs = pool.run(ranks, _over_gloo, CASES[case], TURNS[ranks])
    assert theirs == _in_lockstep(ranks, CASES[case], TURNS[ranks])
    first, *others = theirs
    assert all(other[0] == first[0] for other in others), "models agree after every step"
    assert len({mean for mean, _ in first[0]}) == len(TURNS[ranks])


def _rows(group, senders):
    transport, rank = ProcessGroupTransport(group, torch.device("cpu")), dist.get_rank(group)

    def asking():
        send = torch.arange(3, dtype=torch.int32) + 10 * rank
        return (yield AllGather(send=send if rank in senders else send[:0], senders=senders, size=12))

    futures = [transport.start(asking(), label="rows") for _ in range(2)]
    transport.drain()
    return [f.value().tolist() for f in futures], transport.wire_bytes, transport.collectives


@pytest.mark.parametrize("senders", [(0,), (3,), (1, 2), (0, 1, 3), (0, 1, 2, 3)], ids=str)
def test_a_row_a_sender_in_rank_order_and_a_message_counts_once(pool, senders):
    rows = [[10 * rank, 10 * rank + 1, 10 * rank + 2] for rank in senders]
    got = pool.run(4, _rows, senders)
    assert got == [([rows, rows], 24 if rank in senders else 0, 2) for rank in range(4)]


def test_a_world_of_one_hears_itself(pool):
    assert pool.run(1, _rows, (0,)) == [([[[0, 1, 2]]] * 2, 0, 0)]


def _wrong(group, count, size):
    transport = ProcessGroupTransport(group, torch.device("cpu"))

    def asking():
        yield AllGather(send=torch.zeros(count, dtype=torch.uint8), senders=(0,), size=size)

    try:
        transport.start(asking(), label="a wrong message")
    except ValueError as error:
        return str(error)
    return ""


def test_a_message_of_the_wrong_size_is_refused_before_any_rank_waits(pool):
    for texts in (pool.run(2, _wrong, 5, 4), pool.run(2, _wrong, 3, 4)):
        assert all(
            "the senders being (0,) and a message having 4. Give a sender's message whole" in t for t in texts
        )
