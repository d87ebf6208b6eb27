"""What one of two ranks does in the exam of transformers.Trainer: short trainings, each told as plain numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import laconic
from frameworks.as_torchrun import logged, numbers, printed, refusal, weights
from laconic.integrations.transformers import attach

TOPK, ROUNDS = laconic.topk(0.01), laconic.celgc(5, send=laconic.topk(0.05))


def model() -> GPT2LMHeadModel:
    """Return a small one, made from a configuration, with dropout."""
    shape = {"vocab_size": 64, "n_positions": 24, "n_embd": 64, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))


def train(
    method: laconic.Method | None, folder: Path, *, resume: bool = False, seed: int = 0, **settings: Any
) -> dict[str, Any]:
    """Train for twelve steps, saving after six, or going on from what was saved there."""
    set_seed(seed)
    runs = [torch.arange(i, i + 24) % 64 for i in range(192)]
    data = [{"input_ids": run, "labels": run} for run in runs]
    settings = {"save_steps": 6, "save_strategy": "steps", "max_steps": 12, "max_grad_norm": 0} | settings
    args = TrainingArguments(
        **settings, output_dir=str(folder), use_cpu=True, per_device_train_batch_size=4, learning_rate=3e-3,
        report_to="none", disable_tqdm=True, logging_strategy="no", ddp_find_unused_parameters=False,
        per_device_eval_batch_size=32,
    )  # fmt: skip
    trainer = Trainer(model(), args, train_dataset=data, eval_dataset=data[:64])
    exchange = None if method is None else attach(trainer, method)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-6") if resume else None)
    return {"weights": weights(trainer.model)} | numbers(exchange and exchange.link)


def best_of(folder: Path) -> dict[str, Any]:
    """Train where the best model is that of the sixth step, whose loss is the largest."""
    settings = {"eval_strategy": "steps", "eval_steps": 6, "load_best_model_at_end": True}
    return train(ROUNDS, folder, metric_for_best_model="loss", greater_is_better=True, **settings)


def told_of(path: Path) -> list[float]:
    """Return one layer of a saved model as plain numbers."""
    return load_file(path / "model.safetensors")["transformer.wpe.weight"].flatten().tolist()


def exam(folder: Path) -> dict[str, Any]:
    """All trainings on this rank, by name."""
    mixed = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "bf16": True, "save_strategy": "no"}
    told = {
        "plain": train(None, folder / "plain", **mixed),
        "mixed": train(laconic.dense(), folder / "mixed", **mixed),
        "dense": train(laconic.dense(), folder / "dense", save_strategy="no"),
        "topk": train(TOPK, folder / "topk"),
        "topk resumed": train(TOPK, folder / "topk", resume=True, seed=7),
        "rounds": train(ROUNDS, folder / "rounds"),
        "rounds resumed": train(ROUNDS, folder / "rounds", resume=True, seed=7),
        "best": best_of(folder / "best"),
    }
    clipped = {"max_grad_norm": 1.0, "max_steps": 1, "save_strategy": "no"}
    told["clipped"] = logged(lambda: train(TOPK, folder / "clipped", **clipped))
    told["rounds clipped"] = logged(lambda: train(ROUNDS, folder / "clipped", **clipped))
    saved = folder / "rounds" / "checkpoint-6"
    told["saved"], told["best saved"] = told_of(saved), told_of(folder / "best" / "checkpoint-6")
    parts = [torch.load(saved / f"laconic_{rank}.pt", weights_only=True) for rank in (0, 1)]
    told["parts"] = [part["parameters"]["transformer.wpe.weight"].flatten().tolist() for part in parts]
    torch.distributed.barrier()
    # As if another run had been saved over it.
    if torch.distributed.get_rank() == 0:
        for rank in (0, 1):
            shutil.copy(folder / "best" / "checkpoint-6" / f"laconic_{rank}.pt", saved)
    torch.distributed.barrier()
    told["mixed up"] = refusal(lambda: train(ROUNDS, folder / "rounds", resume=True))
    return told | {"example": printed("with_transformers.py")}
