"""A plain module and loop, saved and resumed. Start with: torchrun --nproc-per-node 2 examples/plain_loop.py."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import laconic


def build() -> tuple[nn.Module, torch.optim.Optimizer, laconic.Link]:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # No DDP: attach gives every rank the first rank's weights and exchanges when the optimizer steps.
    return model, optimizer, laconic.attach(model, optimizer, laconic.topk_sgd(0.01))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    for step in steps:
        torch.manual_seed(1000 * dist.get_rank() + step)
        x = torch.randn(32, 64)
        loss = nn.functional.mse_loss(model(x), x[:, :8])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, optimizer, link = build()
    train(model, optimizer, range(30))

    # What is owed belongs to a rank: every rank saves its own.
    path = Path(tempfile.gettempdir()) / f"laconic-example-rank{dist.get_rank()}.pt"
    torch.save([part.state_dict() for part in (model, optimizer, link)], path)
    straight = train(model, optimizer, range(30, 60))
    link.detach()

    model, optimizer, link = build()
    for part, state in zip((model, optimizer, link), torch.load(path, weights_only=True), strict=True):
        part.load_state_dict(state)
    resumed = train(model, optimizer, range(30, 60))
    path.unlink()
    if dist.get_rank() == 0:
        print(f"loss {straight!r} without a stop, {resumed!r} resumed; {link.stats.ratio:.1f}x fewer bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
