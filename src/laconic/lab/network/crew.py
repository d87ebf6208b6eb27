"""A crew: ranks in processes of their own, one a host or all on loopback, that do one piece of work together."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from laconic.arguments import check_number, check_whole
from laconic.lab.launch import RankError
from laconic.lab.network.ending import ended_in_order, undisturbed
from laconic.lab.network.hosts import Hosts

_PORT = 29619
_POLL_SECONDS = 0.05
_LAST_WORDS_SECONDS = 1.0
_SHOWN_CHARACTERS = 4000
WORK, STORE, SAID = "work.pickle", "store", "said"


def run_crew(
    ranks: int,
    work: Callable[..., Any],
    *args: Any,
    hosts: Hosts | None,
    seconds: float,
    threads: int = 1,
    hear: Callable[[str], None] | None = None,
) -> list[Any]:
    """Call ``work(*args)`` on so many ranks, joined by gloo; return what each of them returned, by rank.

    ``work`` must be a function of a module that ranks can import. Without hosts all ranks are on loopback. If a
    rank fails, or ``seconds`` have passed, all of them are killed and RankError is raised. ``hear`` is called with
    the latest of what ranks ``say`` meanwhile (laconic.lab.network.rank).
    """
    check_whole("ranks", ranks, 1, "Write 2.")
    check_number("seconds", seconds, 0, "Write 600.")
    if hosts is not None and hosts.number != ranks:
        raise ValueError(f"a crew has one rank a host, got {ranks} ranks and {hosts.number} hosts.")
    with tempfile.TemporaryDirectory(prefix="laconic-crew-") as scratch, ended_in_order():
        folder = Path(scratch)
        job = {"work": work, "args": args, "seconds": seconds, "threads": threads}
        (folder / "path.pickle").write_bytes(pickle.dumps(sys.path))
        (folder / WORK).write_bytes(pickle.dumps(job))
        port = _free_port() if hosts is None else _PORT
        with killed_in_the_end() as processes:
            for rank in range(ranks):
                processes.append(_start(rank, ranks, hosts, port, threads, folder))
            wait_for(processes, folder, seconds, hear or (lambda _: None))
        return [pickle.loads((folder / f"rank-{rank}.pickle").read_bytes()) for rank in range(ranks)]


@contextmanager
def killed_in_the_end() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give a list for processes, none of which outlives the ``with`` block."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
    finally:
        with undisturbed():
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def _start(
    rank: int, ranks: int, hosts: Hosts | None, port: int, threads: int, folder: Path
) -> subprocess.Popen[bytes]:
    node_size = ranks if hosts is None else 1
    environment = place_of(rank, ranks, hosts, port, node_size=node_size, threads=threads)
    environment["LACONIC_ADDRESS"] = "127.0.0.1" if hosts is None else hosts.address(rank)
    command = [sys.executable, "-m", "laconic.lab.network.rank", str(folder), str(rank)]
    log = folder / f"rank-{rank}.log"
    if hosts is not None:
        return hosts.start(rank, command, environment, log)
    with log.open("wb") as out:
        return subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=subprocess.STDOUT)


def place_of(
    rank: int, ranks: int, hosts: Hosts | None, port: int, *, node_size: int, threads: int = 1
) -> dict[str, str]:
    """Return the variables that tell a process which rank it is, where it finds the others, and its threads."""
    place = {
        "RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % node_size, "LOCAL_WORLD_SIZE": node_size,
        "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1" if hosts is None else hosts.address(0),
        "GLOO_SOCKET_IFNAME": "lo" if hosts is None else hosts.interface,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads),
    }  # fmt: skip
    return {name: str(value) for name, value in place.items()}


def wait_for(
    processes: list[subprocess.Popen[bytes]],
    folder: Path,
    seconds: float,
    hear: Callable[[str], None] = lambda _: None,
) -> None:
    """Wait until all ranks are done; if one fails or time is up raise RankError, with what rank-N.log has."""
    until, heard = time.monotonic() + seconds, ""
    while any(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)
        said = (folder / SAID).read_text() if (folder / SAID).exists() else ""
        if said != heard:
            heard = said
            hear(said)
        if any(process.poll() for process in processes):
            break
        if time.monotonic() > until:
            raise RankError(
                f"ranks were not done within {seconds:g} s, and were killed. {_logs(processes, folder)}"
            )
    if any(process.poll() for process in processes):
        _give_last_words(processes)
        raise RankError(_failure(processes, folder))


def _give_last_words(processes: list[subprocess.Popen[bytes]]) -> None:
    """Let the other ranks end by themselves for a moment: the first that failed may not be the first that ended."""
    until = time.monotonic() + _LAST_WORDS_SECONDS
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)


def _failure(processes: list[subprocess.Popen[bytes]], folder: Path) -> str:
    # Their names begin with the time at which they were written.
    said = sorted(folder.glob("error-*"))
    # One that was killed cannot tell, and those that it left alone have only that to say.
    if said and not any(process.returncode and process.returncode < 0 for process in processes):
        return f"rank {said[0].name.split('-')[2]} failed:\n{said[0].read_text().strip()}"
    failed = sorted(
        (rank for rank, process in enumerate(processes) if process.returncode),
        key=lambda rank: processes[rank].returncode > 0,
    )
    code = processes[failed[0]].returncode
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return f"rank {failed[0]} {ended} without a word. {_logs(processes, folder)}"


def _logs(processes: list[subprocess.Popen[bytes]], folder: Path) -> str:
    texts = [(folder / f"rank-{rank}.log").read_text(errors="replace").strip() for rank in range(len(processes))]
    shown = [f"rank {rank} printed:\n{text[-_SHOWN_CHARACTERS:]}" for rank, text in enumerate(texts) if text]
    return "\n".join(shown) or "They printed nothing."


def _free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        port: int = asking.getsockname()[1]
        return port
