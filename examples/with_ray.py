"""TopK-SGD by Ray Train, with a worker that dies and a restart. Start with: python examples/with_ray.py."""

import os
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import laconic


def train_func(config: dict[str, bool]) -> None:
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    link = laconic.attach(model, optimizer, laconic.topk(0.01))
    parts, done = {"model": model, "optimizer": optimizer, "link": link}, 0

    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            states = torch.load(Path(folder) / f"rank-{rank:03}.pt", weights_only=True)
        done = states.pop("done")
        for name, state in states.items():
            parts[name].load_state_dict(state)

    for epoch in range(done, 4):
        for step in range(20):
            torch.manual_seed(1000 * rank + 20 * epoch + step)
            x = torch.randn(32, 64)
            loss = nn.functional.mse_loss(model(x), x[:, :8])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if config["dies"] and rank == 1 and not checkpoint and (epoch, step) == (2, 10):
                ray.train.get_all_reported_checkpoints()  # waits until Ray has heard of the last one
                os._exit(1)
        with tempfile.TemporaryDirectory() as folder:  # every rank saves its own; Ray puts them into one folder
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save(states | {"done": epoch + 1}, Path(folder) / f"rank-{rank:03}.pt")
            metrics = {"loss": loss.item(), "began_at": done, "ratio": link.stats.ratio}
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def run(storage: str, *, dies: bool) -> ray.train.Result:
    once = ray.train.RunConfig(storage_path=storage, failure_config=ray.train.FailureConfig(max_failures=1))
    workers = ray.train.ScalingConfig(num_workers=2)
    return TorchTrainer(train_func, train_loop_config={"dies": dies}, scaling_config=workers, run_config=once).fit()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as storage:
        straight, resumed = (run(storage, dies=dies).metrics for dies in (False, True))
    print(f"loss {straight['loss']!r} without a stop, {resumed['loss']!r} after one in epoch {resumed['began_at']}")
    print(f"{resumed['ratio']:.1f}x fewer bytes")
