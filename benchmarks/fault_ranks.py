"""Ranks of a run as processes of their own, forked off one that has imported everything; how each of them ended."""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from fault_points import Fault, lay, note_owed

import laconic
from laconic.lab.launch import Joined, Setting, run_joined
from laconic.lab.loop import Ways
from laconic.lab.network.hosts import Hosts
from laconic.lab.session import Seat, Trial, run_trial
from laconic.lab.show import Show
from laconic.lab.signals import noted_wishes
from laconic.lab.talk import Talk

context = multiprocessing.get_context("forkserver")
_GLANCE_SECONDS = 0.02
_HOST_PORT = 29641
_CLONE_NEWNET = 0x40000000
# What a run of ours may raise: each says what was wrong and what to do.
CLEAR = ("AgreedError", "ExchangeError", "GroupError", "LaconicError", "WireError")


def get_ready() -> None:
    """Say what the process that ranks are forked off imports once; before the first of them."""
    # What torch has to say of lost connections, in many lines, is not what is looked at here.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    os.environ.setdefault("RUST_LOG", "error")
    context.set_forkserver_preload(["torch._dynamo", "sklearn.datasets", "laconic.lab.session", "fault_warm"])


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to make on so many ranks; ``check_every`` has models compared, ``hosts`` are where ranks live."""

    trial: Trial
    faults: tuple[Fault, ...] = ()
    timeout_seconds: float = 20.0
    check_every: int = 0
    hosts: Hosts | None = None

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return self.trial.spec.workers


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a rank ended: with a result, with an error, or by a signal (a negative exit code, and neither)."""

    exitcode: int | None
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    message: str = ""

    @property
    def hung(self) -> bool:
        """Whether it had to be ended from outside, for it did not by itself."""
        return self.exitcode is None

    @property
    def in_words(self) -> str:
        """What it came to, in a few words."""
        if self.hung:
            return "hung"
        return f"{self.error}: {self.message}" if self.error else f"exit {self.exitcode}"


class Running:
    """Ranks at work. None of them outlives the ``with`` block."""

    def __init__(self, job: Job) -> None:
        self.job, self.notes = job, Path(tempfile.mkdtemp(prefix="laconic-fault-"))
        port = _free_port() if job.hosts is None else _HOST_PORT
        self.processes: list[BaseProcess] = [
            context.Process(target=_rank, args=(job, rank, port, self.notes), daemon=True)
            for rank in range(job.ranks)
        ]
        self.began = time.monotonic()

    def __enter__(self) -> Running:
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        shutil.rmtree(self.notes, ignore_errors=True)

    def struck(self, rank: int) -> bool:
        """Whether the trap on a rank has gone off."""
        return (self.notes / f"struck-{rank}").exists()

    def await_strike(self, rank: int, seconds: float) -> bool:
        """Wait until the trap on a rank goes off, or all are done."""
        last = time.monotonic() + seconds
        while not self.struck(rank) and self.alive() and time.monotonic() < last:
            time.sleep(_GLANCE_SECONDS)
        return self.struck(rank)

    def alive(self) -> bool:
        """Whether any rank still runs."""
        return any(process.exitcode is None for process in self.processes)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        with suppress(ProcessLookupError):
            os.kill(self.processes[rank].pid or 0, number)

    def wait(self, seconds: float) -> list[Ended]:
        """Return how each rank ended within so many seconds from now."""
        last = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, last - time.monotonic()))
        return [self._ended(rank) for rank in range(self.job.ranks)]

    def owed(self) -> list[dict[str, torch.Tensor]]:
        """Return what ranks owed right after they went on from a checkpoint."""
        places = [self.notes / f"owed-{rank}.pt" for rank in range(self.job.ranks)]
        return [torch.load(place, weights_only=True) for place in places if place.exists()]

    def _ended(self, rank: int) -> Ended:
        said = self.notes / f"said-{rank}.json"
        words = json.loads(said.read_text()) if said.exists() else {}
        return Ended(exitcode=self.processes[rank].exitcode, **words)


def done(job: Job, seconds: float) -> list[Ended]:
    """Make a run, and return how each rank ended."""
    with Running(job) as running:
        return running.wait(seconds)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _rank(job: Job, rank: int, port: int, notes: Path) -> None:
    """Be one rank of a run, and write down how it ended."""
    warnings.simplefilter("ignore")
    logging.getLogger("laconic").setLevel(logging.ERROR)
    address = "127.0.0.1"
    if job.hosts is not None:
        _move_to(job.hosts, rank)
        address = job.hosts.address(0)
        os.environ["GLOO_SOCKET_IFNAME"] = job.hosts.interface
    note_owed(notes / f"owed-{rank}.pt")
    for fault in job.faults:
        if fault.rank == rank:
            lay(fault, notes / f"struck-{rank}")
    place = Joined(rank=rank, ranks=job.ranks, local_rank=rank, local_ranks=job.ranks, address=address, port=port)
    words: dict[str, Any] = {}
    try:
        words["result"] = run_joined(place, _work, job, setting=Setting(timeout_seconds=job.timeout_seconds))
    except Exception as error:
        words |= {"error": type(error).__name__, "message": str(error)[:2000]}
    half = notes / f"half-{rank}"
    half.write_text(json.dumps(words))
    half.replace(notes / f"said-{rank}.json")
    # Leave at once: a broken group may wait for its peers on the way out.
    os._exit(1 if words.get("error") else 0)


def _work(job: Job) -> dict[str, Any]:
    attach = partial(laconic.attach, check_every=job.check_every) if job.check_every else laconic.attach
    with noted_wishes() as wish, Show(hidden=True, boards=False) as show:
        seat = Seat(talk=Talk(), wish=wish, show=show, ways=replace(Ways(), attach=attach))
        return run_trial(job.trial, seat, {})


def _move_to(hosts: Hosts, host: int) -> None:
    """Have this process, and whatever it connects to, on a host's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with hosts.namespace(host).open() as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"host {host} could not be entered")


def kept(ends: Sequence[Ended]) -> list[dict[str, Any]]:
    """Return the results of those that finished."""
    return [ended.result for ended in ends if ended.result]
