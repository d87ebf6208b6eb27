"""Lightning's own program and ours. Start with: torchrun --nproc-per-node 2 examples/with_lightning.py."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laconic.integrations.lightning  # ours


class Student(pl.LightningModule):
    """Learns what a linear map makes of random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        if self.global_rank == 0 and index == 63:
            print(f"epoch {self.current_epoch + 1}: loss {loss:.4f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return what steps."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    x = torch.randn(4096, 64)
    y = nn.Linear(64, 8)(x).detach()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

    exchange = laconic.integrations.lightning.Laconic(laconic.topk(0.01))  # ours
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[exchange],  # ours
    )
    trainer.fit(Student(), loader)

    if trainer.is_global_zero:
        stats = exchange.link.stats
        print(f"{stats.wire_bytes:,} bytes sent by this rank, {stats.ratio:.1f}x fewer than plain DDP")


if __name__ == "__main__":
    main()
