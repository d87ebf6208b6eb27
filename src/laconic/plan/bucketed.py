"""A DDP hook that exchanges nothing and notes what it sees."""

# DDP compares a hook's annotations as objects, so this file cannot postpone their evaluation.
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future


@dataclass
class Bucketed:
    """What the hook sees of a step: when each bucket came, whose it is, and, if it ``keeps`` that, what it held."""

    keeps: bool = False
    stamps: list[float] = field(default_factory=list)
    parameters: list[list[int]] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def clear(self) -> None:
        """Forget the step before."""
        self.stamps, self.parameters, self.gradients = [], [], []


def note(bucketed: Bucketed, bucket: GradBucket) -> Future[Tensor]:
    """Hand a bucket back as it is."""
    buffer = bucket.buffer()
    bucketed.stamps.append(now(buffer.device))
    bucketed.parameters.append([id(p) for p in bucket.parameters()])
    if bucketed.keeps:
        bucketed.gradients.append(buffer.clone())
    future: Future[Tensor] = Future(devices=[buffer.device] if buffer.device.type == "cuda" else None)
    future.set_result(buffer)
    return future


def now(device: torch.device) -> float:
    """Return the time when the device is done with what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
