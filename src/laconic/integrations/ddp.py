"""DistributedDataParallel: a communication hook, one collective a bucket, from step 0."""

# DDP compares a hook's annotations as objects, so this file cannot postpone their evaluation.
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from laconic.errors import LaconicError
from laconic.integrations.compiled import left_alone
from laconic.integrations.link import Link
from laconic.layout import rows_of, unflatten
from laconic.segments import Segments


class DdpSurface:
    """Hands DDP's buckets to the reducer as backward fills them, and the mean back to DDP."""

    def __init__(self, ddp: DistributedDataParallel, link: Link) -> None:
        # DDP holds its hook's state from C++, where Python's collector cannot see a cycle.
        self._ddp = weakref.ref(ddp)
        self._link = link
        self._names = {id(p): name for name, p in link.parameters.items()}
        self._seen: set[str] = set()
        self._reduced: list[tuple[Tensor, Tensor]] = []
        self._layouts: dict[tuple[str, ...], Segments] = {}
        # Only then may DDP leave a parameter's gradient untouched although something was sent for it.
        may_be_unused = ddp.find_unused_parameters or ddp.static_graph
        self._fills_unused = may_be_unused and link.method.memory != "none"

    def install(self) -> None:
        """Register the hook, or turn the one of an earlier attach."""
        ddp = self._ddp()
        assert ddp is not None
        take_hook(ddp, self)

    def remove(self) -> None:
        """Turn the hook to plain averaging, the same bits as DDP without a hook."""
        ddp = self._ddp()
        if ddp is not None:
            _hooks[ddp].surface = None

    def before_look(self) -> None:
        """Nothing to do: gradients were exchanged during backward."""

    def before_step(self) -> bool:
        """Return whether the step was not skipped by all ranks."""
        return not self._link.reducer.take_outcome().skipped

    def after_step(self) -> None:
        """Nothing to do."""

    def after_attempt(self) -> None:
        """Nothing to do."""

    def after_update(self) -> None:
        """Nothing to do."""

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Exchange one bucket; the last one waits for all of them."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        segments = self._layout(parameters)
        if not self._seen.isdisjoint(segments.names) or not self._seen:
            self._link.open_step()
            self._reduced = []
        self._seen.update(segments.names)
        future = self._link.reducer.begin(buffer, segments)
        if self._fills_unused:
            self._reduced += zip(parameters, segments.views(buffer), strict=True)
        # In the first step of a static graph DDP numbers every bucket 0 and calls none of them the last.
        if bucket.is_last() or len(self._seen) == len(self._names):
            self._seen = set()
            self._link.reducer.end_step()
            if self._fills_unused:
                # DDP's own callback is queued after this hook returns; the second of ours runs behind it.
                _queue(left_alone(lambda: _queue(left_alone(self._fill_unused))))
        return future

    def _layout(self, parameters: list[Tensor]) -> Segments:
        """Where a bucket's parameters lie in it: the same object in every step, so that what is derived is kept."""
        names = tuple(self._names[id(p)] for p in parameters)
        if names not in self._layouts:
            sizes, rows = [p.numel() for p in parameters], [rows_of(p) for p in parameters]
            self._layouts[names] = Segments.of(names, sizes, rows)
        return self._layouts[names]

    def _fill_unused(self) -> None:
        """Deliver what was owed to parameters that no rank used in this step: DDP leaves those untouched."""
        for p, flat in self._reduced:
            mean = unflatten(flat, p)
            if p.grad is None:
                if bool(mean.any()):
                    p.grad = mean.detach().clone()
            elif p.grad.data_ptr() != mean.data_ptr():
                p.grad.copy_(mean)
        self._reduced = []


class Buckets(Protocol):
    """Who is handed DDP's buckets."""

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Return what DDP is to take for the bucket's gradients."""
        ...


class Hook:
    """What a DDP module's hook consults. DDP takes one hook for life, so detaching means turning this."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.surface: Buckets | None = None


_hooks: weakref.WeakKeyDictionary[DistributedDataParallel, Hook] = weakref.WeakKeyDictionary()


def take_hook(ddp: DistributedDataParallel, surface: Buckets) -> Hook:
    """Register the hook, or turn the one of an earlier attach."""
    hook = _hooks.get(ddp)
    if hook is None:
        hook = Hook(ddp.process_group)
        try:
            # Where a whole step is compiled, so is what backward calls.
            ddp.register_comm_hook(hook, left_alone(_hook))
        except RuntimeError as error:
            raise LaconicError(
                f"this DDP module has a communication hook already ({error}). DDP takes one for life: wrap the "
                f"model in a new DistributedDataParallel and attach that."
            ) from error
        _hooks[ddp] = hook
    if hook.surface is not None:
        raise LaconicError("this DDP module is attached already. Call detach() on its link before.")
    hook.surface = surface
    return hook


def _hook(switch: Hook, bucket: GradBucket) -> Future[Tensor]:
    if switch.surface is not None:
        return switch.surface.reduce(bucket)
    return _average(switch.group, bucket.buffer())


def _average(group: dist.ProcessGroup, buffer: Tensor) -> Future[Tensor]:
    """Average as DDP without a hook does: each rank divides, then the sum."""
    buffer.mul_(1.0 / dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    assert work is not None
    averaged: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return averaged


def _queue(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
