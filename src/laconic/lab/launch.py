"""Ranks: several on this machine through torch's own launcher, or one that joins those started elsewhere."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from laconic.lab.signals import on_signals

T = TypeVar("T")
# torch.distributed's own over gloo; over NCCL it would wait for a third of it.
_USUAL_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The place that a launcher (torchrun, Slurm) has given this process."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    address: str
    port: int


class RankError(RuntimeError):
    """A rank failed; the message is what the first that did had to say."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a rank runs with: its threads, its kind of device, and how long it waits for others that do not come."""

    threads: int = 1
    device: str = "cpu"
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds < inf:
            raise ValueError(
                f"timeout_seconds must be more than 0, got {self.timeout_seconds}. Write --timeout-seconds 60, or "
                f"leave it out to wait for half an hour."
            )

    @property
    def timeout(self) -> timedelta:
        """How long a collective waits."""
        return timedelta(seconds=_USUAL_SECONDS if self.timeout_seconds is None else self.timeout_seconds)


def run_ranks(ranks: int, work: Callable[..., T], *args: Any, setting: Setting | None = None) -> T:
    """Call ``work(*args)`` on that many local ranks; return what rank 0 returns.

    If one rank raises, all are ended and the error is raised here. Ctrl-C is left to the ranks: work that notes it
    ends by itself, and a second one ends everything at once.
    """
    options: dict[str, Any] = {}
    if "signals_to_handle" in {field.name for field in fields(LaunchConfig)}:
        # The launcher would end the ranks itself, in the middle of a step, and wait half a minute for them.
        options["signals_to_handle"] = "SIGQUIT"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="forkserver",
        **options,
    )
    # Ranks are forked off a process that has imported all this once, which takes seconds.
    multiprocessing.set_forkserver_preload(["torch._dynamo", "laconic.lab.session"])
    # The launcher reports failures itself, at length, and often those of ranks that another one has left alone.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    hands = _HandsOn()
    with on_signals(hands.note), tempfile.TemporaryDirectory() as last_words:
        try:
            results: dict[int, T] = elastic_launch(config, _start_here)(
                work, args, setting or Setting(), last_words
            )
        except (ChildFailedError, SignalException) as error:
            # Ranks that were not yet ready to note a wish have ended of the signal itself.
            if hands.interrupted or isinstance(error, SignalException):
                raise KeyboardInterrupt from None
            raise RankError(_first_failure(error, Path(last_words))) from None
    return results[0]


def run_joined(place: Joined, work: Callable[..., T], *args: Any, setting: Setting | None = None) -> T:
    """Call ``work(*args)`` in this process as one rank of a group that others join too."""
    names = {"RANK": place.rank, "WORLD_SIZE": place.ranks, "LOCAL_RANK": place.local_rank}
    names |= {"LOCAL_WORLD_SIZE": place.local_ranks, "MASTER_PORT": place.port}
    os.environ.update({name: str(value) for name, value in names.items()} | {"MASTER_ADDR": place.address})
    return _start(work, args, setting or Setting())


def _start_here(work: Callable[..., T], args: tuple[Any, ...], setting: Setting, last_words: str) -> T:
    # A terminal sends Ctrl-C to all processes; the one that started the ranks hands it on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _start(partial(_with_last_words, work, Path(last_words)), args, setting)


def _with_last_words(work: Callable[..., T], folder: Path, *args: Any) -> T:
    try:
        return work(*args)
    except Exception:
        # Named by the time, and before the group is left: ranks that wait for this one fail after it.
        name = f"{time.monotonic_ns():020d}-{os.environ['RANK']}"
        (folder / name).write_text(traceback.format_exc())
        raise


def _start(work: Callable[..., T], args: tuple[Any, ...], setting: Setting) -> T:
    torch.set_num_threads(setting.threads)
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    alone = setting.device == "cuda" and local_ranks <= torch.cuda.device_count()
    if setting.device == "cuda":
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        be_deterministic()
    # NCCL wants a GPU for every rank; gloo lets them share one.
    dist.init_process_group("nccl" if alone else "gloo", timeout=setting.timeout)
    try:
        return work(*args)
    finally:
        dist.destroy_process_group()


def be_deterministic() -> None:
    """Have CUDA give the same bits for the same work; called before it does any."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)


def _first_failure(error: ChildFailedError, last_words: Path) -> str:
    said = sorted(last_words.iterdir())
    if said:
        return f"rank {said[0].name.split('-')[1]} failed:\n{said[0].read_text().strip()}"
    # Without a word: killed.
    rank, failure = error.get_first_failure()
    return f"rank {rank} failed: {failure.message}"


class _HandsOn:
    """Hands Ctrl-C and SIGTERM on to the ranks as SIGTERM, which asks them to stop; a second Ctrl-C ends them."""

    def __init__(self) -> None:
        self.interrupted = False

    def note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Hand a signal on."""
        again, self.interrupted = self.interrupted and number == signal.SIGINT, True
        ranks = multiprocessing.active_children()
        for rank in ranks:
            rank.kill() if again else rank.terminate()
        if again or not ranks:
            raise KeyboardInterrupt
        print("\nstopping; Ctrl-C again stops at once.", file=sys.stderr)
