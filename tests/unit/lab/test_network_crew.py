"""Crews on loopback: what ranks are told and return, what fails, what is killed; and every peer that is shipped."""

from __future__ import annotations

import os

import pytest
import torch

from laconic.lab.launch import RankError
from laconic.lab.network.crew import run_crew
from laconic.lab.peers import SHIPPED, peer_of
from unit.lab import network_works

pytestmark = pytest.mark.timeout(90)
OURS = ("topk:density=0.1", "spartan")


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_rank_that_raises_is_heard():
    with pytest.raises(RankError, match=r"(?s)rank 0 failed:\nTraceback.*ValueError: this rank does not want to"):
        run_crew(1, network_works.refuse, hosts=None, seconds=60)


def test_a_rank_that_is_killed_is_named():
    with pytest.raises(RankError, match="rank 1 was ended by SIGKILL without a word"):
        run_crew(2, network_works.die_on_the_second, hosts=None, seconds=60)


def test_a_crew_that_takes_too_long_is_killed():
    with pytest.raises(RankError, match=r"not done within 0.2 s, and were killed. They printed nothing."):
        run_crew(1, network_works.say_and_sleep, hosts=None, seconds=0.2)


def test_what_a_caller_raises_ends_the_crew():
    def interrupt(text: str) -> None:
        raise InterruptedError(text)

    with pytest.raises(InterruptedError) as raised:
        run_crew(1, network_works.say_and_sleep, hosts=None, seconds=60, hear=interrupt)
    assert _gone(int(str(raised.value)))


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="ranks must be a whole number"):
        run_crew(0, network_works.introduced, "", hosts=None, seconds=60)
    with pytest.raises(ValueError, match="seconds must be a finite number"):
        run_crew(2, network_works.introduced, "", hosts=None, seconds=float("inf"))


def test_every_shipped_peer_trains_and_leaves_the_ranks_with_equal_weights():
    peers = [*SHIPPED, "powersgd-hook:4", "post-local:2", *OURS]
    words = tuple(word for word in peers if not peer_of(word).missing())
    heard: list[str] = []
    first, second = run_crew(2, network_works.several, words, hosts=None, seconds=80, hear=heard.append)
    for word in words:
        assert first[word]["after"].isfinite().all(), word
        assert not torch.equal(first[word]["after"], first[word]["before"]), word
        assert torch.equal(first[word]["after"], second[word]["after"]) == (word != "alone"), word
    # By different roads: both average models after every fourth step.
    if "torchft-local" in words:
        torch.testing.assert_close(first["torchft-local"]["after"], first["post-local"]["after"])
    _check_meetings(first, second)
    _check_places(first["place"], second["place"])
    assert heard == ["one of 2"]


def _check_meetings(first, second):
    assert first["met"] == second["met"] == [[10.0 * turn, 10.0 * turn + 1] for turn in range(5)]
    assert "has left" in first["left"]
    assert "ranks [1] did not come" in first["late"]


def _check_places(first, second):
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert (first["WORLD_SIZE"], first["GLOO_SOCKET_IFNAME"], first["threads"]) == ("2", "lo", 1)
    assert _gone(first["pid"])
    assert _gone(second["pid"])
