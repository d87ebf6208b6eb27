"""In which process group ranks exchange."""

from __future__ import annotations

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from laconic.errors import LaconicError


def talking_in(ddp: DistributedDataParallel | None, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group that ranks exchange in: DDP's own, the one that was given, or the default one."""
    if ddp is None:
        group = group or _default_group()
        if dist.get_rank(group) < 0:
            raise ValueError(
                "this rank is not in the group it was given. Call attach on the group's own ranks only."
            )
        return group
    if group is not None and group is not ddp.process_group:
        raise ValueError("the DDP module has a process group of its own; leave group out.")
    return ddp.process_group


def _default_group() -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise LaconicError(
            "attach needs a process group, and none is initialised. Call torch.distributed."
            "init_process_group('gloo') first and start the script with:\n"
            "    torchrun --nproc-per-node 2 train.py"
        )
    group = dist.group.WORLD
    assert group is not None
    return group
