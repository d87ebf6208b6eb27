"""The work that is planned for: a task of the laboratory, a user's own function, or a number of parameters."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from laconic.arguments import check_number, check_whole
from laconic.lab.tasks import Task
from laconic.lab.work import Place, Work
from laconic.segments import Segments

# DDP's own: the first bucket is small, so that the first exchange begins early.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
# Of the seconds of an invented step: forward takes one part, backward two, the optimizer little.
_FORWARD, _BACKWARD = 0.32, 0.64


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and what one step does with it: ``loss(model)`` draws a batch and returns its loss, a scalar.

    ``model`` may come wrapped in DDP, so call what is handed in. Without an optimizer it is plain SGD.
    """

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]
    optimizer: torch.optim.Optimizer | None = None


class Planned(Protocol):
    """Something to plan for."""

    @property
    def title(self) -> str:
        """What it is, in a few words."""

    def subject(self, place: Place) -> Subject | None:
        """Return the model and its step on a rank; None: there is none, only a layout."""


@dataclass(frozen=True, kw_only=True)
class OfTask:
    """A task of the laboratory, with its own batch and optimizer's settings."""

    task: Task
    batch: int | None = None

    @property
    def title(self) -> str:
        """What it is."""
        return f"laconic train {self.task.name}"

    def subject(self, place: Place) -> Subject:
        """Prepare the task as ``laconic train`` would, for one rank."""
        choice = self.task.choice()
        work: Work = self.task.prepare(replace(place, batch=self.batch or choice.batch or 1))
        steps = iter(range(1 << 60))
        rate = min(choice.rate or 0.01, 0.01)
        optimizer: torch.optim.Optimizer
        if choice.optimizer == "sgd":
            optimizer = torch.optim.SGD(work.model.parameters(), lr=rate, momentum=choice.momentum or 0.0)
        else:
            optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-4)
        return Subject(
            model=work.model, loss=lambda model: work.loss(model, work.batch(next(steps))), optimizer=optimizer
        )


@dataclass(frozen=True, kw_only=True)
class OfFunction:
    """A function of a user's, named ``package.module:function`` or ``train.py:function``."""

    where: str

    def __post_init__(self) -> None:
        source, colon, name = self.where.rpartition(":")
        if not colon or not source or not name.isidentifier():
            raise ValueError(
                f"a function is named package.module:function or path/train.py:function, got {self.where!r}."
            )

    @property
    def title(self) -> str:
        """What it is."""
        return self.where

    def find(self) -> Callable[[], Any]:
        """Return the function; what is not there is refused."""
        source, _, name = self.where.rpartition(":")
        module = _module(source)
        function = getattr(module, name, None)
        if not callable(function):
            raise ValueError(f"{self.where}: there is no function {name!r} in {module.__name__}. Write its name.")
        made: Callable[[], Any] = function
        return made

    def subject(self, place: Place) -> Subject:  # noqa: ARG002
        """Call the function; it returns a Subject, or a model and a function from the model to a loss."""
        made = self.find()()
        if isinstance(made, tuple) and len(made) == 2:
            made = Subject(model=made[0], loss=made[1])
        if not isinstance(made, Subject) or not isinstance(made.model, nn.Module) or not callable(made.loss):
            raise ValueError(
                f"{self.where} must return laconic.plan.Subject(model=..., loss=...) or a pair of a module and a "
                f"function that takes the module and returns a loss, got {type(made).__name__}."
            )
        return made


@dataclass(frozen=True, kw_only=True)
class OfSize:
    """So many parameters in so many square layers, and a step of so many seconds: the layout is invented."""

    parameters: int
    step_seconds: float
    layers: int = 12

    def __post_init__(self) -> None:
        check_whole("params", self.parameters, 1, "Write --params 25_000_000.")
        check_number("step-seconds", self.step_seconds, 0.0, "Write --step-seconds 0.3.")
        check_whole("layers", self.layers, 1, "Write --layers 12.")

    @property
    def title(self) -> str:
        """What it is."""
        return f"{self.parameters:,} parameters in {self.layers} invented layers, {self.step_seconds:g} s a step"

    def subject(self, place: Place) -> None:
        """There is none."""

    def layout(self) -> Segments:
        """Return matrices, as square as they can be, and a bias each.

        >>> [(s.size, s.rows) for s in OfSize(parameters=1000, step_seconds=1.0, layers=2).layout()]
        [(462, 22), (38, 1), (462, 22), (38, 1)]
        """
        layers = min(self.layers, self.parameters)
        names, sizes, rows = list[str](), list[int](), list[int]()
        for layer in range(layers):
            whole = self.parameters // layers + (layer < self.parameters % layers)
            side = isqrt(whole)
            weight = max(1, (whole - side) // side) * side
            names.append(f"layer{layer}.weight")
            sizes.append(weight)
            rows.append(side)
            if whole > weight:
                names.append(f"layer{layer}.bias")
                sizes.append(whole - weight)
                rows.append(1)
        return Segments.of(names, sizes, rows)

    def parts(self) -> tuple[float, float]:
        """Return the seconds of forward and of backward; the rest is the optimizer's."""
        return _FORWARD * self.step_seconds, _BACKWARD * self.step_seconds


def in_buckets(model: Segments) -> tuple[Segments, ...]:
    """Deal parameters out to buckets as DDP does, from the model's end: 25 MB each, the first of 1 MB.

    >>> [len(b) for b in in_buckets(Segments.of(["a", "b", "c"], [9_000_000, 1, 300_000]))]
    [1, 2]
    """
    buckets: list[list[Any]] = [[]]
    for segment in reversed(model.items):
        most = FIRST_BUCKET_BYTES if len(buckets) == 1 else BUCKET_BYTES
        if buckets[-1] and 4 * sum(s.size for s in buckets[-1]) >= most:
            buckets.append([])
        buckets[-1].append(segment)
    return tuple(Segments.of([s.name for s in b], [s.size for s in b], [s.rows for s in b]) for b in buckets)


def _module(source: str) -> ModuleType:
    if not source.endswith(".py"):
        # As python -m has it: what lies in this folder can be named.
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name and source.startswith(error.name):
                raise ValueError(
                    f"there is no module {source!r}: {error}. Run from the folder it lies in, or name a file."
                ) from None
            raise
        finally:
            sys.path.pop(0)
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"there is no file {source}. Write path/train.py:function.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
