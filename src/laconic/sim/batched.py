"""The losses and gradients of all ranks in one call, where a model allows it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

# Gradients that are computed at once, in entries; in the end those of all ranks are held.
_AT_ONCE = 1 << 26
# Batched sums are added up in another order; what differs by more of the largest entry is no rounding.
_TOLERANCE = 1e-3
# Gradients that are zero on paper (those of biases that softmax takes out again) are rounding and nothing else.
_ROUNDING = 1e-6


class Lossy(Protocol):
    """What has a loss, and perhaps remembers something from step to step."""

    model: nn.Module

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what steps have left behind."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


@dataclass(frozen=True, kw_only=True)
class Made:
    """A rank's loss, its gradients by name, and what the step has left behind."""

    loss: Tensor
    grads: Mapping[str, Tensor]
    state: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a step can be batched (an empty ``reason``), and what a rank's forward and backward take alone.

    ``alike``: with one set of parameters for all ranks.
    """

    reason: str
    alike: bool = False
    seconds: float = 0.0


class _LossOf(nn.Module):
    """A task's loss as a module, so that its parameters can be replaced wherever it reads them."""

    def __init__(self, work: Lossy) -> None:
        super().__init__()
        self.model, self._work = work.model, work

    def forward(self, batch: Any) -> Tensor:
        return self._work.loss(self.model, batch)


def batched(works: Sequence[Lossy], batches: Sequence[Any], *, alike: bool) -> list[Made]:
    """Return every rank's loss and gradients; ``alike`` says that all ranks have the same parameters.

    What the first rank's task remembers is used up: load what is returned.
    """
    host = works[0]
    given = [(batch, work.state_dict()) for work, batch in zip(works, batches, strict=True)]
    shapes = [filled(each, [(t.shape, t.dtype) for t in tensors_in(each)]) for each in given]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("batches of unlike sizes")
    rows = [torch.stack(column) for column in zip(*(tensors_in(each) for each in given), strict=True)]
    named = [dict(work.model.named_parameters()) for work in works]
    held = {name: p.detach() for name, p in named[0].items()}
    if not alike:
        held = {name: torch.stack([mine[name].detach() for mine in named]) for name in held}
    loss_of, left = _LossOf(host), list[Any]()

    def loss(parameters: dict[str, Tensor], tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        batch, state = filled(given[0], tensors)
        host.load_state_dict(state)
        value = functional_call(loss_of, {f"model.{name}": p for name, p in parameters.items()}, (batch,))
        left[:] = [host.state_dict()]
        return value, tensors_in(left[0])

    entries = sum(p.numel() for p in named[0].values())
    call = vmap(
        grad_and_value(loss, has_aux=True),
        in_dims=(None if alike else 0, 0),
        chunk_size=max(1, min(len(works), _AT_ONCE // max(1, entries))),
    )
    with _batchable():
        grads, (losses, states) = call(held, rows)
    return [
        Made(
            loss=losses[rank],
            grads={name: grad[rank] for name, grad in grads.items()},
            state=filled(left[0], [tensor[rank] for tensor in states]),
        )
        for rank in range(len(works))
    ]


def tried(works: Sequence[Lossy], batches: Sequence[Any], *, alike: bool) -> Verdict:
    """Say whether steps can be batched, by doing so once and comparing with what the last rank gets alone."""
    if any(True for _ in works[0].model.buffers()):
        return Verdict(reason="the model has buffers")
    made, why = None, ""
    # Some layers want parameters with a row a rank, even if these are equal.
    for one_set in (True, False) if alike else (False,):
        state = works[0].state_dict()
        try:
            made = batched(works, batches, alike=one_set)[-1]
            break
        # Whatever it is that cannot be batched: the message is told.
        except Exception as error:
            why = str(error).splitlines()[0]
        finally:
            works[0].load_state_dict(state)
    if made is None:
        return Verdict(reason=f"it cannot be batched: {why}")
    alone, seconds = _alone(works[-1], batches[-1])
    unlike = _unlike(alone, made)
    if unlike:
        return Verdict(reason=f"batched gradients are not those that a rank gets alone: {unlike} differs")
    return Verdict(reason="", alike=one_set, seconds=seconds)


def _unlike(one: Made, other: Made) -> str:
    """Name what is not the same but for rounding, each measured by its own largest entry; empty: nothing."""
    rounding = _ROUNDING * max(_most(grad) for grad in one.grads.values())
    pairs = {"the loss": (one.loss, other.loss)}
    pairs |= {f"that of {name}": (grad, other.grads[name]) for name, grad in one.grads.items()}
    for name, (mine, theirs) in pairs.items():
        # What is no number is not within anything.
        if not _most(mine - theirs) <= _TOLERANCE * _most(mine) + rounding:
            return name
    return ""


def _most(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _alone(work: Lossy, batch: Any) -> tuple[Made, float]:
    """Return what a rank gets by itself, and the least that it took of a few times; nothing is left behind."""
    state, seconds, loss_of = work.state_dict(), [], _LossOf(work)
    # Others: whoever hears of the model's own gradients would take these for a step's.
    held = {name: p.detach().requires_grad_() for name, p in work.model.named_parameters()}
    for _ in range(3):
        began = time.perf_counter()
        loss = functional_call(loss_of, {f"model.{name}": p for name, p in held.items()}, (batch,))
        grads = torch.autograd.grad(loss, list(held.values()), materialize_grads=True)
        seconds.append(time.perf_counter() - began)
        work.load_state_dict(state)
    return Made(loss=loss.detach(), grads=dict(zip(held, grads, strict=True)), state=state), min(seconds)


class _Hand(torch.autograd.Function):
    """Hands a gradient out that is there already, when backward comes by."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, parameter: Tensor, grad: Tensor) -> Tensor:  # noqa: ARG004
        ctx.grad = grad
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Tensor, Tensor, None]:
        return above[0], ctx.grad * above[0], None


def handed_out(made: Made, parameters: Mapping[str, nn.Parameter], order: Sequence[str]) -> Tensor:
    """Return the loss; backward gives the parameters their gradients in an order."""
    loss = made.loss
    for name in reversed(order):
        loss = _Hand.apply(loss, parameters[name], made.grads[name])  # type: ignore[no-untyped-call]
    return loss


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in dataclasses, dictionaries and sequences."""
    return [part for part in parts_in(tree) if isinstance(part, Tensor)]


def parts_in(tree: Any) -> Iterator[Any]:
    """Yield what is in dataclasses, dictionaries and sequences, tensors and all else."""
    if is_dataclass(tree) and not isinstance(tree, type):
        tree = [getattr(tree, f.name) for f in fields(tree)]
    elif isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from parts_in(part)
    else:
        yield tree


def filled(tree: Any, values: Sequence[Any]) -> Any:
    """Return the same with other values in the places of the tensors."""
    left = iter(values)

    def fill(part: Any) -> Any:
        if isinstance(part, Tensor):
            return next(left)
        if is_dataclass(part) and not isinstance(part, type):
            return type(part)(**{f.name: fill(getattr(part, f.name)) for f in fields(part)})
        if isinstance(part, Mapping):
            return {key: fill(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            return type(part)(fill(each) for each in part)
        return part

    return fill(tree)


@contextmanager
def _batchable() -> Iterator[None]:
    """Have torch choose kernels that can be batched: others would be called rank by rank."""
    with warnings.catch_warnings():
        # Of what is slow nevertheless, and of TF32 on devices that are not there.
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield
