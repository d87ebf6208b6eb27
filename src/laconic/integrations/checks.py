"""What attach refuses, with what it got, what it wants and what to do, before any rank talks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Container

import torch
from torch.nn.parallel import DistributedDataParallel

from laconic import codecs
from laconic.arguments import check_choice
from laconic.coding import Codec
from laconic.errors import LaconicError
from laconic.exchanges.lettering import check_codec
from laconic.integrations.compiled import named_parameters
from laconic.layout import is_sharded
from laconic.method import Method

EXCHANGED_TWICE = (
    "gradients were exchanged twice without an optimizer step between, and each exchange is a step of the momentum "
    "that laconic applies. To accumulate, use model.no_sync() in all passes but the last."
)


def check_arguments(model: object, optimizer: object, method: object, scaler: object) -> None:
    """Refuse arguments of the wrong kind."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"attach wants a torch.nn.Module first, got {type(model).__name__}.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"attach wants a torch.optim.Optimizer second, got {type(optimizer).__name__}.")
    if not isinstance(method, Method):
        got = f"the function {getattr(method, '__name__', method)}" if callable(method) else repr(method)
        raise TypeError(
            f"attach wants a method third, got {got}. Write laconic.topk(0.01), or laconic.by_name('topk')."
        )
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}.")
    _check_flat(model)
    inner = [name for name, m in model.named_modules() if isinstance(m, DistributedDataParallel) and m is not model]
    if inner:
        raise ValueError(
            f"the model holds a DDP module ('{inner[0]}'), which exchanges gradients itself. Attach that."
        )


