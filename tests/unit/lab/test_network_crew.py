"""Crews on loopback: what fails is heard, what takes too long is killed, and signals end things in order.

Ranks are shells here, which start at once; test_network_steps.py has a crew of real ones.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from laconic.lab.launch import RankError
from laconic.lab.network import crew, rank
from laconic.lab.network.crew import place_of, run_crew
from laconic.lab.network.ending import ended_in_order, undisturbed
from laconic.lab.network.hosts import Hosts
from unit.lab import network_works

SLEEPS = "exec sleep 60"


@pytest.fixture
def shells(monkeypatch):
    """Return what has shells stand for ranks, one script each, in the folder of the crew."""

    def stand_in(*scripts: str) -> None:
        def start(rank: int, ranks: int, hosts: object, port: int, threads: int, folder: Path):
            with (folder / f"rank-{rank}.log").open("wb") as out:
                return subprocess.Popen(["sh", "-c", scripts[rank]], cwd=folder, stdout=out)

        monkeypatch.setattr(crew, "_start", start)

    return stand_in


def _run(ranks: int, seconds: float = 30, **more: object) -> list[object]:
    return run_crew(ranks, network_works.refuse, hosts=None, seconds=seconds, **more)


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_of_ranks_that_raise_the_first_is_heard(shells):
    shells("echo late >error-2-0; exit 1", "echo boom >error-1-1; exit 1")
    with pytest.raises(RankError, match=r"^rank 1 failed:\nboom$"):
        _run(2)


def test_a_rank_leaves_the_traceback_of_what_it_raised(tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LACONIC_CREW": "", "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank.signal, "signal", lambda *_: None)
    monkeypatch.setattr(rank.signal, "alarm", lambda _: None)
    job = {"work": network_works.refuse, "args": (), "seconds": 30, "threads": torch.get_num_threads()}
    (tmp_path / "path.pickle").write_bytes(pickle.dumps(rank.sys.path))
    (tmp_path / "work.pickle").write_bytes(pickle.dumps(job))
    try:
        with pytest.raises(ValueError, match="does not want to"):
            rank.main(tmp_path, 0)
    finally:
        dist.destroy_process_group()
    [left] = tmp_path.glob("error-*-0")
    assert left.read_text().startswith("Traceback")
    assert "ValueError: this rank does not want to" in left.read_text()
    assert not (tmp_path / "rank-0.pickle").exists()


def test_a_rank_that_is_killed_is_named(shells):
    # The other one has only that to say.
    shells("echo alone >error-1-0; exit 1", "kill -KILL $$")
    with pytest.raises(RankError, match="rank 1 was ended by SIGKILL without a word"):
        _run(2)


def test_a_crew_that_takes_too_long_is_killed_and_its_words_are_told(shells):
    shells(SLEEPS)
    with pytest.raises(RankError, match=r"not done within 0.1 s, and were killed. They printed nothing."):
        _run(1, 0.1)
    shells(f"echo so far; {SLEEPS}")
    with pytest.raises(RankError, match=r"rank 0 printed:\nso far"):
        _run(1, 1.0)


def test_what_a_caller_raises_ends_the_crew(shells):
    def interrupt(text: str) -> None:
        raise InterruptedError(text)

    shells(f"echo $$ >half; mv half said; {SLEEPS}")
    with pytest.raises(InterruptedError) as raised:
        _run(1, hear=interrupt)
    assert _gone(int(str(raised.value)))


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="ranks must be a whole number"):
        _run(0)
    with pytest.raises(ValueError, match="seconds must be a finite number"):
        _run(2, float("inf"))


def test_a_rank_is_told_its_place():
    on_hosts = place_of(3, 4, Hosts(number=2), 29000, node_size=2)
    assert (on_hosts["LOCAL_RANK"], on_hosts["LOCAL_WORLD_SIZE"]) == ("1", "2")
    assert (on_hosts["MASTER_ADDR"], on_hosts["GLOO_SOCKET_IFNAME"]) == (Hosts(number=2).address(0), "cable")
    here = place_of(1, 2, None, 29000, node_size=2, threads=3)
    assert (here["RANK"], here["MASTER_ADDR"], here["OMP_NUM_THREADS"]) == ("1", "127.0.0.1", "3")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_end_it_in_order(number):
    # Under nohup it would be ignored, and stay so.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with ended_in_order():
            with undisturbed():
                signal.raise_signal(number)
            with pytest.raises(SystemExit, match=f"ended by {signal.Signals(number).name}"):
                signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_process_that_nohup_started_goes_on():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_in_order():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
