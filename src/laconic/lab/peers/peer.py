"""A peer: one way to train over several ranks that a user could pick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

import laconic


def nothing() -> None:
    """Leave nothing behind to close."""


def in_ddp(module: torch.nn.Module, **settings: Any) -> DistributedDataParallel:
    """Wrap a module in DDP whose gradients are views of its buckets: for everybody the quicker setting."""
    return DistributedDataParallel(module, gradient_as_bucket_view=True, **settings)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a loop trains: the model to call, the optimizer to step, and what to call when the loop is over.

    ``link`` is there for methods of laconic.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    link: laconic.Link | None = None
    close: Callable[[], None] = nothing


class Peer(Protocol):
    """How a module and its optimizer become a model that trains on all ranks; the loop stays as it is.

    Ranks have joined the default process group, gloo, before; ``prepare`` is called on each of them with equal
    modules. After a multiple of ``period`` steps all ranks have the same weights; with a link that still owes
    something, inside ``link.averaged()``.
    """

    @property
    def name(self) -> str:
        """The word that names it on the command line."""

    @property
    def period(self) -> int:
        """Steps from one sync to the next; 1: it talks in every step."""

    def missing(self) -> str:
        """Say why it cannot run here, and what to do about it; nothing if it can."""

    def prepare(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Prepared:
        """Return what to train instead; the optimizer is the module's."""
