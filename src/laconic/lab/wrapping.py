"""A task's model as ranks train it: in DDP, whose buckets travel while backward goes on."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from laconic.lab.work import Work

# Small models have several buckets too, so that sending overlaps backward as it does in large ones.
_BUCKET_MEGABYTES = 1


def in_buckets(model: torch.nn.Module, device: torch.device) -> DistributedDataParallel:
    """Wrap a model in DDP with small buckets."""
    on_gpu = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, bucket_cap_mb=_BUCKET_MEGABYTES, device_ids=on_gpu, **_buffers_stay())


def settle_buckets(ddp: DistributedDataParallel, work: Work) -> None:
    """Have DDP order its buckets as a run has them from its second step on, by a step that is thrown away.

    With three ranks or more the order in which gloo adds up depends on where a gradient lies in its bucket.
    """
    before = work.state_dict()
    work.loss(ddp, work.batch(0)).backward()
    ddp.zero_grad()
    work.load_state_dict(before)


def _buffers_stay() -> dict[str, Any]:
    """Keep DDP from sending buffers (BatchNorm's) in every step: they are averaged before an evaluation."""
    # The option has another name since torch 2.13, where the old one warns.
    new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if new else "broadcast_buffers": False}
