"""The example of Ray Train on a real cluster of two workers, of which one dies: it goes on to the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from models import digest, memory_bits, weights

pytest.importorskip("ray", reason="Ray has no wheel for this Python, or is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_ray.py"
# Ray looks at its workers every two seconds, writes to the driver what they print, and reports what it is used for.
QUIET = {
    "OMP_NUM_THREADS": "1",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PROGRAM = """
import json, runpy, sys
import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
result = runpy.run_path(sys.argv[1], run_name="example")["run"](sys.argv[2], dies=True)
print(json.dumps({"folder": result.checkpoint.path, **result.metrics}))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> dict[str, Any]:
    """The last report of the run, and what each rank has put into its checkpoint."""
    storage = tmp_path_factory.mktemp("ray")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(EXAMPLE), str(storage)],
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    files = sorted(Path(last["folder"]).glob("rank-*.pt"))
    return last | {"saved": [torch.load(path, weights_only=True) for path in files]}


def straight(group: dist.ProcessGroup) -> tuple[str, str, float]:
    """The example's loop without Ray and without a stop."""
    rank = dist.get_rank(group)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    link = laconic.attach(model, optimizer, laconic.topk(0.01))
    for step in range(80):
        torch.manual_seed(1000 * rank + step)
        x = torch.randn(32, 64)
        loss = nn.functional.mse_loss(model(x), x[:, :8])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(weights(model)), memory_bits(link), loss.item()


def test_the_run_went_on_from_the_last_checkpoint_and_sent_less(finished):
    assert finished["began_at"] == 2
    assert finished["ratio"] > 10


def test_ray_keeps_the_files_of_all_ranks_in_one_folder(finished):
    assert [state["link"]["step"] for state in finished["saved"]] == [80, 80]


def test_a_restarted_run_has_the_bits_of_one_without_ray_that_never_stopped(finished, pool):
    control = pool.run(2, straight)
    assert control[0][0] == control[1][0]
    for state, (model, memory, _) in zip(finished["saved"], control, strict=True):
        owed = [state["link"]["memory"]["owed"], state["link"]["decay"]]
        assert digest(state["model"].values()) == model
        assert digest(vectors[name] for vectors in owed for name in sorted(vectors)) == memory
    assert finished["loss"] == control[0][2]


def test_what_ray_saved_goes_on_on_another_number_of_workers(finished):
    links = [state["link"] for state in finished["saved"]]
    (alone,) = laconic.resharded(links, ranks=1)
    for name, owed in alone["memory"]["owed"].items():
        mean = torch.stack([link["memory"]["owed"][name] for link in links]).mean(0)
        torch.testing.assert_close(owed, mean)
