"""Works for crews: ranks are processes of their own, and import them from here."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from laconic.lab.network.meeting import Meeting, MeetingError
from laconic.lab.network.rank import own_folder, rejoin, say
from laconic.lab.peers import peer_of


def introduced(greeting: str) -> dict[str, Any]:
    """Say and return who this rank is."""
    ones = torch.ones(1)
    dist.all_reduce(ones)
    say(f"{greeting} of {int(ones)}")
    names = ("RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "OMP_NUM_THREADS")
    return {name: os.environ[name] for name in names} | {"threads": torch.get_num_threads(), "pid": os.getpid()}


def refuse() -> None:
    raise ValueError("this rank does not want to")


def say_and_sleep() -> None:
    say(str(os.getpid()))
    time.sleep(600)


def several(words: tuple[str, ...]) -> dict[str, Any]:
    """Train three periods of each peer, in a group of its own; then meet, and in vain at last."""
    out: dict[str, Any] = {"place": introduced("one")}
    for number, word in enumerate(words):
        rejoin(f"peer-{number}", 30)
        out[word] = trained(word)
    met = Meeting(own_folder() / "met", dist.get_rank(), dist.get_world_size(), seconds=20)
    out["met"] = [met.meet(10.0 * turn + dist.get_rank()) for turn in range(5)]
    if dist.get_rank() == 1:
        met.leave()
        return out
    try:
        met.meet()
    except MeetingError as error:
        out["left"] = str(error)
    late = Meeting(own_folder() / "late", dist.get_rank(), dist.get_world_size(), seconds=0.05)
    try:
        late.meet()
    except MeetingError as error:
        out["late"] = str(error)
    return out


def trained(word: str) -> dict[str, Any]:
    """Return what a peer's three periods make of the weights, and what they were before."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    before = torch.cat([p.detach().flatten().clone() for p in module.parameters()])
    torch.manual_seed(1 + dist.get_rank())
    x, peer = torch.randn(4, 16), peer_of(word)
    prepared = peer.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    for _ in range(3 * peer.period):
        prepared.optimizer.zero_grad()
        prepared.model(x).square().mean().backward()
        prepared.optimizer.step()
    if prepared.link is None:
        after = torch.cat([p.detach().flatten().clone() for p in module.parameters()])
    else:
        with prepared.link.averaged():
            after = torch.cat([p.detach().flatten().clone() for p in module.parameters()])
    prepared.close()
    return {"before": before, "after": after}
