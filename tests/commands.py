"""The ``laconic`` command as users start it, alone or through torchrun; or within this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from laconic.cli import main
from pool import start_server

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


def laconic_here(*words: str | Path) -> None:
    """Run a command within this process: its ranks start at once. What they print themselves is not captured."""
    start_server()
    main([*map(str, words)])
