"""Ranks that take local steps, each in a thread of its own: a model, an optimizer, a reducer and its rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import laconic
from laconic.method import Method
from laconic.methods import METHODS
from laconic.reducer import Reducer
from laconic.rounds import Rounds
from laconic.segments import Segments
from laconic.transports.lockstep import Port
from lockstep.ranks import run_ranks

T = TypeVar("T")
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
SMALL: dict[str, dict[str, Any]] = {
    "celgc": {"every": 3, "clip": 1.0},
    "local_sgd": {"every": 3},
    "post_local": {"every": 3, "start": 4, "clip": 1.0},
    "parallel_clip": {"clip": 1.0},
    "episode": {"every": 3, "clip": 1.0},
    "episode_pp": {"every": 3, "clip": 1.0, "participants": 2},
    "diloco": {"every": 3, "clip": 1.0},
    "sparseloco": {"every": 3, "k": 2, "chunk": 4, "clip": 1.0},
    "spartan": {"every": 3, "density": 0.25, "clip": 1.0},
}
LOCAL = [name for name, recipe in METHODS.items() if recipe().local is not None]


def small(name: str, **more: Any) -> Method:
    """A recipe that syncs, clips and selects within a few steps of a small model."""
    method = METHODS[name](**SMALL[name] | more)
    if name in ("sparseloco", "spartan"):
        # Nothing is too small to select from.
        method = replace(method, compressor=replace(method.compressor, whole_below=0))
    return method


class Point(nn.Module):
    """A model that is one vector, cut into the given sizes."""

    def __init__(self, *sizes: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.x = nn.ParameterList([nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes])


def sgd(rate: float, **settings: Any) -> Make:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, **settings)


class Rank:
    """What one rank has; ``step`` and ``follow`` are what an attached loop does in a step."""

    def __init__(self, method: Method, port: Port, model: nn.Module, make: Make) -> None:
        self.port, self.rank, self.method = port, port.rank, method
        self.model = copy.deepcopy(model)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = make(list(self.parameters.values()))
        sizes = [p.numel() for p in self.parameters.values()]
        dtype = next(iter(self.parameters.values())).dtype
        self.reducer = Reducer(method, Segments.of(list(self.parameters), sizes), port, dtype=dtype)
        self.rounds = Rounds(method, self.model, self.parameters, self.optimizer, self.reducer, port)
        self.rounds.begin()

    @property
    def x(self) -> Tensor:
        """The model as one vector, copied."""
        return torch.cat([p.detach().flatten() for p in self.parameters.values()])

    @property
    def anchor(self) -> Tensor:
        """The model that ranks agree on, as one vector in the model's order."""
        parts = {name: v for f in self.rounds._sync.fragments for name, v in f.arena.by_name(f.anchor).items()}
        return torch.cat([parts[name].flatten() for name in self.parameters])

    @property
    def owed(self) -> Tensor:
        memory = self.reducer.state_dict()["memory"]["owed"]
        return torch.cat([memory[name].flatten() for name in self.parameters])

    @property
    def now(self) -> Any:
        return self.rounds._now

    @property
    def stats(self) -> laconic.Stats:
        return self.rounds.stats(self.reducer.stats())

    def follow(self, grad: Tensor | float, *, loss: float | None = None) -> bool:
        """Attempt a step along a gradient that is given, flat; return whether it was taken."""
        flat = grad if isinstance(grad, Tensor) else torch.full_like(self.x, grad)
        pieces = flat.split([p.numel() for p in self.parameters.values()])
        for p, piece in zip(self.parameters.values(), pieces, strict=True):
            p.grad = piece.reshape(p.shape).to(p.dtype, copy=True)
        return self._attempt(loss)

    def step(self, loss: Callable[[nn.Module], Tensor], *, tell: bool = True) -> bool:
        """Attempt a step along the gradient of a loss; return whether it was taken."""
        self.optimizer.zero_grad()
        value = loss(self.model)
        value.backward()
        return self._attempt(float(value.detach()) if tell else None)

    def save(self) -> dict[str, Any]:
        # Rounds first: they wait for an exchange that is under way.
        rounds = self.rounds.state_dict()
        parts = {"rounds": rounds, "reducer": self.reducer.state_dict(), "model": self.model.state_dict(),
                 "optimizer": self.optimizer.state_dict()}  # fmt: skip
        return copy.deepcopy(parts)

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rounds.check(state["rounds"])
        self.reducer.load_state_dict(state["reducer"])
        self.rounds.load_state_dict(state["rounds"])

    def _attempt(self, loss: float | None) -> bool:
        if loss is not None:
            self.rounds.observe(loss)
        taken = self.rounds.before_step()
        if taken:
            self.optimizer.step()
        self.rounds.after_attempt()
        return taken


def run(
    method: Method,
    ranks: int,
    fn: Callable[[Rank], T],
    *,
    model: nn.Module | None = None,
    make: Make | None = None,
) -> list[T]:
    """Call ``fn`` for each rank in a thread, all from the same model; return what they return."""
    begin = Point(3, 4, 1) if model is None else model
    return run_ranks(ranks, lambda port: fn(Rank(method, port, begin, make or sgd(0.1))))


def draw(rank: int, step: int, numel: int = 8, *, scale: float = 1.0) -> Tensor:
    """A gradient for each rank and step."""
    source = torch.Generator().manual_seed(7919 * rank + step)
    return scale * torch.randn(numel, generator=source, dtype=torch.float64)


def drawn(rank: Rank, steps: Iterable[int], *, scale: float = 1.0) -> list[Tensor]:
    """Step along drawn gradients; return the model after each."""
    seen = []
    for step in steps:
        rank.follow(draw(rank.rank, step, scale=scale), loss=1.0 + rank.rank)
        seen.append(rank.x)
    return seen


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
