"""What one of two ranks does in Accelerate's exam: short trainings, each told as plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import set_seed
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laconic
from frameworks.as_torchrun import numbers, printed, refusal, weights
from laconic.integrations.accelerate import attach

SDAGC, ROUNDS = laconic.sdagc(warmup_steps=0), laconic.spartan(every=5)


def accelerated(**settings: Any) -> Accelerator:
    """Return an Accelerator as the first of a process."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, **settings)


def train(
    method: laconic.Method | None, *, save: Path | None = None, load: Path | None = None, seed: int = 0,
    clip: float | None = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train for twelve batches, saving after six, or loading what was saved there and going on."""
    accelerator = accelerated(**settings)
    set_seed(seed)
    model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(192, 32, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x[:, :8].clone()), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    link = None if method is None else attach(accelerator, model, optimizer, method)
    if load is not None:
        accelerator.load_state(load)
    for index, (inputs, targets) in enumerate(loader):
        if load is not None and index < 6:
            continue
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        if save is not None and index == 5:
            accelerator.save_state(save)
    if link is not None:
        link.finish()
        link.detach()
    return {"weights": weights(model)} | numbers(link)


def exam(folder: Path) -> dict[str, Any]:
    """All trainings on this rank, by name."""
    mixed = {"clip": 0.5, "gradient_accumulation_steps": 2, "mixed_precision": "bf16"}
    bare = nn.Linear(2, 2)
    told = {
        "plain": train(None, **mixed),
        "mixed": train(laconic.dense(), **mixed),
        "dense": train(laconic.dense()),
        "sdagc": train(SDAGC, save=folder / "sdagc"),
        "sdagc resumed": train(SDAGC, load=folder / "sdagc", seed=7),
        "rounds": train(ROUNDS, save=folder / "rounds"),
        "rounds resumed": train(ROUNDS, load=folder / "rounds", seed=7),
        "accumulated": train(SDAGC, gradient_accumulation_steps=3),
        "unprepared": refusal(
            lambda: attach(accelerated(), bare, torch.optim.SGD(bare.parameters(), lr=0.1), SDAGC)
        ),
    }
    rounds = folder / "rounds"
    told["saved"] = load_file(rounds / "model.safetensors")["0.weight"].flatten().tolist()
    parts = torch.load(rounds / "custom_checkpoint_0.pkl", weights_only=True)["parts"]
    told["parts"] = [part["parameters"]["0.weight"].flatten().tolist() for part in parts]
    # The last: it takes leave of the group.
    return told | {"example": printed("with_accelerate.py")}
