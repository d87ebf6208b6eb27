"""GradScaler: memory in unscaled units, and no rank that steps or skips alone.

A scaler looks for infinities in this rank's own gradients and skips the step here only; exchanges that
happen at the optimizer's step would then wait for a rank that never comes (pytorch issue 76282). So the
exchange is moved before the scaler looks: it sees gradients on which all ranks agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from laconic.errors import LaconicError

# Frames between a hook on the optimizer and the GradScaler.step that called it.
_NEAR = 12


class ScalerGuard:
    """Calls ``ready`` before this optimizer's gradients are looked at, and ``done`` when its step is over."""

    def __init__(
        self,
        scaler: torch.amp.GradScaler,
        optimizer: torch.optim.Optimizer,
        ready: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        self._scaler = scaler
        unscale, step, update = scaler.unscale_, scaler.step, scaler.update

        def guarded_unscale_(given: torch.optim.Optimizer) -> None:
            if given is optimizer:
                ready()
            unscale(given)

        def guarded_step(given: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
            if given is optimizer:
                ready()
            result = step(given, *args, **kwargs)
            if given is optimizer:
                done()
            return result

        def guarded_update(*args: Any, **kwargs: Any) -> None:
            # A loop may unscale, look at the norm and decide not to step: the next one exchanges all the same.
            done()
            update(*args, **kwargs)

        # Guards may nest: one scaler can serve several attached optimizers.
        self._before = {name: scaler.__dict__.get(name) for name in ("unscale_", "step", "update")}
        self._guarded = {"unscale_": guarded_unscale_, "step": guarded_step, "update": guarded_update}
        for name, guarded in self._guarded.items():
            setattr(scaler, name, guarded)

    def remove(self) -> None:
        """Give the scaler back the methods it had."""
        for name, guarded in self._guarded.items():
            if self._scaler.__dict__.get(name) is guarded:
                if self._before[name] is None:
                    delattr(self._scaler, name)
                else:
                    setattr(self._scaler, name, self._before[name])


def refuse_unknown_scaler() -> None:
    """Raise if a GradScaler that attach was not told of is stepping the optimizer."""
    frame = sys._getframe(1)
    for _ in range(_NEAR):
        if frame.f_back is None:
            return
        frame = frame.f_back
        if frame.f_code is _SCALER_STEP and frame.f_locals["self"].is_enabled():
            raise LaconicError(
                "a GradScaler steps this optimizer, and attach was not told of it: memory would mix scales, and "
                "a rank that meets an infinity would skip alone. "
                "Write laconic.attach(model, optimizer, method, scaler=scaler)."
            )


_SCALER_STEP = torch.amp.GradScaler.step.__code__
