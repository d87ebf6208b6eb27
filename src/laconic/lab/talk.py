"""What ranks of the laboratory tell each other beside the method: sums of scores, wishes to stop, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Talk:
    """A group of its own, over gloo on the host, whatever the gradients travel by; its bytes are counted apart."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo")
        self.wire_bytes = 0

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, the same on each."""
        told = torch.tensor(numbers, dtype=torch.float64)
        self.wire_bytes += told.nbytes
        dist.all_reduce(told, group=self._group)
        return [float(number) for number in told]

    def mean_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave in each tensor its mean over all ranks."""
        if not tensors:
            return
        told = torch.cat([tensor.detach().double().cpu().flatten() for tensor in tensors])
        self.wire_bytes += told.nbytes
        dist.all_reduce(told, group=self._group)
        means = (told / self.ranks).split([tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))

    def wait(self) -> None:
        """Wait until every rank is here."""
        dist.barrier(group=self._group)

    def first_error(self, error: str | None) -> str | None:
        """Tell this rank's error, if it has one, and return the first that any rank has, with its rank."""
        told: list[str | None] = [None] * self.ranks
        dist.all_gather_object(told, error, group=self._group)
        found = [(rank, text) for rank, text in enumerate(told) if text is not None]
        if not found:
            return None
        rank, text = found[0]
        return text if len(found) == self.ranks else f"rank {rank}: {text}"

    def of_first(self, value: T) -> T:
        """Return the first rank's value on every rank."""
        told = [value]
        dist.broadcast_object_list(told, src=0, group=self._group)
        return told[0]
