"""The one verb: find out what was given, and put a method between backward and the optimizer's step."""

from __future__ import annotations

import weakref
from typing import cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from laconic.errors import LaconicError
from laconic.handshake import Identity
from laconic.integrations.checks import check_arguments, check_parameters
from laconic.integrations.ddp import DdpSurface
from laconic.integrations.link import Link, Surface
from laconic.integrations.plain import PlainSurface
from laconic.methods import Method
from laconic.reducer import Reducer
from laconic.transports import ProcessGroupTransport
from laconic.types import Segments, accumulation_dtype

_attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, Link] = weakref.WeakKeyDictionary()


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Method,
    *,
    group: dist.ProcessGroup | None = None,
    scaler: torch.amp.GradScaler | None = None,
    measure_every: int = 0,
) -> Link:
    """Exchange this model's gradients by ``method`` from now on; the training loop stays as it is.

    A ``DistributedDataParallel`` module exchanges bucket by bucket while backward goes on. A plain module
    gets the first rank's parameters and buffers once, and exchanges when the optimizer is about to step.
    Every rank must call this at the same point. With a ``GradScaler`` pass it as ``scaler``. With
    ``measure_every=M`` the theory of TopK-SGD is measured every M steps (``link.stats.history``).

        link = laconic.attach(model, optimizer, laconic.topk(0.01))
    """
    check_arguments(model, optimizer, method, scaler)
    if optimizer in _attached and _attached[optimizer].attached:
        raise LaconicError("this optimizer is attached already. Call link.detach() on the first link before.")
    ddp = model if isinstance(model, DistributedDataParallel) else None
    if ddp is not None:
        if group is not None and group is not ddp.process_group:
            raise ValueError("the DDP module has a process group of its own; leave group out.")
        group, module = ddp.process_group, cast("torch.nn.Module", ddp.module)
    else:
        group, module = group or _default_group(), model
    parameters = check_parameters(module, optimizer, every_trainable=ddp is not None)

    device = next(iter(parameters.values())).device
    segments = Segments.of(list(parameters), [p.numel() for p in parameters.values()])
    transport = ProcessGroupTransport(group, device)
    identity = _identity(method, module, measure_every)
    reducer = Reducer(
        method,
        segments,
        transport,
        dtype=accumulation_dtype([p.dtype for p in parameters.values()]),
        device=device,
        fingerprint=identity.fingerprint(),
        measure_every=measure_every,
    )
    link = Link(reducer, transport, identity, parameters, optimizer, scaler)
    surface: Surface = PlainSurface(model, link) if ddp is None else DdpSurface(ddp, link)
    link.install(surface)
    _attached[optimizer] = link
    return link


def _identity(method: Method, module: torch.nn.Module, measure_every: int) -> Identity:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return Identity(
        method=repr(method) + (f" measured every {measure_every} steps" if measure_every else ""),
        model=tuple(
            f"{name} {tuple(t.shape)} {t.dtype}{'' if t.requires_grad else ' fixed'}" for name, t in tensors
        ),
    )


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
