"""Lightning with laconic, on two ranks over gloo: the same trainings with and without a stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import laconic
from as_torchrun import on_two_ranks, printed, refusal, weights

pytest.importorskip("lightning", reason="Lightning is an extra")

TOPK, ROUNDS = laconic.topk(0.01), laconic.celgc(4, send=laconic.topk(0.05))


def _fit(method: laconic.Method | None, folder: Path, *, seed: int = 0, ckpt_path: Any = None, **kwargs: Any) -> Any:
    """Train for two epochs of six batches; return the module and what exchanged."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from lightning_module import Module, loader
    from laconic.integrations.lightning import Laconic

    exchange = [] if method is None else [Laconic(method)]
    saves = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
    module, data = kwargs.pop("module", None) or Module(seed), kwargs.pop("data", None) or loader()
    trainer = pl.Trainer(
        **{"strategy": "ddp", "devices": 2, "max_epochs": 2} | kwargs, accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[*exchange, saves],
    )  # fmt: skip
    trainer.fit(module, data, None if kwargs.get("max_epochs") else loader(), ckpt_path=ckpt_path)
    return module, exchange[0].link if exchange else None
