"""What a rank does on its host for ``honest_bytes.py``: ask and train, and look at the interface before and after.

Ranks meet by files between looks, not by the network, so that nothing but the work is in what the interface counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.collectives import AllGather, AllReduce, AllToAll, Reply, Request, Traffic, Transport, link_bytes
from laconic.exchanges import TwoLevel
from laconic.lab.data.embedded import python_docs
from laconic.lab.method_words import make
from laconic.lab.models.gpt import GPT
from laconic.transports import ProcessGroupTransport, process_group

# What is on its way is acknowledged within this time: Linux delays acknowledgements by up to 0.2 s.
_SETTLE_SECONDS = 0.25
_POLL_SECONDS = 0.005
_MESSAGE_BYTES, _SMALL_BYTES = 1 << 20, 96
_TCP = Path("/proc/net/snmp")
_WINDOW = 64
# DDP deals its buckets out anew after the first step, and says so to the other ranks.
_UNCOUNTED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Task:
    """What ranks are to do; ``node_size`` of them share a host."""

    methods: tuple[str, ...]
    steps: int
    node_size: int = 1
    requests: bool = False
    width: int = 256
    layers: int = 4


class Looks:
    """Looks at the interface, before and after work that all ranks do together."""

    def __init__(self, folder: Path, interface: str) -> None:
        self._folder, self._counters = folder, Path("/sys/class/net") / interface / "statistics"
        self._rank, self._ranks, self._met = dist.get_rank(), dist.get_world_size(), 0
        self._kinds: Counter[str] = Counter()
        self.rows: list[dict[str, Any]] = []
        process_group.link_bytes = self._listening(link_bytes)  # type: ignore[attr-defined]

    def around(self, what: str, transport: Transport, work: Callable[[], None]) -> None:
        """Do the work; note what the interface sent meanwhile, and what the transport says of it."""
        sent, said = self._settled(), Traffic.of(transport)
        self._kinds.clear()
        self._meet()
        work()
        self._meet()
        grown, told = self._settled(), Traffic.of(transport) - said
        row = {name: grown[name] - sent[name] for name in sent}
        counted = {name: getattr(told, name) for name in ("link_bytes", "wire_bytes", "node_bytes", "collectives")}
        self.rows.append({"what": what, "rank": self._rank, "kinds": dict(self._kinds)} | row | counted)

    def _listening(self, call: Callable[..., int]) -> Callable[..., int]:
        """Return the transport's counting, with the kinds of what is asked for counted, too."""

        def listening(request: Request, **settings: int) -> int:
            some = " of some" if isinstance(request, AllGather) and request.senders is not None else ""
            self._kinds[type(request).__name__ + some] += 1
            return call(request, **settings)

        return listening

    def _settled(self) -> dict[str, int]:
        self._meet()
        time.sleep(_SETTLE_SECONDS)
        names, values = (line.split() for line in _TCP.read_text().splitlines() if line.startswith("Tcp:"))
        repeated = int(values[names.index("RetransSegs")])
        counts = {name: int((self._counters / name).read_text()) for name in ("tx_bytes", "tx_packets")}
        return counts | {"repeated_packets": repeated}

    def _meet(self) -> None:
        self._met += 1
        (self._folder / f"met-{self._met}-{self._rank}").touch()
        waiting = [self._folder / f"met-{self._met}-{rank}" for rank in range(self._ranks)]
        while not all(mark.exists() for mark in waiting):
            time.sleep(_POLL_SECONDS)


def ask(looks: Looks, times: int) -> None:
    """Ask for each kind of collective by itself."""
    assert dist.group.WORLD is not None
    transport = ProcessGroupTransport(dist.group.WORLD, torch.device("cpu"))
    rank, ranks = transport.rank, transport.world_size
    message, shares = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8), [rank + r + 1 for r in range(ranks)]
    # Rank r gives rank s as much as it hears from it, and every pair another share.
    dealt = tuple(share * _MESSAGE_BYTES // (2 * ranks) for share in shares)
    small = (_SMALL_BYTES,) * ranks
    requests: dict[str, Callable[[], Request]] = {
        "gather": lambda: AllGather(send=message),
        "sum": lambda: AllReduce(send=message.view(torch.float32)),
        "deal": lambda: AllToAll(send=torch.zeros(sum(dealt), dtype=torch.uint8), given=dealt, heard=dealt),
        "gather of rank 1": lambda: _of((1,), message, rank),
        "gather, small": lambda: AllGather(send=message[:_SMALL_BYTES]),
        "sum, small": lambda: AllReduce(send=message[:_SMALL_BYTES].view(torch.float32)),
        "deal, small": lambda: AllToAll(send=message[: _SMALL_BYTES * ranks], given=small, heard=small),
    }
    if ranks > 2:
        requests["gather of ranks 0, 1"] = lambda: _of((0, 1), message, rank)
    for what, request in requests.items():
        looks.around(what, transport, lambda request=request: _answered(transport, request, times))  # type: ignore[misc]
    looks.around("broadcast", transport, lambda: _broadcast(transport, message, times))


def _of(senders: tuple[int, ...], message: torch.Tensor, rank: int) -> AllGather:
    return AllGather(send=message if rank in senders else message[:0], senders=senders, size=message.numel())


def _answered(transport: ProcessGroupTransport, request: Callable[[], Request], times: int) -> None:
    def asking() -> Generator[Request, Reply, Reply]:
        return (yield request())

    for _ in range(times):
        transport.start(asking(), label="a request")
        transport.drain()


def _broadcast(transport: ProcessGroupTransport, message: torch.Tensor, times: int) -> None:
    for _ in range(times):
        transport.broadcast_(message)


def train(looks: Looks, word: str, task: Task) -> None:
    """Train a small language model on Python's documentation, with some steps before those that count."""
    torch.manual_seed(0)
    tokens = torch.frombuffer(bytearray(python_docs().train.encode()), dtype=torch.uint8).long()
    chance = torch.Generator().manual_seed(dist.get_rank())
    gpt = GPT(256, window=_WINDOW, width=task.width, layers=task.layers)
    model = DistributedDataParallel(gpt, bucket_cap_mb=3, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = make(word)
    if task.node_size > 1:
        method = replace(method, exchange=TwoLevel(inner=method.exchange, node_size=task.node_size))

    def steps(count: int) -> None:
        for _ in range(count):
            places = torch.randint(tokens.numel() - _WINDOW, (2,), generator=chance).tolist()
            batch = torch.stack([tokens[place : place + _WINDOW + 1] for place in places])
            scores = model(batch[:, :-1], None).scores
            functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

    with laconic.attach(model, optimizer, method) as link:
        steps(_UNCOUNTED_STEPS)
        before = link.stats.link_bytes
        looks.around(word, link.transport, lambda: steps(task.steps))
        row, entries = looks.rows[-1], sum(p.numel() for p in gpt.parameters())
        if link.stats.link_bytes - before != row["link_bytes"]:
            raise ValueError(f"stats say {link.stats.link_bytes - before}, the transport {row['link_bytes']}.")
        row |= {"entries": entries, "density": link.stats.density, "steps": task.steps}


def main(folder: Path) -> None:
    task = Task(**json.loads((folder / "task.json").read_text()))
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    looks = Looks(folder, os.environ["GLOO_SOCKET_IFNAME"])
    if task.requests:
        ask(looks, task.steps)
    for word in task.methods:
        train(looks, word, task)
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(looks.rows))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
