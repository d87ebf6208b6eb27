"""Reducers on several ranks in one process, and the obvious loop that they must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from contracts.vectors import normal
from laconic.methods import Method
from laconic.reducer import Reducer
from laconic.transports import Lockstep
from laconic.types import Segments

MODEL = Segments.of(["w", "b", "empty", "v", "s"], [14, 3, 0, 9, 1])
Buckets = Sequence[Sequence[str]]


class World:
    """One reducer a rank. ``step`` takes a gradient a rank and returns what each rank got, in the model's order."""

    def __init__(
        self,
        method: Method,
        ranks: int,
        *,
        model: Segments = MODEL,
        dtype: torch.dtype = torch.float64,
        **options: Any,
    ) -> None:
        self.model, self.dtype, self.lockstep = model, dtype, Lockstep(ranks)
        self.reducers = [Reducer(method, model, port, dtype=dtype, **options) for port in self.lockstep.ports]

    def step(
        self,
        grads: Sequence[Tensor],
        *,
        buckets: Buckets | None = None,
        rates: Mapping[str, float] | float = 0.5,
        grad_scale: float = 1.0,
        notes: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        layouts = self._layouts(buckets)
        if isinstance(rates, float):
            rates = dict.fromkeys(self.model.names, rates)
        means = []
        for rank, (reducer, grad) in enumerate(zip(self.reducers, grads, strict=True)):
            reducer.begin_step(rates=rates, grad_scale=grad_scale)
            flats = [self._gather(grad, layout) for layout in layouts]
            for flat, layout in zip(flats, layouts, strict=True):
                reducer.begin(flat, layout, notes=notes[rank] if notes else None)
            reducer.end_step()
            means.append(flats)
        return [self._scatter(flats, layouts) for flats in means]

    def owed(self) -> list[Tensor]:
        """What each rank owes, flat, in the model's order."""
        states = [reducer.state_dict()["memory"] for reducer in self.reducers]
        return [torch.cat([s["owed"][n] for n in self.model.names]) for s in states if s]

    def save(self) -> list[dict[str, Any]]:
        return [reducer.state_dict() for reducer in self.reducers]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        for reducer, state in zip(self.reducers, states, strict=True):
            reducer.load_state_dict(state)

    def _layouts(self, buckets: Buckets | None) -> list[Segments]:
        chosen = buckets or [self.model.names]
        return [Segments.of(names, [self.model[n].size for n in names]) for names in chosen]

    def _gather(self, grad: Tensor, layout: Segments) -> Tensor:
        spans = [self.model[name] for name in layout.names]
        return torch.cat([grad[s.offset : s.offset + s.size] for s in spans])

    def _scatter(self, flats: Sequence[Tensor], layouts: Sequence[Segments]) -> Tensor:
        out = torch.full((self.model.numel,), torch.inf, dtype=flats[0].dtype)
        for flat, layout in zip(flats, layouts, strict=True):
            for segment, view in zip(layout, layout.views(flat), strict=True):
                at = self.model[segment.name].offset
                out[at : at + segment.size] = view
        return out


def gradients(
    ranks: int,
    step: int,
    *,
    numel: int = MODEL.numel,
    dtype: torch.dtype = torch.float64,
    draw: Callable[[int, int, torch.dtype], Tensor] = normal,
) -> list[Tensor]:
    """A gradient for each rank, another in each step."""
    return [draw(numel, 100 * step + rank, dtype) for rank in range(ranks)]


def top_of(x: Tensor, segments: Segments, density: float) -> Tensor:
    """The obvious TopK: the largest of each segment, ties by lowest index, everything else zero."""
    out = torch.zeros_like(x)
    for s in segments:
        entries = range(s.offset, s.offset + s.size)
        largest = sorted(entries, key=lambda i: (-abs(float(x[i])), i))
        chosen = largest[: min(s.size, max(1, round(s.size * density)))]
        out[chosen] = x[chosen]
    return out
