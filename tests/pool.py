"""Four processes with gloo groups of 1 to 4 ranks, started once: a job takes milliseconds, not seconds.

``run_alone`` starts processes of its own for one job, for exams in which a rank dies or a group breaks.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

SIZE = 4
GROUP_TIMEOUT = datetime.timedelta(seconds=60)
# Once a rank has raised, the others may be waiting for it for ever.
GRACE_SECONDS = 5

# A fork of a server that has torch loaded starts in milliseconds, and inherits no thread of pytest's.
_context = multiprocessing.get_context("forkserver")
# What cannot be imported there is left out, as the last is where pytest was not started in the repository's root.
_context.set_forkserver_preload(
    ["torch._dynamo", "sklearn.datasets", "laconic.lab.session", "tests.process_group.warm"]
)


def start_server() -> None:
    """Start the server now: what starts ranks by other ways than these forks them off it, too."""
    forkserver.ensure_running()


class JobError(AssertionError):
    """A rank raised; the message holds its traceback."""


class Pool:
    """``run(ranks, job, *args)`` calls ``job(group, *args)`` on that many ranks and returns their results."""

    def __init__(self) -> None:
        self._remembered: dict[tuple[Any, ...], list[Any]] = {}
        self._start()

    def _start(self) -> None:
        store = os.path.join(tempfile.mkdtemp(), "store")
        self._pipes, self._processes = [], []
        for rank in range(SIZE):
            pipe, process = launch(_serve, rank, store)
            self._pipes.append(pipe)
            self._processes.append(process)

    def run(self, ranks: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        pipes = self._pipes[:ranks]
        for pipe in pipes:
            pipe.send((ranks, job, args))
        answers = _collect(pipes)
        failed = [text for good, text in answers.values() if not good]
        if failed or len(answers) < ranks:
            # Its groups may be broken: the next job must not suffer for it.
            self.close()
            self._start()
            raise JobError("\n".join([*failed, f"{len(answers)} of {ranks} ranks answered"]))
        return [answers[pipe][1] for pipe in pipes]

    def control(self, ranks: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        """As ``run``, but run once and remembered: a control that many exams compare with."""
        key = (ranks, job.__module__, job.__qualname__, repr(args))
        if key not in self._remembered:
            self._remembered[key] = self.run(ranks, job, *args)
        return self._remembered[key]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@dataclass(frozen=True)
class Outcome:
    """How a rank of its own ended: the ``value`` it returned, the ``error`` it raised, or neither."""

    exitcode: int | None
    value: Any = None
    error: str = ""
    message: str = ""


def run_alone(
    ranks: int, job: Callable[..., Any], *args: Any, timeout_seconds: float = 60, within_seconds: float = 30
) -> list[Outcome]:
    """Call ``job(group, *args)`` on fresh processes; return how each ended within so many seconds."""
    store = os.path.join(tempfile.mkdtemp(), "store")
    started = [launch(_serve_once, rank, ranks, store, timeout_seconds, job, args) for rank in range(ranks)]
    last = time.monotonic() + within_seconds
    answers: dict[Any, tuple[Any, str, str]] = {}
    for pipe, _ in started:
        if pipe.poll(max(0.0, last - time.monotonic())):
            try:
                answers[pipe] = pipe.recv()
            except EOFError:
                continue
    outcomes = []
    for pipe, process in started:
        process.join(5 if pipe in answers else max(0.1, last - time.monotonic()))
        outcomes.append(Outcome(process.exitcode, *answers.get(pipe, ())))
        process.kill()
    return outcomes


def launch(target: Callable[..., None], *args: Any) -> tuple[Any, Any]:
    ours, theirs = _context.Pipe()
    process = _context.Process(target=target, args=(*args, theirs), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _collect(pipes: list[Any]) -> dict[Any, tuple[bool, Any]]:
    """Return the answers by pipe; after the first failure wait only a little longer."""
    answers: dict[Any, tuple[bool, Any]] = {}
    last = None
    while len(answers) < len(pipes):
        patience = None if last is None else max(0.0, last - time.monotonic())
        ready = wait([p for p in pipes if p not in answers], patience)
        if not ready:
            break
        for pipe in ready:
            try:
                answers[pipe] = pipe.recv()
            except EOFError:
                answers[pipe] = (False, "a rank died")
            if not answers[pipe][0] and last is None:
                last = time.monotonic() + GRACE_SECONDS
    return answers


def _serve(rank: int, store: str, pipe: Any) -> None:
    _join(rank, SIZE, store, GROUP_TIMEOUT)
    groups = {n: dist.new_group(list(range(n)), timeout=GROUP_TIMEOUT) for n in range(1, SIZE + 1)}
    while True:
        try:
            ranks, job, args = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            pipe.send((True, job(groups[ranks], *args)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))


def _serve_once(
    rank: int, ranks: int, store: str, timeout_seconds: float, job: Callable[..., Any], args: Any, pipe: Any
) -> None:
    _join(rank, ranks, store, GROUP_TIMEOUT)
    # Of its own: a short timeout must not hurry the ranks while they start.
    group = dist.new_group(list(range(ranks)), timeout=datetime.timedelta(seconds=timeout_seconds))
    try:
        pipe.send((job(group, *args), "", ""))
    except BaseException as error:
        pipe.send((None, type(error).__name__, str(error)))
    # Leave at once: a broken group may wait for its peers on the way out.
    os._exit(0)


def _join(rank: int, ranks: int, store: str, timeout: datetime.timedelta) -> None:
    warnings.simplefilter("error")
    # Exams combine every method with every optimizer; a test of its own examines this warning.
    warnings.filterwarnings("ignore", message="memory='update' is meant for SGD without momentum")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
