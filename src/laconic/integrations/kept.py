"""What each rank keeps beside the checkpoint of a framework, which is one rank's alone, and how a link goes on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from laconic.integrations.link import Link
from laconic.integrations.saved import models_of
from laconic.resharding import resharded


def part_of(link: Link, module: torch.nn.Module) -> dict[str, Any]:
    """Return what this rank alone has: the link's state, and where ranks take local steps all that they differ in.

    With methods of every step models, optimizers and scalers are equal on all ranks, and any rank's will do.
    """
    part: dict[str, Any] = {"ranks": link.transport.world_size, "link": link.state_dict()}
    if link.rounds is not None:
        part["parameters"] = {name: p.detach() for name, p in link.parameters.items()}
        part["buffers"] = dict(module.named_buffers())
        part["optimizer"] = link.optimizer.state_dict()
        part["scaler"] = None if link.scaler is None else link.scaler.state_dict()
    return part


def gathered(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of all ranks on the first one, on the CPU, and nothing on the others; all must call this."""
    first = dist.get_rank() == 0
    files: list[bytes] = [b""] * dist.get_world_size()
    # As files: a tensor that was pickled on a GPU would come back on that GPU.
    dist.gather_object(_file_of(part), files if first else None)
    return [_read(file) for file in files] if first else []


def go_on(link: Link, module: torch.nn.Module, parts: Sequence[dict[str, Any]]) -> None:
    """Go on from the parts of all ranks that saved, on as many ranks to the same bits, or on another number."""
    rank, ranks = link.transport.rank, link.transport.world_size
    if len(parts) == ranks:
        take_over(link, module, parts[rank])
        return
    models = models_of(parts)
    link.load_state_dict(resharded([part["link"] for part in parts], ranks=ranks, models=models)[rank])


def take_over(link: Link, module: torch.nn.Module, part: dict[str, Any]) -> None:
    """Stand where the rank stood that this part is of."""
    link.load_state_dict(part["link"])
    if link.rounds is None:
        return
    buffers = dict(module.named_buffers())
    with torch.no_grad():
        for name, value in part["parameters"].items():
            link.parameters[name].copy_(value)
        for name, value in part["buffers"].items():
            buffers[name].copy_(value)
    link.optimizer.load_state_dict(part["optimizer"])
    if link.scaler is not None:
        link.scaler.load_state_dict(part["scaler"])


class Agreement:
    """``link.averaged()`` for a loop that says when it begins to evaluate or save, and when it has done."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.entered = False

    def enter(self, link: Link) -> None:
        """Have the model that all ranks agree on, until ``leave``; every rank must call it. Once is enough."""
        if link.rounds is None or not link.attached or self.entered:
            return
        # What is made for it is used in later steps, which a loop's inference mode would forbid.
        with torch.inference_mode(False):
            self._stack.enter_context(link.averaged())
        self.entered = True

    def leave(self) -> None:
        """Have each rank's own model again."""
        with torch.inference_mode(False):
            self._stack.close()
        self.entered = False


def _file_of(part: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(part, file)
    return file.getvalue()


def _read(file: bytes) -> dict[str, Any]:
    part: dict[str, Any] = torch.load(io.BytesIO(file), weights_only=True, map_location="cpu")
    return part
