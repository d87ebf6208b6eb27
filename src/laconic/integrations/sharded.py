"""A model whose parameters are sharded over ranks (FSDP2), with replicas of it on other ranks.

The ranks of a replica hold a shard each: FSDP gathers parameters and adds up gradients among them, densely, over
fast links. A shard has the same place in every replica, and the ranks that hold it exchange as those of a plain
module do. What one shard alone would not see, its replica agrees on: whether a gradient is finite, how long it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.integrations.surface import Surface
from laconic.layout import here, is_sharded
from laconic.local import Every, Growing
from laconic.method import Method
from laconic.rounds.gradients import norm_of

_HOW = """Write
    mesh = init_device_mesh(device_type, (replicas, shards), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    link = laconic.attach(model, optimizer, method, group=mesh["replicate"].get_group())"""


class Shards:
    """The ranks that together hold one replica of a model: its holding, where it is in shards."""

    def __init__(self, model: torch.nn.Module, group: dist.ProcessGroup) -> None:
        self._model, self._group = model, group

    def __str__(self) -> str:
        return f"shard {dist.get_rank(self._group)} of {dist.get_world_size(self._group)}"

    def whole(self, norms: Tensor) -> Tensor:
        """Return the norms of whole parameters, given those of this rank's shards."""
        return self.sum_(norms.double().square()).sqrt().to(norms.dtype)

    def sum_(self, values: Tensor) -> Tensor:
        """Return the values added up over the ranks of the replica, where they were."""
        dist.all_reduce(values, group=self._group)
        return values

    @torch.no_grad()
    def poison_together_(self, parts: list[Tensor], device: torch.device) -> None:
        """Leave the parts as they are, or all of them NaN where the norm of any shard's is not finite."""
        if self.sum_((~norm_of(parts, device).isfinite()).float()).item():
            for part in parts:
                part.fill_(nan)

    def wrote(self) -> None:
        """Have the next forward pass gather parameters anew: an evaluation may have left them gathered."""
        put_back(self._model)


def put_back(model: torch.nn.Module) -> None:
    """Have a sharded model's own parameters be its shards; after an evaluation some are gathered ones still."""
    # To import it takes a second; where nobody has, no module is of its kind.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()


class ShardedSurface:
    """Meets a sharded model as another surface meets a plain one; what is poisoned is so on all shards."""

    def __init__(self, inner: Surface, shards: Shards, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._inner, self._shards = inner, shards
        self._parameters = list(parameters.values())
        self._device = here(self._parameters[0]).device

    def install(self) -> None:
        """Begin to exchange."""
        self._inner.install()

    def remove(self) -> None:
        """Leave the module as it was found."""
        self._inner.remove()

    def before_look(self) -> None:
        """Never called: with sharded parameters there is no GradScaler."""
        self._inner.before_look()

    def before_step(self) -> bool:
        """Exchange shards of gradients, or count a local step; return whether the optimizer may step."""
        grads = [here(p.grad) for p in self._parameters if p.grad is not None]
        self._shards.poison_together_(grads, self._device)
        return self._inner.before_step()

    def after_step(self) -> None:
        """The optimizer has stepped."""
        self._inner.after_step()

    def after_attempt(self) -> None:
        """The attempt is over."""
        self._inner.after_attempt()

    def after_update(self) -> None:
        """The loop is done with this step."""
        self._inner.after_update()


def shards_of(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    method: Method,
    group: dist.ProcessGroup | None,
    scaler: torch.amp.GradScaler | None,
) -> Shards | None:
    """Return with whom this rank holds a replica, None where parameters are whole; refuse what cannot be done."""
    sharded = {name: p for name, p in parameters.items() if is_sharded(p)}
    if not sharded:
        return None
    whole = [name for name in parameters if name not in sharded]
    if whole:
        raise ValueError(
            f"{whole[0]} is whole and {next(iter(sharded))} is sharded. Shard all that trains: fully_shard the "
            f"root module, without ignored_params."
        )
    among = _shard_group(sharded)
    _check_group(group, among)
    if scaler is not None:
        raise ValueError(
            "with sharded parameters laconic takes no GradScaler. Train in bfloat16, which needs none: "
            "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))."
        )
    _check_rounds(method)
    return Shards(model, among)


def _shard_group(sharded: Mapping[str, torch.nn.Parameter]) -> dist.ProcessGroup:
    meshes: dict[Any, str] = {p.device_mesh: name for name, p in sharded.items()}  # type: ignore[attr-defined]
    mesh, name = next(iter(meshes.items()))
    if len(meshes) > 1:
        raise ValueError(
            f"{' and '.join(meshes.values())} are sharded over unlike meshes. Give fully_shard one for all of them."
        )
    if any(placement.is_replicate() for placement in sharded[name].placements):  # type: ignore[attr-defined]
        raise ValueError(
            f"fully_shard was given the mesh of replicas too, and averages gradients over them itself, densely, "
            f"before anybody can compress them. Give it the dimension of shards alone. {_HOW}"
        )
    if mesh.ndim != 1:
        raise ValueError(
            f"{name} is sharded over a mesh of {mesh.ndim} dimensions. laconic works beside fully_shard over one; "
            f"tensor parallelism is not supported. {_HOW}"
        )
    group: dist.ProcessGroup = mesh.get_group()
    return group


def _check_group(group: dist.ProcessGroup | None, among: dist.ProcessGroup) -> None:
    """Refuse a group that is not one of ranks that hold the same shard."""
    if group is None:
        raise ValueError(
            f"this model is sharded and has no replicas: every rank holds another part of it, and there is nobody "
            f"to exchange that part with. With a dimension of replicas there is. {_HOW}"
        )
    both = set(dist.get_process_group_ranks(group)) & set(dist.get_process_group_ranks(among))
    if both != {dist.get_rank()}:
        raise ValueError(
            f"ranks {sorted(both)} of the group to exchange in hold unlike shards of one replica. Exchange among "
            f"those that hold the same shard. {_HOW}"
        )


def _check_rounds(method: Method) -> None:
    """Refuse rounds that end at unlike steps on the shards of a replica."""
    local = method.local
    if local is None:
        return
    if not isinstance(local.period, Every | Growing):
        raise ValueError(
            f"a period of the kind {local.period.name!r} follows what a rank sees of the training, and shards of "
            f"one model would end their rounds at unlike steps. Use a fixed or a growing one."
        )
    if local.fragments > 1 or local.delay:
        raise ValueError("fragments and delay are not done for sharded parameters. Use fragments=1 and delay=0.")
