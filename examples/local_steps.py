"""CELGC on ranks with unlike batches. Start with: torchrun --nproc-per-node 2 examples/local_steps.py."""

import torch
import torch.distributed as dist
from torch import nn

import laconic


def main(batches: int = 320) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()

    torch.manual_seed(0)
    teacher = nn.Linear(64, 8)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x_test = torch.randn(256, 64)

    def test_loss() -> float:
        with torch.no_grad():
            return nn.functional.mse_loss(model(x_test), teacher(x_test)).item()

    torch.manual_seed(rank + 1)  # every rank sees data of its own, the second one less of it
    with laconic.attach(model, optimizer, laconic.celgc(every=16, clip=0.1)) as link:
        for batch in range(batches - 50 * rank):
            x = torch.randn(32, 64)
            nn.functional.mse_loss(model(x), teacher(x).detach()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if batch in (9, 199):
                with link.averaged():  # within a round each rank has a model of its own
                    loss = test_loss()
                if rank == 0:
                    print(f"batch {batch + 1}: loss {loss:.4f}")

    # Here all ranks have one model: leaving the block has completed the last round.
    print(f"rank {rank}: {link.stats.steps} steps, {link.stats.syncs} syncs, loss {test_loss():.6f}")
    if rank == 0:
        stats = link.stats
        print(f"{stats.ratio:.1f}x fewer bytes than plain DDP, {stats.clipped_share:.0%} of steps clipped")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
