"""The examples, run as their first lines say: through torchrun, on two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))


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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_is_short_and_says_how_to_start_it(path):
    text = path.read_text()
    assert text.count("\n") < 60
    assert f"torchrun --nproc-per-node 2 examples/{path.name}" in text


def test_the_ddp_example_learns_and_sends_less():
    out = _torchrun(EXAMPLES[[p.name for p in EXAMPLES].index("ddp.py")])
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < losses[0]
    assert float(re.search(r"([\d.]+)x fewer", out)[1]) > 10


def test_the_plain_example_resumes_to_the_same_bits():
    out = _torchrun(EXAMPLES[[p.name for p in EXAMPLES].index("plain_loop.py")])
    straight, resumed = re.search(r"loss ([\d.e-]+) without a stop, ([\d.e-]+) resumed", out).groups()
    assert straight == resumed


def test_the_example_of_local_steps_ends_with_one_model_after_unlike_numbers_of_batches():
    out = _torchrun(EXAMPLES[[p.name for p in EXAMPLES].index("local_steps.py")])
    ends = re.findall(r"rank \d: (\d+) steps, (\d+) syncs, loss ([\d.]+)", out)
    assert len({steps for steps, _, _ in ends}) == 2
    assert len({loss for _, _, loss in ends}) == 1
    losses = [float(x) for x in re.findall(r"batch \d+: loss ([\d.]+)", out)]
    assert float(ends[0][2]) < losses[1] < losses[0]
