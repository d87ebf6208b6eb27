"""The examples, and the quickstart's, on two ranks: one through torchrun, the others by the launcher within it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import uuid
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pool import start_server

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# What starts ranks by itself is not started by torchrun.
BY_ITSELF = {"with_ray.py": "python examples/with_ray.py"}


def _torchrun(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _printed(path: str) -> str:
    with redirect_stdout(StringIO()) as said:
        runpy.run_path(path, run_name="__main__")
    return said.getvalue()


def _launched(path: Path) -> str:
    """Do what torchrun does, with ranks that are forked off a server that has imported everything: seconds less."""
    start_server()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="forkserver",
    )
    said = elastic_launch(config, _printed)(str(path))
    return "".join(said[rank] for rank in sorted(said))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_is_short_and_says_how_to_start_it(path):
    text = path.read_text()
    assert text.count("\n") < 60
    assert BY_ITSELF.get(path.name, f"torchrun --nproc-per-node 2 examples/{path.name}") in text


def test_the_ddp_example_learns_and_sends_less():
    out = _torchrun(EXAMPLES[[p.name for p in EXAMPLES].index("ddp.py")])
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < losses[0]
    assert float(re.search(r"([\d.]+)x fewer", out)[1]) > 10


def test_the_plain_example_resumes_to_the_same_bits():
    out = _launched(EXAMPLES[[p.name for p in EXAMPLES].index("plain_loop.py")])
    straight, resumed = re.search(r"loss ([\d.e-]+) without a stop, ([\d.e-]+) resumed", out).groups()
    assert straight == resumed


def test_the_example_of_sharded_replicas_learns_and_sends_less():
    out = _launched(EXAMPLES[[p.name for p in EXAMPLES].index("fsdp.py")])
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < losses[0]
    assert float(re.search(r"([\d.]+)x fewer", out)[1]) > 10


@pytest.mark.skipif(find_spec("torchft") is None, reason="torchft has no wheel for this Python")
def test_the_example_of_workers_that_come_and_go_ends_with_one_model():
    out = _launched(EXAMPLES[[p.name for p in EXAMPLES].index("quorum.py")])
    losses = [float(x) for x in re.findall(r"2 workers, loss ([\d.]+)", out)]
    assert losses[-1] < losses[0]
    assert len(set(re.findall(r"the sum (-?[\d.]+)", out))) == 1


def test_the_example_of_local_steps_ends_with_one_model_after_unlike_numbers_of_batches():
    out = _launched(EXAMPLES[[p.name for p in EXAMPLES].index("local_steps.py")])
    ends = re.findall(r"rank \d: (\d+) steps, (\d+) syncs, loss ([\d.]+)", out)
    assert len({steps for steps, _, _ in ends}) == 2
    assert len({loss for _, _, loss in ends}) == 1
    losses = [float(x) for x in re.findall(r"batch \d+: loss ([\d.]+)", out)]
    assert float(ends[0][2]) < losses[1] < losses[0]


def test_the_program_of_the_quickstart_prints_what_the_page_says(tmp_path):
    page = (ROOT / "docs" / "quickstart.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    line = re.compile(r"^loss ([\d.]+), ([\d,]+ bytes sent, \d+x fewer)$", re.MULTILINE)
    (told,), (seen,) = line.findall(page), line.findall(_launched(tmp_path / "train.py"))
    assert float(seen[0]) == pytest.approx(float(told[0]), abs=0.01)
    assert seen[1] == told[1]
