"""Parameters as one flat vector, in memory's own precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from laconic.holding import ALONE, Holding
from laconic.layout import as_lies, flatten, here, rows_of, unflatten
from laconic.memory import accumulation_dtype
from laconic.segments import Segments


class Arena:
    """Some parameters of a model, as far as they lie on this rank, and where each lies in a flat vector."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], holding: Holding = ALONE) -> None:
        self.parameters, self._holding = dict(parameters), holding
        sizes, rows = [p.numel() for p in self.tensors], [rows_of(p) for p in self.tensors]
        self.segments = Segments.of(list(parameters), sizes, rows)
        self._dtype = accumulation_dtype([p.dtype for p in self.tensors])
        self.device = self.tensors[0].device

    @property
    def tensors(self) -> list[Tensor]:
        """Return what is here of the parameters, in their own memory."""
        # Asked for anew: a shard may come to lie elsewhere.
        return [here(p) for p in self.parameters.values()]

    @property
    def bytes(self) -> int:
        """Return what the parameters themselves take up here."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def zeros(self, more: int = 0) -> Tensor:
        """Return a flat vector of zeros, with room for more numbers behind it."""
        return torch.zeros(self.segments.numel + more, dtype=self._dtype, device=self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return a flat vector's parts in the parameters' shapes."""
        pairs = zip(self.segments.views(flat), self.tensors, strict=True)
        return [unflatten(piece, p) for piece, p in pairs]

    @torch.no_grad()
    def values(self, *, out: Tensor | None = None) -> Tensor:
        """Return the parameters' values, copied; in ``out`` where that is given."""
        out = torch.empty(self.segments.numel, dtype=self._dtype, device=self.device) if out is None else out
        for view, p in zip(self.views(out), self.tensors, strict=True):
            view.copy_(p.detach())
        return out

    @torch.no_grad()
    def from_values(self, flat: Tensor, *, out: Tensor) -> Tensor:
        """Return the way from the parameters' values to a flat vector, in ``out``."""
        for view, there, p in zip(self.views(out), self.views(flat), self.tensors, strict=True):
            torch.sub(there, p, out=view)
        return out

    @torch.no_grad()
    def gradients_(self, out: Tensor) -> None:
        """Fill out with the gradients; zero where a parameter has none."""
        for view, p in zip(self.segments.views(out), self.parameters.values(), strict=True):
            if p.grad is None:
                view.zero_()
            else:
                view.copy_(flatten(here(p.grad), here(p)))

    @torch.no_grad()
    def set_gradients(self, flat: Tensor, *, used: Sequence[bool] | None = None) -> None:
        """Give every parameter its part as gradient.

        One that has none gets one where ``used`` says so; without ``used``, if its part is not zero.
        """
        for i, (view, p) in enumerate(zip(self.views(flat), self.parameters.values(), strict=True)):
            if p.grad is not None:
                here(p.grad).copy_(view)
            elif bool(view.any()) if used is None else used[i]:
                p.grad = as_lies(view.to(p.dtype, copy=True), p)

    @torch.no_grad()
    def set_values(self, flat: Tensor) -> None:
        """Give every parameter its part as value."""
        for view, p in zip(self.views(flat), self.tensors, strict=True):
            p.copy_(view)
        self._holding.wrote()

    @torch.no_grad()
    def rounded(self, flat: Tensor) -> Tensor:
        """Return the vector as parameters of narrower types can hold it."""
        if all(p.dtype == self._dtype for p in self.tensors):
            return flat
        pieces = zip(self.segments.views(flat), self.tensors, strict=True)
        return torch.cat([piece.to(p.dtype).to(self._dtype) for piece, p in pieces])

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Return copies of a vector's parts by parameter name."""
        return {s.name: v.clone() for s, v in zip(self.segments, self.segments.views(flat), strict=True)}

    def check(self, what: str, saved: Mapping[str, Tensor]) -> None:
        """Raise ``ValueError`` if saved parts are not those of these parameters."""
        sizes = {name: t.numel() for name, t in saved.items()}
        if sizes != {s.name: s.size for s in self.segments}:
            raise ValueError(f"the saved {what} is not that of this model's parameters. Load its own state.")

    def load_(self, flat: Tensor, saved: Mapping[str, Tensor]) -> None:
        """Fill the vector with saved parts."""
        for segment, view in zip(self.segments, self.segments.views(flat), strict=True):
            view.copy_(saved[segment.name].flatten())
