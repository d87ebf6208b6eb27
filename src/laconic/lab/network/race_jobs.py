"""Crews for the runs of a race: one after the other, or several at a time in processes of their own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from laconic.lab.launch import RankError
from laconic.lab.network.crew import run_crew
from laconic.lab.network.ending import ended_in_order
from laconic.lab.network.hosts import Hosts
from laconic.lab.network.race import Entry, Ran, race


@dataclass(frozen=True, kw_only=True)
class Done:
    """What came of a run: what each rank saw, or why it failed."""

    entry: Entry
    ran: tuple[Ran, ...] = ()
    failed: str = ""


def run_one(entry: Entry, ranks: int, *, hosts: Hosts | None, seconds: float) -> Done:
    """Make one run with a crew of its own; one that fails, or is not done in ``seconds``, is told, not raised."""
    try:
        ran = run_crew(ranks, race, entry, hosts=hosts, seconds=seconds)
    except RankError as error:
        return Done(entry=entry, failed=str(error).strip())
    return Done(entry=entry, ran=tuple(ran))


def run_many(entries: Sequence[Entry], ranks: int, *, jobs: int, seconds: float) -> Iterator[Done]:
    """Make runs on loopback, so many at a time, and give each as soon as it is done; an end ends all of them."""
    if jobs == 1:
        yield from (run_one(entry, ranks, hosts=None, seconds=seconds) for entry in entries)
        return
    # Threads would not hear of Ctrl-C; processes are asked to end, and kill their ranks.
    context = multiprocessing.get_context("spawn")
    left = list(entries)
    working: dict[Connection, tuple[SpawnProcess, Entry]] = {}
    with ended_in_order():
        try:
            while left or working:
                while left and len(working) < jobs:
                    entry, (ours, theirs) = left.pop(0), context.Pipe(duplex=False)
                    process = context.Process(target=_run_into, args=(theirs, entry, ranks, seconds))
                    process.start()
                    theirs.close()
                    working[ours] = (process, entry)
                for told in wait(list(working)):
                    assert isinstance(told, Connection)
                    process, entry = working.pop(told)
                    done = Done(entry=entry, failed="its process ended without a word: killed for memory, perhaps")
                    with suppress(EOFError):
                        done = told.recv()
                    process.join()
                    yield done
        finally:
            for process, _ in working.values():
                process.terminate()
            for process, _ in working.values():
                process.join()


def _run_into(told: Connection, entry: Entry, ranks: int, seconds: float) -> None:
    # A terminal sends Ctrl-C to all processes; the one that started this asks it to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(SystemExit), ended_in_order():
        told.send(run_one(entry, ranks, hosts=None, seconds=seconds))
