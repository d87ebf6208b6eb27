"""How much a worker hears and sends in one exchange, by the number of workers: all of them in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from laconic.codecs import by_name
from laconic.collectives import AllReduce, Reply, Request, link_bytes, members
from laconic.compressors import Dense, TopK
from laconic.exchanges import GatherMean, ReduceMean, ShardedMean, TwoLevel
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Mean, Steps

_DENSITY, _NODE = 0.01, 8


@dataclass
class Traffic:
    """What one worker heard from and sent to others; with nodes, other nodes."""

    heard: int = 0
    sent: int = 0


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to exchange, in nodes of so many workers; volumes are those of the last of so many exchanges."""

    exchange: Exchange
    compressor: Compressor
    node_size: int = 1
    steps: int = 1


def _ways() -> dict[str, Way]:
    # Ranges of shards are cut by what came in the exchange before.
    top, values = TopK(density=_DENSITY), by_name("int4")
    nodes = TwoLevel(inner=GatherMean(values=values), node_size=_NODE)
    return {
        "gather": Way(exchange=GatherMean(values=values), compressor=top),
        "sharded": Way(exchange=ShardedMean(values=values), compressor=top, steps=2),
        "two_level": Way(exchange=nodes, compressor=top, node_size=_NODE),
        "gather, exact": Way(exchange=GatherMean(), compressor=top),
        "sharded, exact": Way(exchange=ShardedMean(), compressor=top, steps=2),
        "dense ring": Way(exchange=ReduceMean(), compressor=Dense()),
    }


WAYS = tuple(_ways())


def volume_row(workers: int, entries: int) -> dict[str, Any]:
    """Return what each way takes with so many workers, each of which has a vector of so many entries."""
    found = {}
    for name, way in _ways().items():
        if workers % way.node_size == 0 and workers > way.node_size:
            traffic = _run(way, workers, entries)
            found[name] = {"heard": traffic.heard, "sent": traffic.sent}
    return {"workers": workers, "chosen": round(_DENSITY * entries), "entries": entries, "ways": found}


def _run(way: Way, workers: int, entries: int) -> Traffic:
    """Run a few exchanges, and return what the busiest worker heard and sent in the last."""
    world, segments = Lockstep(workers, node_size=way.node_size), Segments.of(["vector"], [entries])
    kept: list[dict[str, Any]] = [{} for _ in range(workers)]
    every: list[Traffic] = []
    for step in range(way.steps):
        every, futures = [Traffic() for _ in range(workers)], []
        for rank, port in enumerate(world.ports):
            seed = (rank // way.node_size) * way.steps + step
            x = torch.randn(entries, generator=torch.Generator().manual_seed(seed))
            envelope = Envelope(step=step, world_size=workers, rank=rank, kept=kept[rank])
            steps = way.exchange.steps(x, segments, way.compressor, envelope)
            listened = _listened(steps, every[rank], rank, workers, way.node_size)
            futures.append(port.start(listened, label=f"rank {rank}"))
        world.run()
        kept = [{**before, **f.value().kept} for before, f in zip(kept, futures, strict=True)]
    return Traffic(heard=max(t.heard for t in every), sent=max(t.sent for t in every))


def _listened(steps: Steps, traffic: Traffic, rank: int, workers: int, node_size: int) -> Steps:
    """Run an exchange and count what it asks for between nodes."""
    request: Request = next(steps)
    while True:
        taking = members(request.among, rank=rank, world_size=workers, node_size=node_size)
        between = request.among != "node" and rank in taking
        if between:
            traffic.sent += link_bytes(request, place=taking.index(rank), ranks=len(taking))
        # A sum goes round twice.
        rounds = 2 if isinstance(request, AllReduce) else 1
        reply: Reply = yield request
        traffic.heard += rounds * reply.numel() * reply.element_size() if between else 0
        try:
            request = steps.send(reply)
        except StopIteration as end:
            mean: Mean = end.value
            return mean
