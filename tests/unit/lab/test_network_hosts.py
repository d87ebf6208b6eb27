"""Hosts without any: what is missing is said, what cannot be removed does not keep the rest. Nothing is put up."""

from __future__ import annotations

import fcntl

import pytest

from laconic.lab.network import hosts
from laconic.lab.network.steps import BenchSteps


class Commands:
    """Stands where commands are run: notes them, answers some and fails others."""

    def __init__(self, fails: tuple[str, ...] = (), answers: dict[str, str] | None = None) -> None:
        self.fails, self.answers, self.ran = fails, answers or {}, []

    def __call__(self, *words: str) -> str:
        command = " ".join(words)
        self.ran.append(command)
        if any(command.startswith(start) for start in self.fails):
            raise OSError(f"{command} failed: Operation not permitted")
        return self.answers.get(command, "")


@pytest.fixture
def as_root(monkeypatch):
    """Return what has commands of iproute2 run by something else, as root."""
    monkeypatch.setattr(hosts.shutil, "which", lambda word: word)
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 0)

    def stand_in(**more: object) -> Commands:
        commands = Commands(**more)
        monkeypatch.setattr(hosts, "_run", commands)
        return commands

    return stand_in


def test_without_root_one_line_says_what_is_missing_and_offers_loopback(as_root, monkeypatch):
    commands = as_root()
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
    with pytest.raises(OSError, match=r"need root, to make network namespaces\. .* write --loopback\."):
        BenchSteps().run()
    with pytest.raises(OSError, match="need root"), hosts.shaped_hosts(2):
        pass
    monkeypatch.setattr(hosts.shutil, "which", lambda word: None if word == "tc" else word)
    with pytest.raises(OSError, match=r"need tc of iproute2, which is not installed\. .* write --loopback\."):
        BenchSteps().run()
    assert commands.ran == []


def test_root_that_may_not_make_namespaces_is_offered_loopback(as_root):
    as_root(fails=("ip netns add",))
    said = r"need CAP_SYS_ADMIN .*: ip netns add laconic-probe-\d+ failed: Operation not permitted\. .*--loopback\."
    with pytest.raises(OSError, match=said):
        BenchSteps().run()


@pytest.mark.parametrize("fails", [(), ("ip -n laconic-probe-",), ("tc",)])
def test_what_was_tried_is_removed(as_root, fails):
    commands = as_root(fails=fails)
    assert ("Operation not permitted" in hosts.missing()) == bool(fails)
    name = commands.ran[0].removeprefix("ip netns add ")
    assert commands.ran[-1] == f"ip netns delete {name}"
    # Hosts that are up meanwhile have other names.
    assert name.startswith("laconic-probe-")


def test_what_cannot_be_removed_does_not_keep_the_rest(as_root):
    listed = {"ip netns list": "laconic-hub (id: 1)\nother\n\nlaconic-host-0\nlaconic-host-1\n"}
    commands = as_root(fails=("ip netns pids laconic-hub", "ip netns delete laconic-host-0"), answers=listed)
    with pytest.raises(OSError, match=r"taken down: ip netns pids laconic-hub .*; ip netns delete laconic-host-0 "):
        hosts._take_down()
    deleted = [command for command in commands.ran if "delete" in command]
    assert deleted == [f"ip netns delete laconic-{name}" for name in ("hub", "host-0", "host-1")]


def test_one_benchmark_at_a_time_has_hosts(as_root, tmp_path, monkeypatch):
    commands = as_root()
    monkeypatch.setattr(hosts, "_LOCK", tmp_path / "lock")
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = r"another benchmark has hosts up on this machine\. Wait"
        with pytest.raises(OSError, match=said), hosts.shaped_hosts(2):
            pass
    assert commands.ran == []
    with hosts.shaped_hosts(2):
        assert "ip netns add laconic-host-1" in commands.ran
