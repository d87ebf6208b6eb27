"""A plain module: hooks on the user's own optimizer, gradients in one flat arena, one collective a step."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from laconic.integrations.link import Link
from laconic.integrations.wire import Wire
from laconic.layout import as_lies, here, rows_of, unflatten
from laconic.segments import Segments


class PlainSurface:
    """Exchanges when the optimizer is about to step, or when a GradScaler is about to look."""

    def __init__(self, module: torch.nn.Module, link: Link) -> None:
        self._module, self._link = module, link
        parameters = [here(p) for p in link.parameters.values()]
        sizes, rows = [p.numel() for p in parameters], [rows_of(p) for p in parameters]
        self._segments = Segments.of(list(link.parameters), sizes, rows)
        dtype = reduce(torch.promote_types, [p.dtype for p in parameters])
        self._arena = torch.zeros(self._segments.numel, dtype=dtype, device=parameters[0].device)
        self._views = self._segments.views(self._arena)
        # The views in the parameters' shapes, and the strides that these had when they were made.
        self._shaped: list[Tensor] = []
        self._strides: list[tuple[int, ...]] = []
        # Which parameters had a gradient, and the same on the device: as a rule they are those of the step before.
        self._flags: list[int] = []
        self._used = torch.empty(0, dtype=torch.uint8, device=self._arena.device)
        self._exchanged = False

    def install(self) -> None:
        """Give every rank the first rank's model."""
        share_first_ranks_model(self._module, self._link.transport)

    def remove(self) -> None:
        """Nothing of the module was changed."""

    def before_look(self) -> None:
        """Exchange, so that the scaler looks at gradients on which all ranks agree."""
        if not self._exchanged:
            self._exchange()
            self._exchanged = True

    def before_step(self) -> bool:
        """Exchange, unless it was done for the scaler's sake already; return whether the step was not skipped."""
        if not self._exchanged:
            self._exchange()
        self._exchanged = False
        return not self._link.reducer.take_outcome().skipped

    def after_step(self) -> None:
        """Nothing to do."""

    def after_attempt(self) -> None:
        """The next step exchanges again, whatever became of this one."""
        self._exchanged = False

    def after_update(self) -> None:
        """The next step exchanges again, whatever became of this one."""
        self._exchanged = False

    @torch.no_grad()
    def _exchange(self) -> None:
        used = self._load()
        self._link.open_step()
        self._link.reducer.begin(self._arena, self._segments, notes=used)
        self._link.reducer.end_step()
        notes = self._link.reducer.outcome.notes
        assert notes is not None
        self._unload(notes)

    def _load(self) -> Tensor:
        """Fill the arena; return which parameters have a gradient on this rank."""
        parameters = self._link.parameters
        strides = [p.stride() for p in parameters.values()]
        if strides != self._strides:
            pairs = zip(self._views, parameters.values(), strict=True)
            self._shaped, self._strides = [unflatten(view, here(p)) for view, p in pairs], strides
        flags, targets, grads = [0] * len(strides), [], []
        for i, (name, p) in enumerate(parameters.items()):
            if p.grad is None:
                self._views[i].zero_()
                continue
            if p.grad.layout is not torch.strided:
                raise TypeError(f"the gradient of {name} is sparse; laconic wants dense ones. Use sparse=False.")
            flags[i] = 1
            targets.append(self._shaped[i])
            grads.append(here(p.grad))
        if grads:
            torch._foreach_copy_(targets, grads)
        if flags != self._flags:
            used = torch.tensor(flags, dtype=torch.uint8)
            self._flags, self._used = flags, used.to(self._arena.device, non_blocking=True)
        return self._used

    def _unload(self, notes: Tensor) -> None:
        """Put the mean into the gradients; a parameter no rank used keeps none, unless something came for it."""
        parameters = list(self._link.parameters.values())
        there = [
            (here(p.grad), view) for p, view in zip(parameters, self._shaped, strict=True) if p.grad is not None
        ]
        if there:
            torch._foreach_copy_([grad for grad, _ in there], [view for _, view in there])
        if len(there) == len(parameters):
            # What others used matters to nobody here, and asking would make the host wait.
            return
        for p, view, shaped, count in zip(parameters, self._views, self._shaped, notes.tolist(), strict=True):
            if p.grad is None and (count > 0 or bool(view.any())):
                p.grad = as_lies(shaped.to(p.dtype, copy=True), p)


def share_first_ranks_model(module: torch.nn.Module, transport: Wire, *, buffers: bool = True) -> None:
    """Give every rank the first rank's parameters and buffers, as bytes in one broadcast."""
    tensors = [here(t) for t in (*module.parameters(), *(module.buffers() if buffers else ()))]
    raw = [t.detach().contiguous().view(-1).view(torch.uint8) for t in tensors]
    everything = torch.cat(raw)
    transport.broadcast_(everything)
    with torch.no_grad():
        for t, piece in zip(tensors, torch.split(everything, [r.numel() for r in raw]), strict=True):
            t.copy_(piece.clone().view(t.dtype).view(t.shape))
