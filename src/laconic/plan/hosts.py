"""Who works on a host, and what talking costs: within a host, where no link is in the way, and between hosts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf
from statistics import mean

import torch
import torch.distributed as dist

from laconic.plan.facts import Cost, Host
from laconic.plan.measure_link import Measured, measure, ping_pong
from laconic.plan.predict import Link
from laconic.sim.network import Kind

_KINDS: dict[str, Kind] = {"gather": "gather", "sum": "sum", "half": "sum"}
_FREE = Cost(latency=0.0, per_byte=0.0)


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """So many ranks ``here``, which work at once, and their group (None: this one only talks).

    ``several``: there are other hosts with as many.
    """

    group: dist.ProcessGroup | None
    here: int
    several: bool


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What talking costs this host, the link as given or measured, and the seconds by size that say so."""

    host: Host
    link: Link
    seconds: dict[str, dict[int, float]]


def gather_crowd(*, sharing: int, spread: bool) -> Crowd:
    """Find the ranks of this host: where they are ``spread`` those of every host work, else the first few."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if spread:
        told: list[tuple[int, int]] = [(0, 0)] * ranks
        dist.all_gather_object(told, (sharing, int(os.environ["LOCAL_RANK"])))
        check_hosts(told)
    own = None
    for first in range(0, ranks, sharing) if spread else [0]:
        members = list(range(first, first + sharing))
        made = dist.new_group(members)
        own = made if rank in members else own
    return Crowd(group=own, here=sharing, several=spread and sharing < ranks)


def check_hosts(told: Sequence[tuple[int, int]]) -> None:
    """Refuse hosts of unlike numbers of ranks; by rank: how many its host has, and its place among them.

    >>> check_hosts([(2, 0), (2, 1), (2, 0), (2, 1)])
    """
    sharing = told[0][0]
    if any(pair != (sharing, rank % sharing) for rank, pair in enumerate(told)) or len(told) % sharing:
        raise ValueError(
            f"every host must have as many ranks, one host's behind the other's; by rank, those on its host are "
            f"{[here for here, _ in told]} and its place among them {[place for _, place in told]}. Start as many "
            f"on each, as torchrun --nproc-per-node does, or run on one machine, with --bandwidth."
        )


def listen(link: Link, crowd: Crowd, *, measured: bool, busy: bool, device: torch.device) -> Heard:
    """Measure the host's own part among its ranks and, if it is to be ``measured``, the link among all of them.

    A rank alone on its host has nobody there to talk to: the host's part is then taken for nothing.
    """
    alone = crowd.several and crowd.here == 1
    own = {} if alone else _times(_KINDS, device, crowd.group if crowd.several else None)
    costs = {word: own[word].cost if own else _FREE for word in _KINDS}
    host = Host(**costs, busy=busy and not alone)
    between = _times(("gather", "sum"), device, None) if measured and crowd.several else {}
    found = link
    if measured:
        rate, latency = _fitted((between or own)[word].cost for word in ("gather", "sum"))
        inside_rate, inside_latency = _fitted([host.gather, host.sum])
        found = replace(
            link,
            bandwidth=rate,
            latency=1e3 * max(latency, ping_pong(ranks=dist.get_world_size())),
            # What is given for the inside counts: the machine that plans may have another.
            inside_bandwidth=inside_rate if isinf(link.inside_bandwidth) else link.inside_bandwidth,
            inside_latency=1e3 * inside_latency,
            measured=True,
        )
    seconds = {word: one.seconds for word, one in own.items()}
    seconds |= {f"link {word}": one.seconds for word, one in between.items()}
    return Heard(host=host, link=found, seconds=seconds)


def _times(words: Iterable[str], device: torch.device, group: dist.ProcessGroup | None) -> dict[str, Measured]:
    return {word: measure(_KINDS[word], device=device, group=group, half=word == "half") for word in words}


def _fitted(costs: Iterable[Cost]) -> tuple[float, float]:
    """Return megabits a second and seconds of latency, of the means of costs."""
    known = list(costs)
    per_byte = mean(cost.per_byte for cost in known)
    return 8e-6 / per_byte if per_byte > 0 else inf, mean(cost.latency for cost in known)
