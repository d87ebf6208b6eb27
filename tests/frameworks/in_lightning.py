"""What one of two ranks does in Lightning's exam: short trainings, each told as plain numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laconic
from frameworks.as_torchrun import logged, numbers, printed, refusal, weights
from laconic.integrations.lightning import Laconic

TOPK, ROUNDS = laconic.topk(0.01), laconic.celgc(5, send=laconic.topk(0.05))


class Module(pl.LightningModule):
    """A regression whose weights begin unlike for unlike seeds."""

    def __init__(self, seed: int = 0, loud: int = 1) -> None:
        super().__init__()
        self.loud = loud
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 8), nn.BatchNorm1d(8))
        self.validated: list[float] = []
        self.saves_at: Path | None = None

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        # Where ranks are unlike loud, their scalers find unlike scales.
        return nn.functional.mse_loss(self.net(batch[0]), batch[1]) * self.loud**self.global_rank

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.validated.append(float(self.net[0].weight.double().sum()))
        if self.saves_at is not None:
            self.trainer.save_checkpoint(self.saves_at)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Manual(Module):
    """The same with the loop in the user's hands, and so many optimizers; with 0 one that wants a closure."""

    def __init__(self, optimizers: int) -> None:
        super().__init__()
        self.automatic_optimization, self.wanted = False, optimizers

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()

    def configure_optimizers(self) -> Any:
        if self.wanted == 0:
            return torch.optim.LBFGS(self.parameters())
        layers = [self.net[0], self.net[2:]] if self.wanted == 2 else [self.net]
        return [torch.optim.SGD(layer.parameters(), lr=0.05) for layer in layers]


def loader(*, poisoned: bool = False) -> DataLoader[Any]:
    """Six batches of eight for each of two ranks."""
    made = torch.Generator().manual_seed(1)
    x = torch.randn(96, 32, generator=made)
    y = x[:, :8].clone()
    if poisoned:
        y[5] = float("nan")
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)


def fit(
    method: laconic.Method | None, folder: Path, *, module: Module | None = None, poisoned: bool = False,
    ckpt_path: Path | None = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train for two epochs; every epoch ends with a validation and a checkpoint."""
    pl.seed_everything(0, verbose=False)
    module = module or Module()
    exchange = [] if method is None else [Laconic(method)]
    saves = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
    settings = {
        "strategy": "ddp",
        "devices": 2,
        "max_epochs": 2,
        "num_sanity_val_steps": 0,
        "callbacks": [*exchange, saves],
    } | settings
    trainer = pl.Trainer(
        **settings, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(module, loader(poisoned=poisoned), loader(), ckpt_path=ckpt_path, weights_only=True)
    told = {"weights": weights(module), "validated": module.validated}
    told["buffers"] = [buffer.tolist() for buffer in module.buffers()]
    return told | numbers(exchange[0].link if exchange else None)


def resumed(name: str, method: laconic.Method, folder: Path, **settings: Any) -> dict[str, Any]:
    """Go on from the checkpoint after the first epoch, with a module that began elsewhere."""
    path = folder / name / "epoch=0.ckpt"
    return fit(method, folder / f"{name}-on", ckpt_path=path, **{"module": Module(7)} | settings)


def scaled(**settings: Any) -> list[Any]:
    """Return the plugin of half precision on a CPU, at a scale that is too large at first."""
    return [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**20, **settings))]


def saving_while_validating(folder: Path) -> None:
    module = Module()
    module.saves_at = folder / "too-early.ckpt"
    fit(ROUNDS, folder / "early", module=module)


def without_memory(folder: Path) -> dict[str, Any]:
    """Go on from a checkpoint out of which laconic's part was taken."""
    path = folder / f"bare-{os.environ['RANK']}.ckpt"
    checkpoint = torch.load(folder / "topk" / "epoch=0.ckpt", weights_only=True)
    del checkpoint["laconic"]
    torch.save(checkpoint, path)
    return fit(TOPK, folder / "bare", module=Module(7), ckpt_path=path)


def exam(folder: Path) -> dict[str, Any]:
    """All trainings on this rank, by name."""
    mixed = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "precision": "bf16-mixed"}
    told = {
        "plain": fit(None, folder / "plain", **mixed),
        "mixed": fit(laconic.dense(), folder / "mixed", **mixed),
        "dense": fit(laconic.dense(), folder / "dense", num_sanity_val_steps=2),
        "topk": fit(TOPK, folder / "topk"),
        "topk resumed": resumed("topk", TOPK, folder),
        "topk without memory": without_memory(folder),
        "rounds": fit(ROUNDS, folder / "rounds"),
        "rounds resumed": resumed("rounds", ROUNDS, folder),
        "poisoned": fit(TOPK, folder / "poisoned", poisoned=True),
        "scaled": fit(TOPK, folder / "scaled", plugins=scaled()),
        "scaled rounds": fit(ROUNDS, folder / "scaled-rounds", module=Module(loud=64), plugins=scaled()),
        "scaled rounds resumed": resumed(
            "scaled-rounds", ROUNDS, folder, module=Module(7, loud=64), plugins=scaled()
        ),
        "manual": fit(TOPK, folder / "manual", module=Manual(1)),
        "two optimizers": refusal(lambda: fit(TOPK, folder / "two", module=Manual(2))),
        "closures": refusal(lambda: fit(TOPK, folder / "closures", module=Manual(0))),
        "saved while validating": refusal(lambda: saving_while_validating(folder)),
    }
    told["logged"] = logged(lambda: without_memory(folder))
    told["example"] = printed("with_lightning.py")
    saved = torch.load(folder / "rounds" / "epoch=0.ckpt", weights_only=True)
    told["saved"] = saved["state_dict"]["net.0.weight"].flatten().tolist()
    told["parts"] = [part["parameters"]["net.0.weight"].flatten().tolist() for part in saved["laconic"]]
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"):
        del os.environ[name]
    alone = {"strategy": "auto", "devices": 1}
    return told | {"alone": refusal(lambda: fit(TOPK, folder / "alone", **alone))}
