"""Small models and loops that several exams share."""

from __future__ import annotations

import itertools
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


def batch(rank: int, step: int, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, 16, generator=source)
    y = torch.randn(8, 4, generator=source)
    return x.to(dtype), y.to(dtype)


def wrap(model: nn.Module, group: dist.ProcessGroup, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, process_group=group, **{"bucket_cap_mb": 0.01, **options})


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
    steps: range,
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    for step in steps:
        x, y = batch(dist.get_rank(group), step, dtype=dtype)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(model: nn.Module) -> list[Tensor]:
    """The parameters, as copies that can travel."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return [p.detach().clone() for p in inner.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def build(group: dist.ProcessGroup, kind: str, method: laconic.Method | None, **options: Any):
    """A model of one kind (``ddp`` or ``plain``), its optimizer and its link, equal on all ranks."""
    torch.manual_seed(1)
    model: nn.Module = Mlp()
    if kind == "ddp":
        model = wrap(model, group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if method is None:
        return model, optimizer, None
    link = laconic.attach(model, optimizer, method, group=None if kind == "ddp" else group)
    return model, optimizer, link
