"""Where ranks run: alone on this machine, or among ranks that a launcher has started. Reads the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from laconic.lab.cores import threads_for
from laconic.lab.launch import Joined, Setting, run_joined, run_ranks
from laconic.lab.spec import Device

T = TypeVar("T")


def joined(environment: Mapping[str, str]) -> Joined | None:
    """Return the place that torchrun or Slurm's srun has given this process; None when it was started alone.

    >>> slurm = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
    >>> slurm |= {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_JOB_ID": "12"}
    >>> joined(slurm)
    Joined(rank=3, ranks=4, local_rank=1, local_ranks=2, address='node07', port=20012)
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        return Joined(
            rank=rank,
            ranks=ranks,
            local_rank=int(environment.get("LOCAL_RANK", rank)),
            local_ranks=int(environment.get("LOCAL_WORLD_SIZE", ranks)),
            address=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=int(environment.get("MASTER_PORT", "29500")),
        )
    # The step's own number: inside an allocation, without srun, SLURM_NTASKS is that of steps to come.
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", "127.0.0.1"))
        here = environment.get("SLURM_STEP_TASKS_PER_NODE", environment["SLURM_STEP_NUM_TASKS"])
        return Joined(
            rank=int(environment["SLURM_PROCID"]),
            ranks=int(environment["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(environment["SLURM_LOCALID"]),
            local_ranks=int(re.match(r"\d+", here)[0]),  # type: ignore[index]
            address=environment.get("MASTER_ADDR", first_host(nodes)),
            port=int(environment.get("MASTER_PORT", 20000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000)),
        )
    return None


def first_host(nodes: str) -> str:
    """Return the first of Slurm's list of hosts.

    >>> [first_host(nodes) for nodes in ("node[07-09,12]", "a1,b2", "rack1-n[3]", "10.0.0.1")]
    ['node07', 'a1', 'rack1-n3', '10.0.0.1']
    """
    found = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    return "" if found is None else found[1] + (found[2] or "")


def settle(device: Device) -> Device:
    """Turn auto into what there is, and refuse a GPU that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda wants a GPU that torch can use, got none. Write --device cpu.")
    return device


def run_everywhere(workers: int, setting: Setting, work: Callable[..., T], *args: Any) -> T:
    """Run work on this process's rank if a launcher has started it, else on so many ranks of this machine.

    Ranks of one machine share the cores that are theirs; srun gives each of its tasks cores of its own.
    """
    place = joined(os.environ)
    sharing = workers if place is None else place.local_ranks
    a_task = place is not None and "RANK" not in os.environ and "SLURM_CPUS_PER_TASK" in os.environ
    given = int(os.environ["SLURM_CPUS_PER_TASK"]) if a_task else None
    shared = replace(setting, threads=threads_for(sharing, given=given))
    if place is not None:
        return run_joined(place, work, *args, setting=shared)
    return run_ranks(workers, work, *args, setting=shared)
