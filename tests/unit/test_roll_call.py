"""Who was heard after an exchange failed: what is said of it, and that asking neither hangs nor raises."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from torch._C._distributed_c10d import HashStore

from laconic.transports import roll_call
from laconic.transports.roll_call import Word, hold, sentence

HERE = Word(where="topk of weight in step 3", how="timed out")
LATE = Word(where="topk of weight in step 2", how="lost its connection")


class Open:
    """A store that lives in this process, of which a clone is the same one."""

    def __init__(self) -> None:
        self._store = HashStore()
        self.set, self.get, self.check = self._store.set, self._store.get, self._store.check

    def clone(self):
        return self


@pytest.fixture
def group(monkeypatch):
    """Three ranks of a group that only has a name and a store; counts are those of a process of its own."""
    monkeypatch.setattr(roll_call, "_enrolled", Counter())
    monkeypatch.setattr(roll_call, "_held", Counter())
    monkeypatch.setattr(roll_call, "TIMED_OUT_SECONDS", 0.2)
    monkeypatch.setattr(roll_call, "CLOSED_SECONDS", 0.1)
    monkeypatch.setattr(roll_call.dist, "get_process_group_ranks", lambda group: group.ranks)
    store = Open()
    return SimpleNamespace(group_name="7", ranks=[0, 1, 2], get_group_store=lambda: store)


def _as_another_process(monkeypatch):
    monkeypatch.setattr(roll_call, "_enrolled", Counter(roll_call._enrolled))
    monkeypatch.setattr(roll_call, "_held", Counter())


def _said(heard, ranks=(0, 1, 2), **changes):
    return sentence(heard, ranks, **({"rank": 0, "seconds": 2.0, "lost": None} | changes))


def test_ranks_that_wait_in_the_same_exchange_are_told_from_those_not_heard():
    text = _said({0: HERE, 2: HERE})
    assert "Heard since: ranks 0 (timed out) and 2 (timed out), in this exchange; not heard within 2 s" in text
    assert text.endswith(": rank 1.")


def test_a_rank_in_another_exchange_is_named_with_it():
    text = _said({0: HERE, 1: HERE, 2: LATE})
    assert "; rank 2 (lost its connection), in topk of weight in step 2. That is all of them." in text


def test_global_ranks_are_said_where_they_differ():
    text = _said({0: HERE, 1: HERE}, ranks=(0, 3, 5))
    assert "ranks 0 (timed out) and 1 (global rank 3, timed out)" in text
    assert "rank 2 (global rank 5)" in text


def test_a_store_that_is_gone_is_said_with_what_was_heard_before():
    text = _said({0: HERE, 2: HERE}, lost="Broken pipe")
    assert "ranks 0 (timed out) and 2 (timed out), in this exchange. Nothing is known of rank 1" in text
    assert "cannot be asked (Broken pipe)" in text


def test_a_rank_hears_who_has_failed_in_the_same_way(group, monkeypatch):
    hold(group, 2, HERE.where, RuntimeError("Timed out waiting"))
    _as_another_process(monkeypatch)
    text = hold(group, 0, HERE.where, RuntimeError("Connection closed by peer"))
    assert "ranks 0 (lost its connection) and 2 (timed out), in this exchange; not heard within 0.1 s" in text


@pytest.mark.parametrize("attached", [False, True], ids=["the same link", "attached anew"])
def test_words_of_an_earlier_failure_are_not_taken_for_this_one(group, monkeypatch, attached):
    hold(group, 2, HERE.where, RuntimeError("Timed out"))
    _as_another_process(monkeypatch)
    assert "2 (timed out)" in hold(group, 0, HERE.where, RuntimeError("Timed out"))
    if attached:
        roll_call.enroll(group)
    again = hold(group, 0, HERE.where, RuntimeError("Timed out"))
    assert "no other rank" in again
    assert "ranks 1 and 2" in again


class Silent(Open):
    """A store whose host was stopped: questions are sent, and never answered."""

    def __init__(self, asked: threading.Event) -> None:
        super().__init__()
        self.check = lambda keys: asked.wait(30)


class Lost(Open):
    """A store that went with its host."""

    def clone(self):
        raise RuntimeError("Broken pipe\nat tcp.cpp:100")


def test_a_store_that_never_answers_is_not_waited_for(group):
    over, began = threading.Event(), time.monotonic()
    group.get_group_store = lambda: Silent(over)
    text = hold(group, 0, HERE.where, RuntimeError("Timed out"))
    # Not a timing: it would be the 30 seconds that the store is silent for.
    assert time.monotonic() - began < 20
    over.set()
    assert "cannot be asked (it does not answer)" in text


def test_a_store_that_is_lost_or_never_was_is_no_second_error(group):
    group.get_group_store = lambda: Lost()
    assert "ranks 1 and 2" in (text := hold(group, 0, HERE.where, RuntimeError("Timed out")))
    assert "(Broken pipe)" in text
    del group.get_group_store
    assert "cannot be asked" in hold(group, 0, HERE.where, RuntimeError("Timed out"))


def test_a_group_that_is_gone_is_no_second_error(group, monkeypatch):
    def destroyed(group):
        raise ValueError(f"group {group.group_name} does not exist")

    monkeypatch.setattr(roll_call.dist, "get_process_group_ranks", destroyed)
    assert hold(group, 0, "x", RuntimeError("y")) == ("Nothing is known of the other ranks: group 7 does not exist")
