"""What ranks of the laboratory tell each other beside the method: sums of scores, wishes to stop, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from laconic.transports import roll_call

T = TypeVar("T")


class Talking(Protocol):
    """How ranks talk beside the method."""

    rank: int
    ranks: int
    wire_bytes: int

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, the same on each."""
        ...

    def mean_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave in each tensor its mean over all ranks."""
        ...

    def wait(self) -> None:
        """Wait until every rank is here."""
        ...

    def first_error(self, error: str | None) -> str | None:
        """Tell this rank's error, if it has one, and return the first that any rank has, with its rank."""
        ...

    def of_first(self, value: T) -> T:
        """Return the first rank's value on every rank."""
        ...


class Talk:
    """A group of its own, over gloo on the host, whatever the gradients travel by; its bytes are counted apart."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        everyone = dist.distributed_c10d._get_default_group()
        waits = everyone._get_backend(everyone._device_types[0]).options._timeout
        self._group = dist.new_group(backend="gloo", timeout=waits)
        roll_call.enroll(self._group)
        self.wire_bytes = 0

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, the same on each."""
        told = torch.tensor(numbers, dtype=torch.float64)
        self.wire_bytes += told.nbytes
        with self._watched("what ranks tell each other between steps"):
            dist.all_reduce(told, group=self._group)
        return [float(number) for number in told]

    def mean_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave in each tensor its mean over all ranks."""
        if not tensors:
            return
        told = in_one(tensors)
        self.wire_bytes += told.nbytes
        with self._watched("the mean of what ranks have beside parameters"):
            dist.all_reduce(told, group=self._group)
        spread_(tensors, told / self.ranks)

    def wait(self) -> None:
        """Wait until every rank is here."""
        with self._watched("the wait for all ranks"):
            dist.barrier(group=self._group)

    def first_error(self, error: str | None) -> str | None:
        """Tell this rank's error, if it has one, and return the first that any rank has, with its rank."""
        told: list[str | None] = [None] * self.ranks
        with self._watched("the count of those that are ready"):
            dist.all_gather_object(told, error, group=self._group)
        return first_of(told)

    def of_first(self, value: T) -> T:
        """Return the first rank's value on every rank."""
        told = [value]
        with self._watched("what the first rank tells the others"):
            dist.broadcast_object_list(told, src=0, group=self._group)
        return told[0]

    @contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise roll_call.lost(self._group, what, error) from error


class AgreedError(Exception):
    """What went wrong on a rank, or on all of them, raised on all of them."""


def together(talk: Talking, what: Callable[[], T]) -> T:
    """Return what it returns; if it fails on any rank, all raise that rank's error, and none waits for another."""
    made, error = [], None
    try:
        made = [what()]
    except (ValueError, OSError, ImportError) as failure:
        error = str(failure)
    error = talk.first_error(error)
    if error is not None:
        raise AgreedError(error)
    return made[0]


def in_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the entries of all tensors, one behind the other, with the precision to add them up."""
    # Off the device in one go: each is waited for.
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors]).cpu()


def spread_(tensors: Sequence[torch.Tensor], entries: torch.Tensor) -> None:
    """Replace the tensors by entries that lie one behind the other."""
    entries = entries.to(tensors[0].device)
    for tensor, mine in zip(tensors, entries.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mine.view_as(tensor))


def first_of(told: Sequence[str | None]) -> str | None:
    """Return the first error that ranks have told, with its rank unless all have one."""
    found = [(rank, text) for rank, text in enumerate(told) if text is not None]
    if not found:
        return None
    rank, text = found[0]
    return text if len(found) == len(told) else f"rank {rank}: {text}"
