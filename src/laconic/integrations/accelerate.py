"""Accelerate: ``attach`` for what ``accelerator.prepare`` has returned."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch.nn.parallel import DistributedDataParallel

from laconic.integrations.attach import attach as attach_link
from laconic.integrations.kept import gathered, go_on, part_of
from laconic.integrations.link import Link
from laconic.method import Method


def attach(
    accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer, method: Method
) -> Link:
    """Exchange the prepared model's gradients by ``method`` from now on; the training loop stays as it is.

    Call it on every rank after ``prepare`` and before ``load_state``. ``save_state`` then writes every rank's
    memory, gathered by the main process, and after ``load_state`` training goes on to the same bits. With local
    steps it also writes each rank's model and optimizer, and as the model itself the mean of all: call it outside
    of ``link.averaged()``. ``accumulate`` and mixed precision are Accelerate's own.

    ``accelerator.clip_grad_norm_`` clips the mean that was exchanged, and what it cuts off after a sparse exchange
    is lost; with local steps it clips each rank's own gradient. ``LocalClip`` in the method loses nothing.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        link = attach(accelerator, model, optimizer, laconic.topk(0.01))
    """
    link = link_under(accelerator, model, optimizer, method)
    kept = _Kept(accelerator, model, link)
    accelerator.register_for_checkpointing(kept)
    accelerator.register_save_state_pre_hook(kept.agree)
    return link


def link_under(
    accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer, method: Method
) -> Link:
    """Attach a prepared model, with Accelerate's own optimizer and scaler; or refuse it."""
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"laconic works under DDP, and with distributed_type {accelerator.distributed_type.value} the model is "
            f"a {type(model).__name__}. Pass what accelerator.prepare(model) returned, under torchrun or "
            f"'accelerate launch' with several processes; sharded models are for a loop of your own (docs/fsdp.md)."
        )
    inner = optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
    return attach_link(model, inner, method, scaler=accelerator.scaler)


class _Kept:
    """What Accelerate calls when it saves and loads: on every rank, though the main process alone writes."""

    def __init__(self, accelerator: Accelerator, model: torch.nn.Module, link: Link) -> None:
        self._accelerator, self._model, self._link = accelerator, model, link
        self._module = cast("torch.nn.Module", model.module)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": gathered(part_of(self._link, self._module))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on; Accelerate has loaded model, optimizer and scaler before."""
        go_on(self._link, self._module, state["parts"])

    def agree(self, models: list[torch.nn.Module], weights: list[dict[str, Any]], folder: str) -> None:  # noqa: ARG002
        """Leave the model that all ranks agree on in the weights to be saved, in the place of one rank's."""
        if self._link.rounds is None or not self._link.attached or not weights:
            return
        # Accelerate remembers a model as it was given, without DDP.
        index = next(i for i, model in enumerate(models) if model in (self._model, self._module))
        with self._link.averaged():
            weights[index] = copy.deepcopy(self._accelerator.get_state_dict(models[index], unwrap=False))
