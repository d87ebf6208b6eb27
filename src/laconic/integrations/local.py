"""Local steps: gradients stay where they are, and rounds of steps end with a sync."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from laconic.integrations.ddp import Hook, take_hook
from laconic.integrations.plain import share_first_ranks_model
from laconic.integrations.wire import Wire
from laconic.rounds import Rounds


class LocalSurface:
    """Keeps DDP from exchanging anything, gradients and buffers, and lets rounds see every step."""

    def __init__(
        self,
        model: torch.nn.Module,
        rounds: Rounds,
        transport: Wire,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        # DDP holds its hook's state from C++, where Python's collector cannot see a cycle.
        self._model, self._rounds, self._transport = weakref.ref(model), rounds, transport
        self._scaler, self._looked, self._stepped = scaler, False, False
        self._hook: Hook | None = None
        self._sent_buffers = True

    def install(self) -> None:
        """Start all ranks from the first one's model, and tell DDP to be silent."""
        model = self._model()
        assert model is not None
        if isinstance(model, DistributedDataParallel):
            self._hook = take_hook(model, self)
            self._sent_buffers = getattr(model, _buffer_switch(model))
            setattr(model, _buffer_switch(model), False)
            # As in no_sync(): else DDP broadcasts its order of buckets in the second step, and with
            # find_unused_parameters adds up which were used in each; a rank without batches would not be there.
            # A static graph is learnt from a first step that DDP sees, in which it talks in any case.
            model.require_backward_grad_sync = bool(model.static_graph)
            # DDP made models equal when it was made; an earlier method may have left them within a round.
            share_first_ranks_model(model.module, self._transport, buffers=False)
        else:
            share_first_ranks_model(model, self._transport)
        self._rounds.begin()

    def remove(self) -> None:
        """Let DDP exchange again."""
        self._rounds.remove()
        model = self._model()
        if self._hook is not None:
            self._hook.surface = None
            if isinstance(model, DistributedDataParallel):
                setattr(model, _buffer_switch(model), self._sent_buffers)
                model.require_backward_grad_sync = True

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Hand a bucket back to DDP as it is."""
        buffer = bucket.buffer()
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.device.type == "cuda" else None)
        future.set_result(buffer)
        return future

    def before_look(self) -> None:
        """A GradScaler looks, and will say when its attempt is over; it may look at local gradients."""
        self._looked = True
        self._rounds.before_look(1.0 if self._scaler is None else self._scaler.get_scale())

    def before_step(self) -> bool:
        """Clip or correct the gradients; return whether the optimizer may step."""
        return self._rounds.before_step()

    def after_step(self) -> None:
        """Count the step, unless a scaler is about to say that its attempt is over."""
        self._stepped = True
        if not self._looked:
            self.after_attempt()

    def after_attempt(self) -> None:
        """Count the step, or that it was skipped."""
        self._looked = self._stepped = False
        self._rounds.after_attempt()

    def after_update(self) -> None:
        """A loop may have unscaled and then stepped without the scaler, or not at all."""
        if self._stepped:
            self.after_attempt()
        self._looked = False
        self._rounds.forget_look()


def _buffer_switch(ddp: DistributedDataParallel) -> str:
    """The attribute that says whether DDP broadcasts buffers; its name changed in torch 2.13."""
    return "forward_sync_buffers" if "forward_sync_buffers" in vars(ddp) else "broadcast_buffers"
