"""TopK-SGD under DistributedDataParallel. Start with: torchrun --nproc-per-node 2 examples/ddp.py."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic


def main(steps: int = 300) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()

    torch.manual_seed(0)
    teacher = nn.Linear(64, 8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    link = laconic.attach(model, optimizer, laconic.topk(0.01, warmup_steps=10))

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
        print(f"{stats.wire_bytes:,} bytes sent by this rank, {stats.ratio:.1f}x fewer than plain DDP")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
