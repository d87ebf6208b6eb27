"""Several ranks on this machine, through torch's own elastic launcher."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

T = TypeVar("T")


def run_ranks(ranks: int, work: Callable[..., T], *args: Any) -> T:
    """Call ``work(*args)`` on that many local ranks joined by gloo; return what rank 0 returns.

    If one rank raises, all are ended and the error is raised here.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="spawn",
    )
    # The launcher reports each failure itself, at length, before it raises it.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    results: dict[int, T] = elastic_launch(config, _join)(work, *args)
    return results[0]


def _join(work: Callable[..., T], *args: Any) -> T:
    # Ranks share this machine's cores: more threads only make them wait for each other.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        return work(*args)
    finally:
        dist.destroy_process_group()
