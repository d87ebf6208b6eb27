"""Four processes with gloo groups of 1 to 4 ranks, started once: a job takes milliseconds, not seconds."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SIZE = 4
GROUP_TIMEOUT = datetime.timedelta(seconds=60)


class JobError(AssertionError):
    """A rank raised; the message holds its traceback."""


class Pool:
    """``run(ranks, job, *args)`` calls ``job(group, *args)`` on that many ranks and returns their results."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        store = os.path.join(tempfile.mkdtemp(), "store")
        self._pipes, self._processes = [], []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, store, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, ranks: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        for pipe in self._pipes[:ranks]:
            pipe.send((ranks, job, args))
        answers = [pipe.recv() for pipe in self._pipes[:ranks]]
        failed = [text for good, text in answers if not good]
        if failed:
            raise JobError("\n".join(failed))
        return [value for _, value in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()


def _serve(rank: int, store: str, pipe: Any) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE, timeout=GROUP_TIMEOUT
    )
    groups = {n: dist.new_group(list(range(n)), timeout=GROUP_TIMEOUT) for n in range(1, SIZE + 1)}
    while (message := pipe.recv()) is not None:
        ranks, job, args = message
        try:
            torch.manual_seed(0)
            pipe.send((True, job(groups[ranks], *args)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))
    dist.destroy_process_group()