def check_parameters(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, *, every_trainable: bool, sharded: bool = False
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters to exchange by name, in the model's order, or refuse them.

    Those are the trainable ones (DDP reduces them all), or of a plain module those the optimizer holds. They may be
    ``sharded``, or not.
    """
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    known = {id(p) for p in module.parameters()}
    foreign = len(stepped - known)
    if foreign:
        raise ValueError(
            f"the optimizer holds {foreign} parameters that are not in the model; their gradients would never be "
            f"exchanged. Attach the module that holds all of them, or give them an optimizer of their own."
        )
    trainable = {name: p for name, p in named_parameters(module).items() if p.requires_grad}
    unstepped = [name for name, p in trainable.items() if id(p) not in stepped]
    if unstepped and every_trainable:
        warnings.warn(
            f"{len(unstepped)} trainable parameters (first: {unstepped[0]}) are not in this optimizer. DDP "
            f"exchanges them too, but an optimizer that is not attached will not skip a step laconic skips.",
            stacklevel=3,
        )
    chosen = trainable if every_trainable else {n: p for n, p in trainable.items() if id(p) in stepped}
    if not chosen:
        raise ValueError("the optimizer holds no trainable parameter of this model: nothing to exchange.")
    for name, p in chosen.items():
        _check_parameter(name, p, sharded=sharded)
    _check_sparse(module)
    devices = sorted({str(p.device) for p in chosen.values()})
    if len(devices) > 1:
        raise ValueError(f"the parameters lie on {', '.join(devices)}; laconic exchanges one device a rank.")
    return chosen


def check_buffers(module: torch.nn.Module) -> None:
    """Refuse buffers that cannot be broadcast into."""
    for name, t in module.named_buffers():
        if t.layout is not torch.strided or any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True)):
            raise ValueError(f"the buffer {name} is sparse or expanded. Register a dense, contiguous copy of it.")


def check_units(method: Method, optimizer: torch.optim.Optimizer) -> None:
    """Refuse or warn of memory in update units where the optimizer makes more of a gradient than rate times it."""
    # Drifts are in update units by themselves.
    if method.memory != "update" or method.local is not None:
        return
    groups = optimizer.param_groups
    if any("lr" not in group for group in groups):
        raise ValueError(
            "memory='update' needs the optimizer's learning rate ('lr' in its groups). Use 'gradient'."
        )
    # A method that owns momentum takes it out of SGD.
    moves = method.momentum == "method"
    if type(optimizer) is not torch.optim.SGD or (not moves and any(group["momentum"] for group in groups)):
        warnings.warn(
            "memory='update' is meant for SGD without momentum: what is owed is handed over divided by the present "
            "learning rate, and an optimizer that remembers gradients keeps that value when the rate rises again "
            "(restarts). Use memory='gradient' (sdagc(revision='none')), or a rate that never rises.",
            stacklevel=3,
        )


def check_local(
    module: torch.nn.Module,
    method: Method,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    measure_every: int,
) -> None:
    """Refuse what rounds of local steps cannot go with."""
    if method.local is None:
        return
    waits = [name for name, m in module.named_modules() if isinstance(m, torch.nn.SyncBatchNorm)]
    if waits:
        raise ValueError(
            f"'{waits[0]}' is a SyncBatchNorm, whose forward waits for all ranks, and with {method.name} each "
            f"steps by itself. Use BatchNorm: a sync averages its statistics (buffers='average' or 'recompute')."
        )
    if measure_every:
        raise ValueError(
            "measure_every looks at gradients of every step, and local steps exchange none. Leave it 0."
        )
    scaled = scaler is not None and scaler.is_enabled()
    if scaled and any(group.get("fused") for group in optimizer.param_groups):
        raise ValueError(
            "a fused optimizer undoes the loss scale inside its step, where local gradients can no longer be "
            "clipped. Use fused=False."
        )


def check_quorum(model: torch.nn.Module, method: Method) -> None:
    """Refuse what cannot be done by meetings at the ends of rounds alone."""
    local = method.local
    if local is None:
        raise ValueError(
            f"{method.name} exchanges in every step, and a worker that is lost would stop the others there. Use a "
            f"method of local steps, such as laconic.celgc(16), or restart from checkpoints (--elastic)."
        )
    if isinstance(model, DistributedDataParallel):
        raise ValueError("DDP has a group of its own, which ends with any of its ranks. Give the plain module.")
    talks = {
        "fragments or delay": local.fragments > 1 or local.delay > 0,
        "participants": local.participants is not None,
        "norm_by": local.norm_by != "local",
        "a correction (EPISODE)": local.correction != "none",
        "start": local.start != 0,
    }
    if any(talks.values()):
        raise ValueError(
            f"workers that come and go talk at the ends of rounds alone, and {method.name} has "
            f"{', '.join(what for what, has in talks.items() if has)}: it talks within a round, or counts on who "
            f"was there when it began. Use celgc, local_sgd, diloco, sparseloco or spartan without."
        )


def settling(method: Method, values: Codec | str | None) -> Codec | None:
    """Return the codec in which ranks settle what they owe at the end; None: nothing does, or it stays owed.

    Refuses methods of every step: what they owe are gradients, which only the optimizer could make a step of.
    """
    if values is None:
        return None
    if method.local is None and method.memory != "none":
        raise ValueError(
            f"settle={values!r} is for rounds of local steps, and {method.name} exchanges in every step. Use "
            f"rounds, of one step if need be, laconic.celgc(1, send=laconic.{method.name}(...)), or settle=None. "
            f"On the command line these are --method celgc:every=1:send={method.name} and --settle none."
        )
    if isinstance(values, str):
        check_choice("settle", values, tuple(codecs.WORDS))
    codec = codecs.by_name(values)
    check_codec(codec)
    return None if method.memory == "none" else codec


def _check_parameter(name: str, p: torch.nn.Parameter, *, sharded: bool) -> None:
    if is_sharded(p) and not sharded:
        raise TypeError(f"{name} is sharded (DTensor), which goes with laconic.attach on the module itself alone.")
    if p.is_complex():
        raise TypeError(f"{name} is complex ({p.dtype}). Hold real and imaginary parts as two real parameters.")
    if p.is_meta:
        raise ValueError(f"{name} lies on the meta device. Materialise the model before attach.")


def _check_flat(model: torch.nn.Module) -> None:
    """Refuse FSDP's first kind: ranks hold unlike parts of flat parameters that look like whole ones."""
    # To import it takes a second; where nobody has, no module is of its kind.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(m, fsdp.FullyShardedDataParallel) for m in model.modules()):
        raise TypeError(
            "the model is a FullyShardedDataParallel, whose ranks hold unlike parts of flat parameters. Use "
            "fully_shard (FSDP2) with a dimension of replicas."
        )


def _check_sparse(module: torch.nn.Module) -> None:
    for name, m in module.named_modules():
        if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag) and m.sparse and m.weight.requires_grad:
            raise TypeError(
                f"{name or type(m).__name__} makes sparse gradients (sparse=True), which have no fixed layout to "
                f"select from. Use sparse=False: laconic sends only what is worth sending anyway."
            )


def refuse_newcomers(optimizer: torch.optim.Optimizer, known: Container[int]) -> None:
    """Refuse parameters that came to the optimizer, or began to train, after attach: ``known`` has other ids."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and id(p) not in known:
                raise LaconicError(
                    f"a parameter of shape {tuple(p.shape)} has a gradient but was frozen or absent at "
                    f"attach: it would differ between ranks. Call link.detach() and attach again "
                    f"(under DDP: wrap the model anew first)."
                )
