"""Ranks started on this machine: what they return, and whose error is told when one of them fails."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch.distributed as dist

from laconic.lab.launch import RankError, Setting, run_ranks


def _sum(one: int) -> int:
    rank = dist.get_rank()
    numbers = [None, None]
    dist.all_gather_object(numbers, rank + one)
    return sum(numbers)


def _fails() -> None:
    if dist.get_rank() == 1:
        raise ValueError("the second rank has no data")
    dist.barrier()


def _is_killed() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_ranks_are_joined_and_the_first_ones_answer_comes_back():
    assert run_ranks(2, _sum, 20) == 41


def test_of_two_that_fail_the_one_is_told_that_was_first():
    with pytest.raises(RankError, match=r"(?s)^rank 1 failed:.*ValueError: the second rank has no data$"):
        run_ranks(2, _fails)


def test_a_rank_that_was_killed_does_not_leave_the_others_waiting():
    with pytest.raises(RankError, match="failed"):
        run_ranks(2, _is_killed)


def _stalls(seconds: float) -> None:
    if dist.get_rank() == 1:
        time.sleep(seconds)
    dist.barrier()


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_was_said():
    with pytest.raises(RankError, match=r"(?i)timed out"):
        run_ranks(2, _stalls, 60.0, setting=Setting(timeout_seconds=1.0))


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match=r"timeout_seconds must be more than 0, got .*--timeout-seconds 60"):
        Setting(timeout_seconds=seconds)
