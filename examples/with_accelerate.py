"""Accelerate's own program and ours. Start with: torchrun --nproc-per-node 2 examples/with_accelerate.py."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laconic.integrations.accelerate  # ours


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    x = torch.randn(4096, 64)
    y = nn.Linear(64, 8)(x).detach()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    link = laconic.integrations.accelerate.attach(accelerator, model, optimizer, laconic.topk(0.01))  # ours

    for epoch in range(3):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

    stats = link.stats
    accelerator.print(f"{stats.wire_bytes:,} bytes sent by this rank, {stats.ratio:.1f}x fewer than plain DDP")
    accelerator.end_training()


if __name__ == "__main__":
    main()
