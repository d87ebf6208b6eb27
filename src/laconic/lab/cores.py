"""How many cores a rank may use: fewer than the machine has where a container, a launcher or others have them."""

from __future__ import annotations

import os
import sys
from math import inf
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def threads_for(local_ranks: int, *, given: int | None = None, cgroups: Path = _CGROUPS) -> int:
    """Return how many threads a rank may use when it shares this machine's cores with others.

    A container's share of the processor counts, and so do the cores that this process is bound to: those of all
    ranks here, unless a launcher has ``given`` this one some cores for itself.

    >>> threads_for(10_000)
    1
    """
    cores = os.cpu_count() or 1
    bound = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
    own = bound // local_ranks if given is None else min(given, bound)
    return max(1, int(min(cores // local_ranks, own, _quota(cgroups) // local_ranks)))


def _quota(cgroups: Path) -> float:
    """Return how many cores' time this container may take; infinite where nobody says."""
    try:
        quota, period = (cgroups / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((cgroups / "cpu" / f"cpu.cfs_{word}_us").read_text() for word in ("quota", "period"))
        except OSError:
            return inf
    # No limit is "max" in the second version of cgroups, and -1 in the first.
    limit = float(quota) if quota.strip() != "max" else -1.0
    return limit / float(period) if limit > 0 else inf
