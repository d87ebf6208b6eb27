"""What ``attach`` returns: the handle on a running method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import inf, isnan
from types import TracebackType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from laconic import kernels
from laconic.coding import Codec
from laconic.errors import LaconicError, loss_untold
from laconic.handshake import Identity, handshake
from laconic.integrations.amp import Watch, guard_scaler, refuse_other_scalers, release_scaler
from laconic.integrations.checks import EXCHANGED_TWICE, refuse_newcomers, settling
from laconic.integrations.compiled import left_alone
from laconic.integrations.momentum import MovedMomentum
from laconic.integrations.replicas import ReplicaCheck
from laconic.integrations.surface import Surface
from laconic.integrations.waiting import Waiting
from laconic.integrations.wire import Wire
from laconic.layout import unusual_layouts
from laconic.method import Method
from laconic.reducer import Reducer
from laconic.rounds import Rounds
from laconic.stats import Stats, Waits


class Link:
    """A method at work between backward and the optimizer's step."""

    def __init__(
        self,
        reducer: Reducer,
        transport: Wire,
        identity: Identity,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        moved: MovedMomentum | None,
        rounds: Rounds | None,
        compile_seconds: float = 0.0,
        replicas: ReplicaCheck | None = None,
    ) -> None:
        self.reducer, self.parameters, self.optimizer, self.transport = reducer, parameters, optimizer, transport
        self.identity, self.scaler, self._moved, self.rounds = identity, scaler, moved, rounds
        self._replicas = replicas
        self._waiting = Waiting(transport, next(iter(parameters.values())).device)
        self._names = {id(p): name for name, p in parameters.items()}
        self._surface: Surface | None = None
        self._handles: list[RemovableHandle] = []
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
        numbers = self.reducer.stats()
        numbers = numbers if self.rounds is None else self.rounds.stats(numbers)
        compared = 0 if self._replicas is None else self._replicas.traffic.wire_bytes
        return replace(
            numbers,
            look_bytes=numbers.look_bytes + compared + self._waiting.wire_bytes,
            waits=self._waiting.told,
            setup_bytes=self._setup_bytes,
            kernels=kernels.in_use(next(iter(self.parameters.values())).device),
            compile_seconds=self._compile_seconds,
        )

    def observe(self, loss: torch.Tensor | float) -> None:
        """Tell this rank's loss, before backward: for laws that follow it and for the guard.

        It travels once, with the next exchange of gathered messages or sync; all ranks then know the mean.
        """
        value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        if self.rounds is not None:
            self.rounds.observe(value)
            return
        # NaN in a header means that nothing was told.
        self.reducer.loss = inf if isnan(value) else value

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: save it on every rank, with the model's and the optimizer's.

        Between two syncs of local steps each rank has a model and an optimizer of its own: save those too.
        """
        decay = {} if self._moved is None else self._moved.state_dict()
        # First: it waits for an exchange that is under way.
        rounds = {} if self.rounds is None else {"rounds": self.rounds.state_dict()}
        return self.reducer.state_dict() | {"layouts": unusual_layouts(self.parameters), "decay": decay} | rounds

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's saved state; the next exchange notices ranks that did not load the same step."""
        if self.rounds is None and self.reducer.step_shapes_messages and not self._compare_steps:
            raise LaconicError(
                "with this method, or with measuring, the size of messages depends on the steps before, and this "
                "link has exchanged some: a rank that went back alone could not be told. Detach, attach again and "
                "load on every rank."
            )
        here = unusual_layouts(self.parameters)
        if isinstance(state, Mapping) and state.get("layouts", {}) != here:
            raise ValueError(
                f"the state was saved for parameters in other memory formats: {state.get('layouts')} instead of "
                f"{here}. Bring the model into the saved format (channels_last, say) before attach."
            )
        decay = state.get("decay", {}) if isinstance(state, Mapping) else {}
        rounds = state.get("rounds", {}) if isinstance(state, Mapping) else {}
        if rounds and self.rounds is None:
            raise ValueError("the state has rounds of local steps, and this method has none. Attach what saved it.")
        if self._moved is not None:
            self._moved.check(decay)
        if self.rounds is not None:
            self.rounds.check(rounds)
        self.reducer.load_state_dict(state)
        if self._moved is not None:
            self._moved.load_state_dict(decay)
        if self.rounds is not None:
            self.rounds.load_state_dict(rounds)

    def finish(self, *, settle: Codec | str | None = None) -> None:
        """Complete the round of local steps together, when this rank has no more batches.

        All models are equal then. Ranks may come after unlike numbers of batches: who comes first takes part in the
        others' syncs. Training may go on. Inner optimizers keep their own momentum (``optimizer_state``): to train
        on without this link, start that anew. Methods that exchange in every step have nothing to complete.

        ``settle="sign"`` has what ranks still owe sent too, all of it, one bit an entry (or in another codec): at
        the end of a training, of rounds of local steps, on all ranks alike.
        """
        codec = settling(self.method, settle)
        if self.rounds is not None:
            self._refuse_detached("finish")
            self.rounds.finish(codec)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the model that all ranks agree on inside a ``with`` block, to evaluate or to save it.

        Within a round of local steps that is the mean of the ranks' models, for which every rank must enter;
        afterwards each has its own again. Methods that exchange in every step always have it.
        """
        if self.rounds is not None:
            self._refuse_detached("averaged")
        with self._waiting.paused(), nullcontext() if self.rounds is None else self.rounds.averaged():
            yield

    def waits(self) -> Waits:
        """Return how long each rank waited in exchanges since the last call, and which one the others wait for.

        Every rank must call it at the same point. What goes by inside ``averaged`` is not counted.
        """
        self._refuse_detached("waits")
        return self._waiting.tell()

    def detach(self) -> None:
        """Stop: module, optimizer and scaler are as before, and gradients of DDP are plainly averaged again.

        With local steps call ``finish`` before: ``detach`` talks to nobody, and leaves each rank its own model.
        What is still owed, and the velocity of momentum that was moved, stay in ``state_dict()``.
        """
        if self._surface is None:
            return
        self._surface.remove()
        if self.scaler is not None:
            release_scaler(self.scaler, self.optimizer)
        if self._moved is not None:
            self._moved.give_back()
        for handle in self._handles:
            handle.remove()
        self._surface, self._handles = None, []

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._surface is not None:
            self.finish()
        self.detach()

    def __repr__(self) -> str:
        return f"Link({self.method.name}, rank {self.transport.rank} of {self.transport.world_size}, {self.stats})"

    def install(self, surface: Surface, clock: Callable[[], float]) -> None:
        """Check that all ranks agree, then put the method to work, timed by a clock. Called by ``attach``."""
        self._begin(surface)
        if self._moved is not None:
            self._moved.take()
        self._handles = [self.optimizer.register_step_pre_hook(left_alone(self._before_step))]
        if self.rounds is not None:
            after = left_alone(lambda *_: self._at_work.after_step())
            self._handles.append(self.optimizer.register_step_post_hook(after))
            self.rounds.after_round = self._replicas or self.rounds.after_round
        elif (check := self._replicas) is not None:
            self._handles.append(self.optimizer.register_step_post_hook(left_alone(lambda *_: check())))
        if self.scaler is not None:
            watch = Watch(surface.before_look, self._after_attempt, self._after_update)
            guard_scaler(self.scaler, self.optimizer, watch)
        self._waiting.begin(clock)

    def regroup(self, transport: Wire, reducer: Reducer, rounds: Rounds, surface: Surface) -> None:
        """Go on with other ranks, of local steps, with parts made for them; what these remember is to be loaded."""
        self._at_work.remove()
        self.transport, self.reducer, self.rounds = transport, reducer, rounds
        self._waiting.regroup(transport)
        self._begin(surface)

    def open_step(self) -> None:
        """Begin a step of the reducer with the learning rates and the loss scale of this moment."""
        if self._compare_steps:
            self._shake_hands(replace(self.identity, method=self.reducer.agreement()))
            self._compare_steps = False
        rates = {
            # A parameter that was frozen after attach must not move: what it owes waits, as at rate 0.
            self._names[id(p)]: float(group.get("lr", 1.0)) if p.requires_grad else 0.0
            for group in self.optimizer.param_groups
            for p in group["params"]
            if id(p) in self._names
        }
        if self.method.tuner.needs_loss and isnan(self.reducer.loss):
            raise loss_untold(self.method.name)
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        momenta = None if self._moved is None else self._moved.momenta()
        if self._exchanged and self._moved is not None:
            warnings.warn(EXCHANGED_TWICE, stacklevel=2)
        self._exchanged = True
        self.reducer.begin_step(rates=rates, momenta=momenta, grad_scale=scale)

    @property
    def _at_work(self) -> Surface:
        assert self._surface is not None
        return self._surface

    def _begin(self, surface: Surface) -> None:
        said = self._setup_bytes
        self._shake_hands(self.identity)
        self.transport.connect()
        surface.install()
        self._surface, self._setup_bytes = surface, said + self.transport.wire_bytes

    def _shake_hands(self, identity: Identity) -> None:
        before = self.transport.wire_bytes
        device = next(iter(self.parameters.values())).device
        steps = handshake(identity, rank=self.transport.rank, device=device)
        self.transport.start(steps, label="the handshake")
        self.transport.drain()
        self._setup_bytes += self.transport.wire_bytes - before

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        refuse_other_scalers(self.scaler)
        if any(callable(a) for a in (*args, *kwargs.values())):
            raise LaconicError(
                "the optimizer was given a closure, which would make gradients after laconic has looked at them. "
                "Call backward() before step(), without a closure."
            )
        refuse_newcomers(self.optimizer, self._names)
        if self._moved is not None:
            self._moved.refresh()
        self._exchanged = False
        if not self._at_work.before_step():
            # Every torch optimizer passes over parameters without a gradient: no momentum, decay or count moves.
            stepped = [p for group in optimizer.param_groups for p in group["params"]]
            # A step that a rank does not take in a round is none of another optimizer's either.
            for p in stepped if self.rounds is None else [*stepped, *self.parameters.values()]:
                p.grad = None
        elif self._moved is not None:
            self._moved.decay_()

    def _after_attempt(self) -> None:
        self._exchanged = False
        self._at_work.after_attempt()

    def _after_update(self) -> None:
        self._exchanged = False
        self._at_work.after_update()

    def _refuse_detached(self, what: str) -> None:
        if self._surface is None:
            raise LaconicError(f"link.{what}() was called after detach(): call it before, while ranks still sync.")
