"""Threads a rank: no more than its share of the machine, of the container, and of the cores that it is bound to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from laconic.lab.cores import threads_for

NOWHERE = Path("/nowhere")


def _second_version(folder: Path, text: str) -> Path:
    (folder / "cpu.max").write_text(text)
    return folder


def _first_version(folder: Path, quota: int) -> Path:
    (folder / "cpu").mkdir()
    (folder / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    return folder


@pytest.fixture
def large(monkeypatch):
    """A machine of 64 cores, on which this process may use so many."""

    def bind(cores: int) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)

    bind(64)
    return bind


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bound processes and cgroups are Linux's")


@pytest.mark.parametrize(("ranks", "threads"), [(1, 64), (4, 16), (5, 12), (64, 1), (100, 1)])
def test_ranks_share_the_machine(large, ranks, threads):
    assert threads_for(ranks, cgroups=NOWHERE) == threads


@pytest.mark.parametrize(("ranks", "threads"), [(1, 4), (2, 2), (8, 1)])
def test_ranks_share_what_their_container_may_take(large, tmp_path, ranks, threads):
    assert threads_for(ranks, cgroups=_second_version(tmp_path, "450000 100000\n")) == threads


def test_the_first_version_of_cgroups_says_the_same_elsewhere(large, tmp_path):
    assert threads_for(2, cgroups=_first_version(tmp_path, 450_000)) == 2


def test_no_limit_is_none_in_both_versions(large, tmp_path):
    assert threads_for(2, cgroups=_first_version(tmp_path, -1)) == 32
    assert threads_for(2, cgroups=_second_version(tmp_path, "max 100000\n")) == 32


def test_bound_cores_are_shared_unless_some_were_given_to_this_rank(large):
    large(8)
    assert threads_for(2, cgroups=NOWHERE) == 4
    assert threads_for(2, given=6, cgroups=NOWHERE) == 6
    assert threads_for(2, given=16, cgroups=NOWHERE) == 8
    assert threads_for(4, given=2, cgroups=NOWHERE) == 2, "srun that gives two cores a task, and binds none"


def test_a_process_that_is_bound_in_earnest():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert threads_for(1, cgroups=NOWHERE) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert threads_for(1, cgroups=NOWHERE) == len(before)
