"""FSDP2 with replicas, of two shards on 4 ranks. Start with: torchrun --nproc-per-node 2 examples/fsdp.py."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import laconic


def main(steps: int = 300) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    shards = max(1, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("replicate", "shard"))

    torch.manual_seed(0)
    teacher = nn.Linear(64, 8)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    method = laconic.topk(0.01, warmup_steps=10)
    link = laconic.attach(model, optimizer, method, group=mesh["replicate"].get_group())

    torch.manual_seed(rank + 1)  # every rank sees data of its own
    for step in range(steps):
        x = torch.randn(32, 64)
        loss = nn.functional.mse_loss(model(x), teacher(x).detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}")

    if rank == 0:
        stats = link.stats
        print(
            f"{stats.wire_bytes:,} bytes sent by this rank, {stats.ratio:.1f}x fewer than sending its shard whole"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
