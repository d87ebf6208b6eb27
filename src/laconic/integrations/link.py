"""What ``attach`` returns: the handle on a running method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

import torch
from torch.utils.hooks import RemovableHandle

from laconic.handshake import Identity, handshake
from laconic.integrations.amp import ScalerGuard, refuse_unknown_scaler
from laconic.methods import Method
from laconic.reducer import Reducer
from laconic.stats import Stats
from laconic.transports import ProcessGroupTransport


class Surface(Protocol):
    """How gradients of one kind of module reach the reducer and come back."""

    def install(self) -> None:
        """Begin to exchange."""
        ...

    def remove(self) -> None:
        """Leave the module as it was found."""
        ...

    def ready(self, *, has_closure: bool) -> None:
        """See to it that the gradients are the agreed ones before anybody looks at them or steps."""
        ...

    def done(self) -> None:
        """The optimizer's step is over."""
        ...


class Link:
    """A method at work between backward and the optimizer's step."""

    def __init__(
        self,
        reducer: Reducer,
        transport: ProcessGroupTransport,
        identity: Identity,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        self.reducer, self.parameters, self.optimizer = reducer, parameters, optimizer
        self.transport = transport
        self._identity, self._scaler = identity, scaler
        self._names = {id(p): name for name, p in parameters.items()}
        self._surface: Surface | None = None
        self._guard: ScalerGuard | None = None
        self._handles: list[RemovableHandle] = []
        self._verified = False
        self._setup_bytes = 0

    @property
    def method(self) -> Method:
        """The method at work."""
        return self.reducer.method

    @property
    def attached(self) -> bool:
        """Whether the method is still at work."""
        return self._surface is not None

    @property
    def stats(self) -> Stats:
        """The truth so far: bytes, ratio, density, what is owed, steps skipped, seconds."""
        return replace(self.reducer.stats(), setup_bytes=self._setup_bytes)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: save it on every rank, with the model's and the optimizer's."""
        return self.reducer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's saved state; the next exchange checks that all ranks loaded the same step."""
        self.reducer.load_state_dict(state)
        self._verified = False

    def detach(self) -> None:
        """Stop: module, optimizer and scaler are as before, and gradients of DDP are plainly averaged again.

        What is still owed stays in ``state_dict()``.
        """
        if self._surface is None:
            return
        self._surface.remove()
        if self._guard is not None:
            self._guard.remove()
        for handle in self._handles:
            handle.remove()
        self._surface, self._guard, self._handles = None, None, []

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"Link({self.method.name}, rank {self.transport.rank} of {self.transport.world_size}, {self.stats})"

    def install(self, surface: Surface) -> None:
        """Check that all ranks agree, then put the method to work. Called by ``attach``."""
        self.verify()
        surface.install()
        self._setup_bytes = self.transport.wire_bytes
        self._surface = surface
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        if self._scaler is not None:
            self._guard = ScalerGuard(self._scaler, self.optimizer, self._ready, surface.done)

    def verify(self) -> None:
        """Compare method, model and step with all ranks, once after attach and after each load."""
        if self._verified:
            return
        before = self.transport.wire_bytes
        own = replace(self._identity, step=self.reducer.step)
        device = next(iter(self.parameters.values())).device
        self.transport.start(handshake(own, rank=self.transport.rank, device=device), label="the handshake")
        self.transport.drain()
        self._setup_bytes += self.transport.wire_bytes - before
        self._verified = True

    def open_step(self) -> None:
        """Begin a step of the reducer with the learning rates and the loss scale of this moment."""
        self.verify()
        rates = {
            self._names[id(p)]: float(group["lr"])
            for group in self.optimizer.param_groups
            for p in group["params"]
            if id(p) in self._names
        }
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        self.reducer.begin_step(rates=rates, grad_scale=scale)

    def _ready(self, *, has_closure: bool = False) -> None:
        if self._surface is not None:
            self._surface.ready(has_closure=has_closure)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._scaler is None:
            refuse_unknown_scaler()
        self._ready(has_closure=any(callable(a) for a in (*args, *kwargs.values())))
        if self.reducer.outcome.skipped:
            # Every torch optimizer passes over parameters without a gradient: no momentum, decay or count moves.
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._surface is not None:
            self._surface.done()
