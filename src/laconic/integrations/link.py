"""What ``attach`` returns: the handle on a running method."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from math import inf, isnan
from types import TracebackType
from typing import Any, Protocol

import torch
from torch.utils.hooks import RemovableHandle

from laconic import kernels
from laconic.errors import LaconicError
from laconic.handshake import Identity, handshake
from laconic.integrations.amp import Watch, guard_scaler, refuse_other_scalers, release_scaler
from laconic.integrations.layout import dimension_order
from laconic.integrations.momentum import MovedMomentum
from laconic.method import Method
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

    def before_look(self) -> None:
        """See to it that the gradients are the agreed ones: a GradScaler is about to look at them."""
        ...

    def before_step(self) -> None:
        """See to it that the gradients are the agreed ones: the optimizer is about to step."""
        ...

    def after_step(self) -> None:
        """The scaler is done with this step, whether it stepped or not."""
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
        moved: MovedMomentum | None,
        compile_seconds: float = 0.0,
    ) -> None:
        self.reducer, self.parameters, self.optimizer = reducer, parameters, optimizer
        self.transport = transport
        self._identity, self._scaler, self._moved = identity, scaler, moved
        self._names = {id(p): name for name, p in parameters.items()}
        self._surface: Surface | None = None
        self._handle: RemovableHandle | None = None
        self._setup_bytes, self._compile_seconds = 0, compile_seconds
        self._exchanged = False
        # Where messages depend on the step, ranks at unlike steps send unlike sizes, and backends may end the
        # process over that before a header is read: compare steps before the first exchange.
        self._compare_steps = reducer.step_shapes_messages

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
        return replace(
            self.reducer.stats(),
            setup_bytes=self._setup_bytes,
            kernels=kernels.in_use(next(iter(self.parameters.values())).device),
            compile_seconds=self._compile_seconds,
        )

    def observe(self, loss: torch.Tensor | float) -> None:
        """Tell this rank's loss, before backward: for laws that follow it and for the guard.

        It travels with the next exchange of gathered messages, once; all ranks then know the mean.
        """
        value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        # NaN in a header means that nothing was told.
        self.reducer.loss = inf if isnan(value) else value

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: save it on every rank, with the model's and the optimizer's."""
        decay = {} if self._moved is None else self._moved.state_dict()
        return self.reducer.state_dict() | {"layouts": self._layouts(), "decay": decay}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's saved state; the next exchange notices ranks that did not load the same step."""
        if self.reducer.step_shapes_messages and not self._compare_steps:
            raise LaconicError(
                "with this method, or with measuring, the size of messages depends on the steps before, and this "
                "link has exchanged some: a rank that went back alone could not be told. Detach, attach again and "
                "load on every rank."
            )
        if isinstance(state, Mapping) and state.get("layouts", {}) != self._layouts():
            raise ValueError(
                f"the state was saved for parameters in other memory formats: {state.get('layouts')} instead of "
                f"{self._layouts()}. Bring the model into the saved format (channels_last, say) before attach."
            )
        decay = state.get("decay", {}) if isinstance(state, Mapping) else {}
        if self._moved is not None:
            self._moved.check(decay)
        self.reducer.load_state_dict(state)
        if self._moved is not None:
            self._moved.load_state_dict(decay)

    def detach(self) -> None:
        """Stop: module, optimizer and scaler are as before, and gradients of DDP are plainly averaged again.

        What is still owed, and the velocity of momentum that was moved, stay in ``state_dict()``.
        """
        if self._surface is None:
            return
        self._surface.remove()
        if self._scaler is not None:
            release_scaler(self._scaler, self.optimizer)
        if self._moved is not None:
            self._moved.give_back()
        if self._handle is not None:
            self._handle.remove()
        self._surface = self._handle = None

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
        self._shake_hands(self._identity)
        surface.install()
        if self._moved is not None:
            self._moved.take()
        self._setup_bytes = self.transport.wire_bytes
        self._surface = surface
        self._handle = self.optimizer.register_step_pre_hook(self._before_step)
        if self._scaler is not None:
            guard_scaler(self._scaler, self.optimizer, Watch(surface.before_look, self._after_step))

    def open_step(self) -> None:
        """Begin a step of the reducer with the learning rates and the loss scale of this moment."""
        if self._compare_steps:
            self._shake_hands(replace(self._identity, method=self.reducer.agreement()))
            self._compare_steps = False
        rates = {
            # A parameter that was frozen after attach must not move: what it owes waits, as at rate 0.
            self._names[id(p)]: float(group.get("lr", 1.0)) if p.requires_grad else 0.0
            for group in self.optimizer.param_groups
            for p in group["params"]
            if id(p) in self._names
        }
        if self.method.tuner.needs_loss and isnan(self.reducer.loss):
            raise LaconicError(
                f"the law of {self.method.name} follows the loss, and none was told. "
                f"Call link.observe(loss) before loss.backward()."
            )
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        momenta = None if self._moved is None else self._moved.momenta()
        if self._exchanged and self._moved is not None:
            warnings.warn(
                "gradients were exchanged twice without an optimizer step between, and each exchange is a step of "
                "the momentum that laconic applies. To accumulate, use model.no_sync() in all passes but the last.",
                stacklevel=2,
            )
        self._exchanged = True
        self.reducer.begin_step(rates=rates, momenta=momenta, grad_scale=scale)

    def _shake_hands(self, identity: Identity) -> None:
        before = self.transport.wire_bytes
        device = next(iter(self.parameters.values())).device
        steps = handshake(identity, rank=self.transport.rank, device=device)
        self.transport.start(steps, label="the handshake")
        self.transport.drain()
        self._setup_bytes += self.transport.wire_bytes - before

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        assert self._surface is not None
        refuse_other_scalers(self._scaler)
        if any(callable(a) for a in (*args, *kwargs.values())):
            raise LaconicError(
                "the optimizer was given a closure, which would make gradients after laconic has looked at them. "
                "Call backward() before step(), without a closure."
            )
        self._refuse_newcomers()
        if self._moved is not None:
            self._moved.refresh()
        self._exchanged = False
        self._surface.before_step()
        if self.reducer.outcome.skipped:
            # Every torch optimizer passes over parameters without a gradient: no momentum, decay or count moves.
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None
            self.reducer.outcome = replace(self.reducer.outcome, skipped=False)
        elif self._moved is not None:
            self._moved.decay_()

    def _after_step(self) -> None:
        """A scaler is done with this step, whether it stepped or not."""
        assert self._surface is not None
        self._exchanged = False
        self._surface.after_step()

    def _refuse_newcomers(self) -> None:
        """Refuse parameters that came to the optimizer, or began to train, after attach."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and id(p) not in self._names:
                    raise LaconicError(
                        f"a parameter of shape {tuple(p.shape)} has a gradient but was frozen or absent at "
                        f"attach: it would differ between ranks. Call link.detach() and attach again "
                        f"(under DDP: wrap the model anew first)."
                    )

    def _layouts(self) -> dict[str, list[int]]:
        """The parameters whose entries do not lie in logical order, and how they lie."""
        orders = {name: list(dimension_order(p)) for name, p in self.parameters.items()}
        return {name: order for name, order in orders.items() if order != sorted(order)}
