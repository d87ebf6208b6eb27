"""How much a worker hears and sends in one exchange, by the number of workers: all of them in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from laconic.codecs import by_name
from laconic.collectives import AllReduce, Reply, Request
from laconic.compressors import Dense, TopK
from laconic.exchanges import GatherMean, ReduceMean, ShardedMean, TwoLevel
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Mean, Steps

_DENSITY, _NODE = 0.01, 8


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
            found[name] = _run(way, workers, entries)
    return {"workers": workers, "chosen": round(_DENSITY * entries), "entries": entries, "ways": found}


def _run(way: Way, workers: int, entries: int) -> dict[str, int]:
    """Run exchanges, and return what the busiest worker heard from and sent to others in the last."""
    world, segments = Lockstep(workers, node_size=way.node_size), Segments.of(["vector"], [entries])
    kept: list[dict[str, Any]] = [{} for _ in range(workers)]
    heard, before = [0] * workers, [0] * workers
    for step in range(way.steps):
        heard, before, futures = [0] * workers, [port.link_bytes for port in world.ports], []
        for rank, port in enumerate(world.ports):
            seed = (rank // way.node_size) * way.steps + step
            x = torch.randn(entries, generator=torch.Generator().manual_seed(seed))
            envelope = Envelope(step=step, world_size=workers, rank=rank, kept=kept[rank])
            steps = way.exchange.steps(x, segments, way.compressor, envelope)
            futures.append(port.start(_listened(steps, heard, rank), label=f"rank {rank}"))
        world.run()
        kept = [{**known, **f.value().kept} for known, f in zip(kept, futures, strict=True)]
    sent = [port.link_bytes - was for port, was in zip(world.ports, before, strict=True)]
    return {"heard": max(heard), "sent": max(sent)}


def _listened(steps: Steps, heard: list[int], rank: int) -> Steps:
    """Run an exchange and add up the bytes that come from other nodes; one who takes no part hears nothing."""
    request: Request = next(steps)
    while True:
        # A sum goes round twice.
        rounds = 2 if isinstance(request, AllReduce) else 1
        reply: Reply = yield request
        heard[rank] += 0 if request.among == "node" else rounds * reply.numel() * reply.element_size()
        try:
            request = steps.send(reply)
        except StopIteration as end:
            mean: Mean = end.value
            return mean
