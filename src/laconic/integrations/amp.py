"""GradScaler: memory in unscaled units, and no rank that steps or skips alone.

A scaler looks for infinities in this rank's own gradients and skips the step here only; exchanges that
happen at the optimizer's step would then wait for a rank that never comes (pytorch issue 76282). So the
exchange is moved before the scaler looks: it sees gradients on which all ranks agree.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from laconic.errors import LaconicError
from laconic.integrations.compiled import left_alone

# Frames between a hook on the optimizer and the GradScaler.step that called it.
_NEAR = 12


@dataclass(frozen=True)
class Watch:
    """Whom to tell of an optimizer.

    ``ready`` before its gradients are looked at, ``attempted`` when the scaler has stepped or skipped, ``updated``
    when the scaler has a new scale.
    """

    ready: Callable[[], None]
    attempted: Callable[[], None]
    updated: Callable[[], None]


class ScalerGuard:
    """Stands before one scaler's methods, for all attached optimizers that it serves."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.watches: dict[int, Watch] = {}
        unscale, step, update = scaler.unscale_, scaler.step, scaler.update

        def guarded_unscale_(optimizer: torch.optim.Optimizer) -> None:
            if id(optimizer) in self.watches:
                self.watches[id(optimizer)].ready()
            unscale(optimizer)

        def guarded_step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
            watch = self.watches.get(id(optimizer))
            if watch is None:
                return step(optimizer, *args, **kwargs)
            watch.ready()
            try:
                taken = step(optimizer, *args, **kwargs)
            except BaseException:
                watch.updated()
                raise
            watch.attempted()
            return taken

        def guarded_update(*args: Any, **kwargs: Any) -> None:
            # A loop may unscale, look at the norm and decide not to step: the next one exchanges all the same.
            for watch in self.watches.values():
                watch.updated()
            update(*args, **kwargs)

        for name, guarded in (("unscale_", guarded_unscale_), ("step", guarded_step), ("update", guarded_update)):
            setattr(scaler, name, guarded)


_guards: weakref.WeakKeyDictionary[torch.amp.GradScaler, ScalerGuard] = weakref.WeakKeyDictionary()


def guard_scaler(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, watch: Watch) -> None:
    """Tell ``watch`` whenever the scaler handles this optimizer."""
    if scaler not in _guards:
        _guards[scaler] = ScalerGuard(scaler)
    left = Watch(left_alone(watch.ready), left_alone(watch.attempted), left_alone(watch.updated))
    _guards[scaler].watches[id(optimizer)] = left


def release_scaler(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Stop telling; with the last optimizer gone, the scaler has its own methods back."""
    del _guards[scaler].watches[id(optimizer)]
    if not _guards[scaler].watches:
        del _guards[scaler]
        for name in ("unscale_", "step", "update"):
            delattr(scaler, name)


def refuse_other_scalers(known: torch.amp.GradScaler | None) -> None:
    """Raise if a GradScaler that attach was not told of is stepping the optimizer."""
    frame = sys._getframe(1)
    for _ in range(_NEAR):
        if frame.f_back is None:
            return
        frame = frame.f_back
        if frame.f_code is _SCALER_STEP:
            stepping = frame.f_locals["self"]
            if stepping is not known and stepping.is_enabled():
                raise LaconicError(
                    "a GradScaler steps this optimizer, and attach was not told of it: memory would mix scales, "
                    "and a rank that meets an infinity would skip alone. "
                    "Write laconic.attach(model, optimizer, method, scaler=scaler)."
                )


_SCALER_STEP = torch.amp.GradScaler.step.__code__
