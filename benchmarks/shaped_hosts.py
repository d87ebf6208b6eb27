"""Hosts on one machine: network namespaces around a bridge, each with a rate at which it may send. Linux, as root.

Rates are kept by a token bucket (tc tbf) where a host's packets leave it; no latency is added. What a host has sent
is read behind the bucket, from the hub's end of its cable.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_HUB = "laconic-hub"
_HOST = "laconic-host-"
_CABLE = "cable"
_NETWORK = "10.213.0."
# A bucket holds what passes at the full rate in this time: much more, and small messages would travel for nothing.
_BUCKET_SECONDS = 0.003
_LEAST_BUCKET_BYTES = 5_000
_LARGEST_PACKET_BYTES = 4_000
_QUEUE_MILLISECONDS = 400


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """So many hosts on one bridge, each in a namespace of its own."""

    number: int

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"{_NETWORK}{host + 1}"

    @property
    def interface(self) -> str:
        """The name of a host's only interface, the same on each."""
        return _CABLE

    def start(
        self, host: int, command: Sequence[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; what it prints goes to a file. Its process id is the command's own."""
        with log.open("wb") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", f"{_HOST}{host}", *command],
                env=os.environ | environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def limit(self, megabits: float) -> None:
        """Let every host send at most so many megabits a second, from now on."""
        bucket = max(_LEAST_BUCKET_BYTES, int(megabits * 1e6 / 8 * _BUCKET_SECONDS))
        rate = ["rate", f"{round(megabits * 1e6)}bit", "burst", str(bucket), "latency", f"{_QUEUE_MILLISECONDS}ms"]
        for host in range(self.number):
            _run("tc", "-n", f"{_HOST}{host}", "qdisc", "replace", "dev", _CABLE, "root", "tbf", *rate)

    def sent_bytes(self, host: int) -> int:
        """Return how many bytes have left a host so far, with the headers of TCP, IP and Ethernet."""
        counter = f"/sys/class/net/{_CABLE}{host}/statistics/rx_bytes"
        return int(_run("ip", "netns", "exec", _HUB, "cat", counter))


@contextmanager
def shaped_hosts(number: int) -> Iterator[Hosts]:
    """Put hosts up, and take them down in the end, whatever happens; what an earlier call left goes first."""
    if os.geteuid() or shutil.which("tc") is None or shutil.which("ip") is None:
        raise SystemExit("namespaces want root, and ip and tc of iproute2. Run it in a virtual machine as root.")
    _take_down()
    try:
        _run("ip", "netns", "add", _HUB)
        _in(_HUB, "link", "add", "bridge", "type", "bridge")
        _in(_HUB, "link", "set", "bridge", "up")
        for host in range(number):
            _put_up(host)
        yield Hosts(number=number)
    finally:
        _take_down()


def _put_up(host: int) -> None:
    name, hub_end = f"{_HOST}{host}", f"{_CABLE}{host}"
    _run("ip", "netns", "add", name)
    _in(name, "link", "add", _CABLE, "type", "veth", "peer", "name", hub_end, "netns", _HUB)
    _in(name, "address", "add", f"{_NETWORK}{host + 1}/24", "dev", _CABLE)
    for interface in ("lo", _CABLE):
        _in(name, "link", "set", interface, "up")
    # A packet larger than the bucket, queued before the bucket shrank, would stop the cable for good.
    _in(name, "link", "set", _CABLE, "gso_max_size", str(_LARGEST_PACKET_BYTES))
    _in(_HUB, "link", "set", hub_end, "master", "bridge", "up")


def _take_down() -> None:
    names = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]
    for name in names:
        if name == _HUB or name.startswith(_HOST):
            # Namespaces live on while a process is in them: one whose parent was killed, say.
            for process in _run("ip", "netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            _run("ip", "netns", "delete", name)


def _in(namespace: str, *words: str) -> None:
    _run("ip", "-n", namespace, *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout
