"""Reducers on several ranks in one process, and the obvious loop that they must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from contracts.vectors import normal
from laconic.method import Method
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Momentum

HALF = Momentum(factor=0.5)
MODEL = Segments.of(["w", "b", "empty", "v", "s"], [14, 3, 0, 9, 1], [2, 1, 1, 3, 1])
Buckets = Sequence[Sequence[str]]


class World:
    """One reducer a rank. ``step`` takes a gradient a rank and returns what each rank got, in the model's order.

    Where the method owns momentum, it is a half unless another is given.
    """

    def __init__(
        self,
        method: Method,
        ranks: int,
        *,
        model: Segments = MODEL,
        dtype: torch.dtype = torch.float64,
        momentum: Momentum | None = None,
        node_size: int = 1,
        **options: Any,
    ) -> None:
        self.method, self.model, self.dtype = method, model, dtype
        self.lockstep = Lockstep(ranks, node_size=node_size)
        self.momentum = momentum or (HALF if method.momentum == "method" else None)
        options = {"velocity": self.momentum is not None} | options
        self.reducers = [Reducer(method, model, port, dtype=dtype, **options) for port in self.lockstep.ports]

    def step(
        self,
        grads: Sequence[Tensor],
        *,
        buckets: Buckets | None = None,
        rates: Mapping[str, float] | float = 0.5,
        grad_scale: float = 1.0,
        notes: Sequence[Tensor] | None = None,
        losses: Sequence[float] | None = None,
        momentum: Momentum | None = None,
    ) -> list[Tensor]:
        layouts = self._layouts(buckets)
        if isinstance(rates, float):
            rates = dict.fromkeys(self.model.names, rates)
        momentum = momentum or self.momentum
        momenta = None if momentum is None else dict.fromkeys(self.model.names, momentum)
        means = []
        for rank, (reducer, grad) in enumerate(zip(self.reducers, grads, strict=True)):
            if losses is not None:
                reducer.loss = losses[rank]
            reducer.begin_step(rates=rates, momenta=momenta, grad_scale=grad_scale)
            flats = [self._gather(grad, layout) for layout in layouts]
            for flat, layout in zip(flats, layouts, strict=True):
                reducer.begin(flat, layout, notes=notes[rank] if notes else None)
            reducer.end_step()
            means.append(flats)
        return [self._scatter(flats, layouts) for flats in means]

    def owed(self) -> list[Tensor]:
        """What each rank owes, flat, in the model's order; nothing for a method without memory."""
        return self.kept("owed") if self.method.memory != "none" else []

    def kept(self, kind: str) -> list[Tensor]:
        """One kind of each rank's memory, flat, in the model's order."""
        states = [reducer.state_dict()["memory"] for reducer in self.reducers]
        return [torch.cat([s[kind][n] for n in self.model.names]) for s in states]

    def rooms(self) -> dict[str, int]:
        """The rooms of the next messages: every rank must have the same."""
        first, *others = [state["ledger"]["rooms"] for state in self.save()]
        assert all(rooms == first for rooms in others)
        return first

    def enters(
        self,
        grads: Sequence[Tensor],
        *,
        rates: Mapping[str, float] | float = 0.5,
        momentum: Momentum | None = None,
        grad_scale: float = 1.0,
    ) -> list[Tensor]:
        """What the next step adds to what each rank owes, by the obvious loop; nothing at rate 0."""
        momentum = momentum or self.momentum or Momentum(factor=0.0)
        velocities = self.kept("velocity") if self.momentum else [torch.zeros_like(g) for g in grads]
        added = []
        for grad, velocity in zip(grads, velocities, strict=True):
            g = self.clipped(grad.to(self.dtype) / grad_scale)
            u = momentum.factor * velocity + g
            added.append((g + momentum.factor * u if momentum.nesterov else u) * self.units(rates))
        return added

    def units(self, rates: Mapping[str, float] | float) -> Tensor:
        """What one unit of gradient is in the units of what is owed, entry by entry."""
        rates = dict.fromkeys(self.model.names, rates) if isinstance(rates, float) else rates
        each = [rates[s.name] if self.method.memory == "update" else float(rates[s.name] != 0) for s in self.model]
        return torch.cat(
            [torch.full((s.size,), e, dtype=self.dtype) for s, e in zip(self.model, each, strict=True)]
        )

    def clipped(self, grad: Tensor) -> Tensor:
        """A rank's own gradient, clipped as the method says, by the obvious loop."""
        clip = self.method.clip
        if clip is None:
            return grad
        ranks = self.lockstep.world_size
        most = clip.norm * {"mean": ranks**0.5, "sum": ranks**-0.5, "local": 1.0}[clip.convention]
        out = grad.clone()
        for part in self.model.views(out) if clip.scope == "layer" else [out]:
            norm = float(part.double().square().sum().sqrt())
            if norm > most:
                part *= most / norm
        return out

    def save(self) -> list[dict[str, Any]]:
        return [reducer.state_dict() for reducer in self.reducers]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        for reducer, state in zip(self.reducers, states, strict=True):
            reducer.load_state_dict(state)

    def _layouts(self, buckets: Buckets | None) -> list[Segments]:
        chosen = buckets or [self.model.names]
        return [laid_out(self.model, names) for names in chosen]

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


def laid_out(model: Segments, names: Sequence[str]) -> Segments:
    """The named parameters of a model, one behind the other in a bucket."""
    return Segments.of(names, [model[n].size for n in names], [model[n].rows for n in names])


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
