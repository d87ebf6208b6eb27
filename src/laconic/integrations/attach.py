"""The one verb: find out what was given, and put a method between backward and the optimizer's step."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from laconic import kernels
from laconic.compressors import Dense
from laconic.errors import LaconicError
from laconic.handshake import Identity
from laconic.holding import ALONE, Holding
from laconic.integrations.checks import (
    check_arguments,
    check_buffers,
    check_local,
    check_parameters,
    check_units,
)
from laconic.integrations.compiled import check_reducer, named_tensors, uncompiled
from laconic.integrations.ddp import DdpSurface
from laconic.integrations.groups import talking_in
from laconic.integrations.link import Link
from laconic.integrations.local import LocalSurface
from laconic.integrations.momentum import MovedMomentum, movable
from laconic.integrations.nodes import on_nodes
from laconic.integrations.plain import PlainSurface
from laconic.integrations.replicas import OnDifference, ReplicaCheck, check_settings
from laconic.integrations.sharded import ShardedSurface, Shards, put_back, shards_of
from laconic.integrations.surface import Surface
from laconic.integrations.wire import Wire
from laconic.layout import dimension_order, flatten, here, rows_of
from laconic.memory import accumulation_dtype
from laconic.method import Method
from laconic.methods import recommended
from laconic.nodes import node_size_of
from laconic.reducer import Reducer
from laconic.rounds import Rounds
from laconic.segments import Segments
from laconic.transports import ProcessGroupTransport

_log = logging.getLogger("laconic")
_attached: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[Link]] = weakref.WeakKeyDictionary()


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Method | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    scaler: torch.amp.GradScaler | None = None,
    measure_every: int = 0,
    track_age: bool = False,
    check_every: int = 0,
    on_difference: OnDifference = "raise",
) -> Link:
    """Exchange this model's gradients by ``method`` from now on; the training loop stays as it is.

    Without a method it is ``recommended()``.

    A ``DistributedDataParallel`` module exchanges bucket by bucket while backward goes on. A plain module
    gets the first rank's parameters and buffers once, and exchanges when the optimizer is about to step; so does
    one that FSDP2 has sharded, where ``group`` is that of the ranks which hold the same shard (docs/fsdp.md).
    Every rank must call this at the same point. With a ``GradScaler`` pass it as ``scaler``. With
    ``measure_every=M`` the theory of TopK-SGD is measured every M steps (``link.stats.history``); with
    ``track_age`` ``link.stats.layers`` knows how long entries have waited, for four bytes an entry. With
    ``check_every=M`` ranks compare digests of their models every M steps, or rounds of local steps, and raise
    ``GroupError`` if they differ, or go on from the majority's (``on_difference="heal"``). A method that owns
    momentum takes it out of an SGD optimizer, says so, and gives it back on ``detach``.

        link = laconic.attach(model, optimizer, laconic.topk(0.01))
    """
    chosen, method = method is None, recommended() if method is None else method
    model = uncompiled(model)
    ddp = _check(model, optimizer, method, scaler, measure_every)
    module = model if ddp is None else cast("torch.nn.Module", ddp.module)
    put_back(module)
    parameters = check_parameters(module, optimizer, every_trainable=ddp is not None, sharded=ddp is None)
    shards = shards_of(module, parameters, method, group, scaler)
    talking, device = talking_in(ddp, group), next(iter(parameters.values())).device
    method = on_nodes(method, dist.get_process_group_ranks(talking))
    transport = ProcessGroupTransport(talking, device, node_size=node_size_of(method))
    check_settings(check_every, on_difference, method.local)
    making = Making(
        transport, scaler, measure_every, track_age, time.perf_counter, check_every, on_difference, shards
    )
    link = making.link(model, optimizer, method, parameters)
    if chosen and link.rounds is not None and transport.rank == 0:
        _log.warning(
            "no method was named: %s takes %d local steps a round. Evaluate and save inside link.averaged(), and "
            "call link.finish() when the batches are used up.",
            method.name,
            link.rounds.every,
        )
    return link


def attach_over(
    transport: Wire,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Method,
    *,
    clock: Callable[[], float],
) -> Link:
    """Do what ``attach`` does over a transport that is there already, by its clock; nodes must be the method's."""
    model = uncompiled(model)
    ddp = _check(model, optimizer, method, None, 0)
    module = model if ddp is None else cast("torch.nn.Module", ddp.module)
    parameters = check_parameters(module, optimizer, every_trainable=ddp is not None)
    making = Making(transport, scaler=None, measure_every=0, track_age=False, clock=clock)
    return making.link(model, optimizer, method, parameters)


