"""The ``laconic`` command as users start it: alone, or through torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ALONE = [sys.executable, "-m", "laconic"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "laconic"]


def laconic(
    *words: str | Path, by: list[str] = ALONE, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*by, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
