"""Small models and loops that several exams share."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import laconic


class Mlp(nn.Module):
    """Linear layers of unlike sizes, one of them large enough to be selected from."""

    def __init__(self, width: int = 48, layers: int = 3) -> None:
        super().__init__()
        sizes = [16, *[width] * layers, 4]
        self.net = nn.Sequential(*[m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Branches(nn.Module):
    """A trunk and two branches; each step says which branches take part."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.trunk = nn.Linear(16, width)
        self.left = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))
        self.right = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))

    def forward(self, x: Tensor, branches: str = "left right") -> Tensor:
        h = torch.tanh(self.trunk(x))
        return sum((getattr(self, name)(h) for name in branches.split()), start=h[:, :4])


def batch(rank: int, step: int, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, 16, generator=source)
    y = torch.randn(8, 4, generator=source)
    return x.to(dtype), y.to(dtype)


def wrap(model: nn.Module, group: dist.ProcessGroup, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, process_group=group, **{"bucket_cap_mb": 0.01, **options})


def loss(model: nn.Module, rank: int, step: int, *, dtype: torch.dtype = torch.float32, **call: Any) -> Tensor:
    x, y = batch(rank, step, dtype=dtype)
    return nn.functional.mse_loss(model(x, **call), y)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
    steps: Iterable[int],
    *,
    dtype: torch.dtype = torch.float32,
    after: Callable[[], None] | None = None,
) -> list[str]:
    """Train, calling ``after`` at the end of each step; return the model's digest after each."""
    seen = []
    for step in steps:
        loss(model, dist.get_rank(group), step, dtype=dtype).backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after()
        seen.append(digest(weights(model)))
    return seen


def inner(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def weights(model: nn.Module) -> list[Tensor]:
    """The parameters, as copies that can travel."""
    return [p.detach().clone() for p in inner(model).parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def digest(tensors: Iterable[Tensor]) -> str:
    """The tensors' bits as a short text: equal texts, equal bits."""
    state = hashlib.blake2s()
    for t in tensors:
        state.update(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def owed(link: laconic.Link) -> dict[str, Tensor]:
    """What this rank has not sent yet, by parameter name."""
    return link.state_dict()["memory"]["owed"]


def memory_bits(link: laconic.Link) -> str:
    """All that this rank remembers, of every kind, as a short text."""
    state = link.state_dict()
    kinds = [*state["memory"].values(), state["decay"]]
    return digest(vectors[name] for vectors in kinds for name in sorted(vectors))


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: laconic.Method,
    group: dist.ProcessGroup,
    **options: Any,
) -> laconic.Link:
    """Attach either kind of module to the job's group."""
    chosen = None if isinstance(model, DistributedDataParallel) else group
    return laconic.attach(model, optimizer, method, group=chosen, **options)


def build(group: dist.ProcessGroup, kind: str, method: laconic.Method | None, **options: Any):
    """A model of one kind (``ddp`` or ``plain``), its optimizer and its link, equal on all ranks."""
    torch.manual_seed(1)
    model: nn.Module = Mlp()
    if kind == "ddp":
        model = wrap(model, group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, None if method is None else attach(model, optimizer, method, group)


class Watch:
    """Adds up, by parameter name, the gradients this rank made and those its optimizer was given.

    Made after ``attach``. In update units each is multiplied by the learning rate of its moment; at rate 0 a
    gradient counts for nothing in any unit.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, unit: str = "gradient") -> None:
        self._optimizer, self._unit = optimizer, unit
        self._parameters = {name: p for name, p in inner(model).named_parameters() if p.requires_grad}
        # Wider than any gradient, so that adding up loses nothing.
        self.local = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in self._parameters.items()}
        self.delivered = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in self._parameters.items()}
        for name, p in self._parameters.items():
            p.register_hook(partial(self._made, name))
        optimizer.register_step_pre_hook(self._given)

    def _made(self, name: str, grad: Tensor) -> None:
        self.local[name] += grad.double() * self._rate(name)

    def _given(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for name, p in self._parameters.items():
            if p.grad is not None:
                self.delivered[name] += p.grad.double() * self._rate(name)

    def _rate(self, name: str) -> float:
        p = self._parameters[name]
        rate = next(g["lr"] for g in self._optimizer.param_groups if any(p is q for q in g["params"]))
        return rate if self._unit == "update" else float(rate != 0)

    def account(self, link: laconic.Link) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """What was made here, what was delivered, and what is owed here, by name."""
        memory = owed(link) if link.method.memory != "none" else {}
        zero = torch.zeros(())
        return {
            name: (made, self.delivered[name], memory.get(name, zero).reshape_as(made) if memory else zero)
            for name, made in self.local.items()
        }


def imbalance(accounts: list[dict[str, tuple[Tensor, Tensor, Tensor]]]) -> float:
    """How far made = owed + ranks x delivered is from true, relative to what was made: tiny if nothing is lost."""
    worst = 0.0
    for name in accounts[0]:
        made = sum(a[name][0] for a in accounts)
        left = sum(a[name][2] for a in accounts)
        sent = len(accounts) * accounts[0][name][1]
        scale = max(float(made.abs().max()), 1e-12)
        worst = max(worst, float((made - left - sent).abs().max()) / scale)
    return worst
