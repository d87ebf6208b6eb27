"""A module's running statistics at a sync (BatchNorm's): kept, averaged, or made anew."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from laconic.holding import ALONE, Holding
from laconic.local.steps import Buffers
from laconic.rounds.meeting import Meeting

# Statistics are made anew from this many of a round's last inputs.
_INPUTS = 8


@dataclass(frozen=True, kw_only=True)
class _Call:
    """What the module was called with, and the autocast it was called in."""

    args: Any
    kwargs: dict[str, Any]
    autocast: bool
    dtype: torch.dtype


class _Listener:
    """The hook that hears a module's calls; a copy of it, or one that was saved and loaded, does nothing."""

    def __init__(self, care: BufferCare | None = None) -> None:
        # Compiled with the module it would be compiled anew for every number of inputs that it has kept.
        self._hear = None if care is None else torch.compiler.disable(care.hear)

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self._hear is not None:
            self._hear(module, args, kwargs)

    def __reduce__(self) -> tuple[type[_Listener], tuple[()]]:
        # What a module's copy or file must not have: the inputs, and the group that ranks meet in.
        return _Listener, ()


class BufferCare:
    """Sees to a module's running statistics at each sync: ``average`` or ``recompute``; or not: ``keep``.

    These are ``running_mean`` and ``running_var`` of its normalisation layers; any other buffer (a table, a mask)
    stays as it is on each rank. Each is averaged over the ranks whose own is finite, and all take that mean; where
    none is finite each rank keeps its own.

    Recomputing runs the averaged model over the inputs that it was last trained on, in training mode, without
    gradients and in the autocast of that call, and takes the plain mean of BatchNorm's statistics; then ranks
    average those. The inputs are heard from ``begin`` to ``remove``.
    """

    def __init__(
        self, module: nn.Module, meeting: Meeting, *, ranks: int, how: Buffers, holding: Holding = ALONE
    ) -> None:
        self._module, self._meeting, self._ranks, self._how = module, meeting, ranks, how
        self._holding = holding
        # Ranks meet on the device of what they train; statistics may lie elsewhere.
        self._device = next((p.device for p in module.parameters() if p.requires_grad), torch.device("cpu"))
        norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self._norms = [m for m in norms if m.track_running_stats] if how == "recompute" else []
        self._inputs: deque[_Call] = deque(maxlen=_INPUTS)
        self._handle: RemovableHandle | None = None

    def begin(self) -> None:
        """Hear the module's inputs from now on, where statistics are made from them."""
        if self._norms and self._handle is None:
            self._handle = self._module.register_forward_pre_hook(_Listener(self), with_kwargs=True)

    def remove(self) -> None:
        """Hear the module's inputs no more, and forget them."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._inputs.clear()

    def hear(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Keep what the module is called with, if that is a step of its training; no graph is kept alive by it."""
        if module is not self._module or not module.training or not torch.is_grad_enabled():
            return
        kind = self._device.type
        self._inputs.append(
            _Call(
                args=_detached(args),
                kwargs=_detached(dict(kwargs)),
                autocast=torch.is_autocast_enabled(kind),
                dtype=torch.get_autocast_dtype(kind),
            )
        )

    @torch.no_grad()
    def see_to(self) -> None:
        """Make the statistics those of the model as it now is, the same on every rank."""
        if self._norms and self._inputs:
            self._recompute()
        buffers = [] if self._how == "keep" else self.averaged()
        if not buffers:
            return
        # In double precision: statistics that are equal on all ranks then stay as they are to the bit.
        # Behind the sum: how many ranks have each buffer finite.
        room = torch.zeros(len(buffers), dtype=torch.float64, device=self._device)
        flat = torch.cat([*(b.reshape(-1).to(self._device, torch.float64) for b in buffers), room])
        sizes = [*(b.numel() for b in buffers), len(buffers)]
        *pieces, counts = flat.split(sizes)
        for i, piece in enumerate(pieces):
            counts[i] = piece.isfinite().all()
            # Divided before they are added up: a mean of finite numbers is finite.
            piece.copy_(torch.where(counts[i] > 0, piece / self._ranks, 0.0))
        flat = self._holding.sum_(flat)
        *pieces, counts = self._meeting.sum_(flat, "the module's buffers").split(sizes)
        for buffer, piece, finite in zip(buffers, pieces, counts.tolist(), strict=True):
            if finite:
                buffer.copy_(piece.mul_(self._ranks / finite).view(buffer.shape))

    def averaged(self) -> list[Tensor]:
        """The buffers of which a mean makes sense, each once."""
        norms = [m for m in self._module.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        found = [t for m in norms if m.track_running_stats for t in (m.running_mean, m.running_var)]
        return list({id(t): t for t in found if t is not None and t.is_floating_point()}.values())

    def _recompute(self) -> None:
        # One that the user has frozen by eval() keeps its statistics.
        norms = [norm for norm in self._norms if norm.training]
        momenta = [norm.momentum for norm in norms]
        try:
            for norm in norms:
                norm.reset_running_stats()
                # None: the plain mean over batches.
                norm.momentum = None
            # Dropout would draw numbers that the run would not have drawn.
            devices = sorted({p.device.index for p in self._module.parameters() if p.device.type == "cuda"})
            with torch.random.fork_rng(devices=[d for d in devices if d is not None]):
                for call in self._inputs if norms else ():
                    self._run(call)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
            self._inputs.clear()

    def _run(self, call: _Call) -> None:
        # No cache: in a loop that steps within autocast it would hold the weights from before the sync.
        with torch.autocast(self._device.type, dtype=call.dtype, enabled=call.autocast, cache_enabled=False):
            self._module(*call.args, **call.kwargs)


def _detached(x: Any) -> Any:
    """Return x with every tensor in it, in tuples, lists and dictionaries too, cut off its graph."""
    if isinstance(x, Tensor):
        return x.detach()
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*map(_detached, x))
    if type(x) in (tuple, list):
        return type(x)(map(_detached, x))
    if isinstance(x, dict):
        out = copy.copy(x)
        for key, value in x.items():
            out[key] = _detached(value)
        return out
    return x
