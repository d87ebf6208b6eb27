"""What both peers of torchft need: a lighthouse on the first rank, and on every rank a store and a manager."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

# A sync of a large model over a slow link takes long, and is not to be given up meanwhile.
_PATIENCE = timedelta(seconds=300)
_JOIN_MILLISECONDS = 10_000


@dataclass(frozen=True, kw_only=True)
class Managed:
    """A manager, the store that it asks as long as it lives, and what shuts everything down."""

    manager: Any
    store: TCPStore
    close: Callable[[], None]


def missing() -> str:
    """Say how to install torchft where it is not."""
    return "" if find_spec("torchft") else "torchft is not installed: pip install torchft==0.2.0"


def managed() -> Managed:
    """Return a manager whose replicas are the ranks; they begin with equal weights."""
    torchft, coordination = import_module("torchft"), import_module("torchft.coordination")
    for name in ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors"):
        logging.getLogger(name).setLevel(logging.ERROR)
    own, ranks = os.environ["LACONIC_ADDRESS"], dist.get_world_size()
    lighthouse, address = None, [""]
    if dist.get_rank() == 0:
        lighthouse = coordination.LighthouseServer(
            bind="0.0.0.0:0", min_replicas=ranks, join_timeout_ms=_JOIN_MILLISECONDS
        )
        # It calls itself by the machine's name, which other hosts need not know.
        address = [f"http://{own}:{lighthouse.address().rsplit(':', 1)[1]}"]
    dist.broadcast_object_list(address, src=0)
    store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
    group = torchft.ProcessGroupGloo(timeout=_PATIENCE)
    manager = torchft.Manager(
        pg=group, load_state_dict=lambda _: None, state_dict=dict, min_replica_size=ranks, use_async_quorum=False,
        timeout=_PATIENCE, quorum_timeout=_PATIENCE, rank=0, world_size=1, store_addr=own, store_port=store.port,
        lighthouse_addr=address[0], replica_id=f"rank-{dist.get_rank()}", hostname=own, init_sync=False,
    )  # fmt: skip

    def close() -> None:
        manager.shutdown(wait=False)
        group.shutdown()
        if lighthouse is not None:
            lighthouse.shutdown()

    return Managed(manager=manager, store=store, close=close)