@dataclass(frozen=True)
class Making:
    """How a link is made, whatever the module, the optimizer and the method are."""

    transport: Wire
    scaler: torch.amp.GradScaler | None
    measure_every: int
    track_age: bool
    clock: Callable[[], float]
    check_every: int = 0
    on_difference: OnDifference = "raise"
    shards: Shards | None = None

    @property
    def _holding(self) -> Holding:
        return ALONE if self.shards is None else self.shards

    @property
    def _checks(self) -> str:
        return f"compared every {self.check_every}, then {self.on_difference}"

    def link(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Method,
        parameters: Mapping[str, torch.nn.Parameter],
    ) -> Link:
        """Put the method to work between backward and the optimizer's step."""
        transport, scaler, first = self.transport, self.scaler, self.transport.rank == 0
        ddp = model if isinstance(model, DistributedDataParallel) else None
        module = model if ddp is None else cast("torch.nn.Module", ddp.module)
        moves = _moves(method, optimizer, scaler, said=first)
        kind = "DDP" if ddp is not None else "plain" if self.shards is None else str(self.shards)
        kind += " with a GradScaler" if scaler else ""
        kind += " with momentum moved" if moves else ""
        identity = _identity(
            f"{method} ({kind}, measured every {self.measure_every}, {self._checks})", module, parameters
        )
        reducer = self.reducer(method, parameters, identity, velocity=moves)
        moved = _moved(optimizer, parameters, reducer) if moves else None
        seconds = _compiled(method, parameters, said=first)
        local = method.local is not None
        rounds = Rounds(method, module, parameters, optimizer, reducer, transport, self._holding) if local else None
        check = self._check(parameters, rounds) if self.check_every else None
        link = Link(reducer, transport, identity, parameters, optimizer, scaler, moved, rounds, seconds, check)
        if ddp is None:
            check_buffers(module)
        surface = _surface(model, link, rounds)
        if self.shards is not None:
            surface = ShardedSurface(surface, self.shards, parameters)
        link.install(surface, self.clock)
        _attached[optimizer] = weakref.ref(link)
        return link

    def _check(self, parameters: Mapping[str, torch.nn.Parameter], rounds: Rounds | None) -> ReplicaCheck:
        """Return what compares all ranks' models; where each has its own, what they have agreed on."""
        parts = (lambda: {name: here(p) for name, p in parameters.items()}) if rounds is None else rounds.agreed
        return ReplicaCheck(parts, self.transport, every=self.check_every, then=self.on_difference)

    def reducer(
        self,
        method: Method,
        parameters: Mapping[str, torch.nn.Parameter],
        identity: Identity,
        *,
        velocity: bool,
    ) -> Reducer:
        """Return what remembers and exchanges for this transport."""
        tensors = [here(p) for p in parameters.values()]
        return Reducer(
            method,
            Segments.of(list(parameters), [p.numel() for p in tensors], [rows_of(p) for p in tensors]),
            self.transport,
            dtype=accumulation_dtype([p.dtype for p in tensors]),
            device=tensors[0].device,
            fingerprint=identity.fingerprint(),
            # What drifts are added to has memory's own precision; gradients must fit the parameters'.
            dtypes={} if method.local else {name: p.dtype for name, p in parameters.items()},
            velocity=velocity,
            track_age=self.track_age,
            measure_every=self.measure_every,
            clock=self.clock,
            holding=self._holding,
        )


def _check(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Method,
    scaler: torch.amp.GradScaler | None,
    measure_every: int,
) -> DistributedDataParallel | None:
    """Refuse what a method cannot be put between; return the model where it is DDP's."""
    check_arguments(model, optimizer, method, scaler)
    check_units(method, optimizer)
    check_local(model, method, optimizer, scaler, measure_every)
    before = _attached.get(optimizer, lambda: None)()
    if before is not None and before.attached:
        raise LaconicError("this optimizer is attached already. Call link.detach() on the first link before.")
    if not isinstance(model, DistributedDataParallel):
        return None
    check_reducer(model)
    return model


def _surface(model: torch.nn.Module, link: Link, rounds: Rounds | None) -> Surface:
    """Return where the method meets the module."""
    if rounds is not None:
        return LocalSurface(model, rounds, link.transport, link.scaler)
    return DdpSurface(model, link) if isinstance(model, DistributedDataParallel) else PlainSurface(model, link)


def _compiled(method: Method, parameters: Mapping[str, torch.nn.Parameter], *, said: bool) -> float:
    """Have the kernels ready before the first step; return the seconds that took, and say so if it was long."""
    if isinstance(method.compressor, Dense) and method.exchange.lossless:
        return 0.0
    began, tensors = time.perf_counter(), list(parameters.values())
    dtypes = [p.dtype for p in tensors]
    if method.local is not None:
        dtypes = [accumulation_dtype(dtypes)]
    kernels.warm(tensors[0].device, accumulation_dtype(dtypes), sorted(set(dtypes), key=str))
    seconds = time.perf_counter() - began
    if said and seconds > 1.0:
        _log.warning("compiling the kernels for this machine took %.1f s; they are kept on disk.", seconds)
    return seconds


def _moves(
    method: Method, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, *, said: bool
) -> bool:
    """Whether the method takes momentum over: it wants to, and the optimizer has some. The first rank says so."""
    if method.momentum != "method":
        return False
    kind = type(optimizer)
    if not movable(optimizer, scaled=scaler is not None and scaler.is_enabled()):
        if kind is not torch.optim.SGD and said:
            _log.warning(
                "%s compensates SGD's momentum; %s keeps its own: memory only.", method.name, kind.__name__
            )
        return False
    if said:
        _log.warning(
            "%s takes momentum and weight decay over from SGD until detach(): momentum is applied to local "
            "gradients, before the exchange. Meanwhile they read 0 in the optimizer.",
            method.name,
        )
    return True


def _moved(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter], reducer: Reducer
) -> MovedMomentum:
    def deliver(buffers: Mapping[str, torch.Tensor]) -> None:
        reducer.start_velocity({name: flatten(v, here(parameters[name])) for name, v in buffers.items()})

    return MovedMomentum(optimizer, {id(p): name for name, p in parameters.items()}, deliver)


def _identity(method: str, module: torch.nn.Module, exchanged: Mapping[str, torch.nn.Parameter]) -> Identity:
    lines = []
    for name, t in ((name, here(t)) for name, t in named_tensors(module).items()):
        order = dimension_order(t)
        layout = "" if order == tuple(sorted(order)) else f" laid out {order}"
        lines.append(f"{name} {tuple(t.shape)} {t.dtype}{layout}{'' if name in exchanged else ' not exchanged'}")
    return Identity(method=method, model=tuple(lines))
