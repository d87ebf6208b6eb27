"""torch.compile: a compiled module is another module around it, and its parameters have longer names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

P = ParamSpec("P")
T = TypeVar("T")
# What torch.compile calls the module that it was given, as part of the names of everything in it.
_WITHIN = "_orig_mod"


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that was given to torch.compile; one that is not compiled as it is.

    uncompiled(torch.compile(model)) is model
    """
    return module.get_submodule(_WITHIN) if _is_compiled(module) else module


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a module's parameters by the names that they have where neither it nor a part of it is compiled."""
    around = _compiled_parts(module)
    return {_short(name, around): p for name, p in module.named_parameters()}


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, those too that a module does not save, by such names."""
    around = _compiled_parts(module)
    return {**named_parameters(module), **{_short(name, around): b for name, b in module.named_buffers()}}


def left_alone(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function as one that the compiler does not look into: it runs as it is written."""
    return cast("Callable[P, T]", torch.compiler.disable(function))


def check_reducer(ddp: DistributedDataParallel) -> None:
    """Refuse DDP as it is made for compiled autograd: its hooks are handed other things, in a compiled backward."""
    # DDP asks the compiler's settings when it is made, and keeps the answer here.
    if vars(ddp).get("_use_python_reducer", False):
        raise ValueError(
            "this DDP module was made with torch._dynamo.config.optimize_ddp = 'python_reducer', which has no "
            "buckets: its hook is called while backward is compiled. Attach the plain module, without DDP, which "
            "compiled autograd goes with; or leave optimize_ddp at True, and compiled autograd out."
        )


def _is_compiled(module: nn.Module) -> bool:
    # To import it takes seconds; where nobody has, nothing was compiled.
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _compiled_parts(module: nn.Module) -> set[str]:
    return {name for name, m in module.named_modules(remove_duplicate=False) if _is_compiled(m)}


def _short(name: str, around: set[str]) -> str:
    """Leave out the steps of a name that lead from a compiled module to the one within it."""
    steps = name.split(".")
    kept = [s for i, s in enumerate(steps) if s != _WITHIN or ".".join(steps[:i]) not in around]
    return ".".join(kept)
