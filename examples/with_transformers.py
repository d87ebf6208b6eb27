"""A Trainer's own program and ours. Start with: torchrun --nproc-per-node 2 examples/with_transformers.py."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import laconic.integrations.transformers  # ours


def sentences(number: int = 512) -> list[dict[str, torch.Tensor]]:
    """Return runs of numbers that go up by one, modulo 64."""
    runs = [torch.arange(i, i + 24) % 64 for i in range(number)]
    return [{"input_ids": run, "labels": run} for run in runs]


def main() -> None:
    torch.set_num_threads(1)
    set_seed(0)
    shape = GPT2Config(
        vocab_size=64, n_positions=24, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    args = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        use_cpu=True,
        ddp_find_unused_parameters=False,
        per_device_train_batch_size=8,
        num_train_epochs=3,
        learning_rate=3e-3,
        max_grad_norm=0,
        logging_steps=32,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(GPT2LMHeadModel(shape), args, train_dataset=sentences())

    exchange = laconic.integrations.transformers.attach(trainer, laconic.topk(0.01))  # ours
    trainer.train()

    if trainer.is_world_process_zero():
        for line in trainer.state.log_history[:-1]:
            print(f"step {line['step']}: loss {line['loss']}")
        stats = exchange.link.stats
        print(f"{stats.wire_bytes:,} bytes sent by this rank, {stats.ratio:.1f}x fewer than plain DDP")


if __name__ == "__main__":
    main()
