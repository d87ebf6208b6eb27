"""A module's floating-point buffers at a sync (BatchNorm's statistics): kept, averaged, or made anew."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from laconic.local import LocalSteps
from laconic.rounds.meeting import Meeting

# Statistics are made anew from this many of a round's last inputs.
_INPUTS = 8


class BufferCare:
    """Sees to a module's buffers at each sync: ``average`` or ``recompute``.

    Recomputing runs the averaged model over the inputs that it was last trained on, in training mode and without
    gradients, and takes the plain mean of their statistics; then ranks average those.
    """

    def __init__(self, module: nn.Module, meeting: Meeting, *, ranks: int, recompute: bool) -> None:
        self._module, self._meeting, self._ranks = module, meeting, ranks
        norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self._norms = [m for m in norms if m.track_running_stats] if recompute else []
        self._inputs: deque[tuple[Any, dict[str, Any]]] = deque(maxlen=_INPUTS)
        self._handle: RemovableHandle | None = None
        if self._norms:
            # A function, which copies of the module share: a method would have them copy the group as well.
            self._handle = module.register_forward_pre_hook(lambda *call: self._keep(*call), with_kwargs=True)

    @staticmethod
    def of(local: LocalSteps, module: nn.Module, meeting: Meeting, *, ranks: int) -> BufferCare | None:
        """Return the care that a method asks for; None where each rank keeps its own."""
        if local.buffers == "keep":
            return None
        return BufferCare(module, meeting, ranks=ranks, recompute=local.buffers == "recompute")

    def remove(self) -> None:
        """Stop watching the module's inputs."""
        if self._handle is not None:
            self._handle.remove()

    @torch.no_grad()
    def see_to(self) -> None:
        """Make the buffers those of the model as it now is, the same on every rank."""
        if self._norms and self._inputs:
            self._recompute()
        buffers = self.averaged()
        if not buffers:
            return
        wide = torch.float64 if any(b.dtype == torch.float64 for b in buffers) else torch.float32
        flat = torch.cat([b.reshape(-1).to(wide) for b in buffers])
        self._meeting.sum_(flat, "the module's buffers").div_(self._ranks)
        for buffer, piece in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
            buffer.copy_(piece.view(buffer.shape))

    def averaged(self) -> list[Tensor]:
        """The buffers of which a mean makes sense."""
        return [b for b in self._module.buffers() if b.is_floating_point()]

    def _keep(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if module is self._module and module.training and torch.is_grad_enabled():
            self._inputs.append((args, kwargs))

    def _recompute(self) -> None:
        # One that the user has frozen by eval() keeps its statistics.
        norms = [norm for norm in self._norms if norm.training]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            # None: the plain mean over batches.
            norm.momentum = None
        # Dropout would draw numbers that the run would not have drawn.
        devices = sorted({p.device.index for p in self._module.parameters() if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=[d for d in devices if d is not None]):
            for args, kwargs in self._inputs if norms else ():
                self._module(*args, **kwargs)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        self._inputs.clear()
