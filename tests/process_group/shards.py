"""A small model on two replicas of two shards each, and its loop, for the exams of sharded models."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import laconic
from models import Mlp, batch

REPLICAS, SHARDS = 2, 2


class Net(nn.Module):
    """Layers that do not fall into two equal shards, and a parameter of which one rank has nothing.

    That one is the root's: after an evaluation FSDP leaves it gathered.
    """

    def __init__(self, *, norms: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16) if norms else nn.Identity()
        self.mlp, self.gain = Mlp(width=47), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * self.mlp(self.norm(x))


@functools.cache
def mesh_of(replicas: int = REPLICAS, shards: int = SHARDS) -> DeviceMesh:
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


def net(*, norms: bool = False) -> Net:
    torch.manual_seed(1)
    return Net(norms=norms)


def sharded_net(mesh, *, norms=False, policy=None):
    model = net(norms=norms)
    for module in model.mlp.net:
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh["shard"], mp_policy=policy or MixedPrecisionPolicy())
    return fully_shard(model, mesh=mesh["shard"], mp_policy=policy or MixedPrecisionPolicy())


def optimizer_of(model, method, decay=0.0):
    if method.local is not None and method.local.optimizer_state == "average":
        return torch.optim.AdamW(model.parameters(), lr=0.005)
    momentum = 0.9 if method.momentum == "method" else 0.0
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, weight_decay=decay)


def sharded(method, *, norms=False, policy=None, decay=0.0, mesh=None, **settings):
    mesh = mesh or mesh_of()
    model = sharded_net(mesh, norms=norms, policy=policy)
    optimizer = optimizer_of(model, method, decay)
    link = laconic.attach(model, optimizer, method, group=mesh["replicate"].get_group(), **settings)
    return model, optimizer, link


def train(model, optimizer, steps, batches):
    for step in steps:
        x, y = batches(step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def of_this_rank(step):
    return batch(dist.get_rank(), step)


def of_this_replica(step):
    """The batches of both ranks that hold this replica's shards."""
    pairs = [batch(SHARDS * dist.get_rank() + i, step) for i in range(SHARDS)]
    return tuple(torch.cat(each) for each in zip(*pairs, strict=True))


def whole(model):
    return [p.full_tensor().detach().clone() for p in model.parameters()]


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
