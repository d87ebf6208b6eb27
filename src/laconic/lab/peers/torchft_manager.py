"""What both peers of torchft need: a lighthouse on the first rank, and on every rank a store and a manager."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

_JOIN_MILLISECONDS = 10_000


def missing() -> str:
    """Say how to install torchft where it is not."""
    return "" if find_spec("torchft") else "torchft is not installed: pip install torchft==0.2.0"


def patience() -> timedelta:
    """Return how long ranks wait in the default group: whoever set it up knows what its links take."""
    group: Any = dist.group.WORLD
    waits: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    return waits


@contextmanager
def managed() -> Iterator[Any]:
    """Give a manager whose replicas are the ranks, which begin with equal weights; all is shut in the end."""
    torchft, coordination = import_module("torchft"), import_module("torchft.coordination")
    for name in ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors"):
        logging.getLogger(name).setLevel(logging.ERROR)
    own, ranks, waits = os.environ["LACONIC_ADDRESS"], dist.get_world_size(), patience()
    address = [""]
    with ExitStack() as ends:
        if dist.get_rank() == 0:
            lighthouse = coordination.LighthouseServer(
                bind=f"{own}:0", min_replicas=ranks, join_timeout_ms=_JOIN_MILLISECONDS
            )
            ends.callback(lighthouse.shutdown)
            # It calls itself by the machine's name, which other hosts need not know.
            address = [f"http://{own}:{lighthouse.address().rsplit(':', 1)[1]}"]
        dist.broadcast_object_list(address, src=0)
        # The manager asks it as long as it lives.
        store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
        group = torchft.ProcessGroupGloo(timeout=waits)
        ends.callback(group.shutdown)
        manager = torchft.Manager(
            pg=group, load_state_dict=lambda _: None, state_dict=dict, min_replica_size=ranks,
            use_async_quorum=False, timeout=waits, quorum_timeout=waits, rank=0, world_size=1, store_addr=own,
            store_port=store.port, lighthouse_addr=address[0], replica_id=f"rank-{dist.get_rank()}", hostname=own,
            init_sync=False,
        )  # fmt: skip
        ends.callback(manager.shutdown, wait=False)
        yield manager
