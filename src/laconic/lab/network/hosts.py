"""Hosts on one machine: network namespaces around a bridge, each with a rate at which it may send. Linux, as root.

Rates are kept by a token bucket (tc tbf) where a host's packets leave it; no latency is added. What a host has sent
is read behind the bucket, from the hub's end of its cable. Packets stay among the hosts: the bridge has no way out.
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

from laconic.lab.network.ending import ended_in_order, undisturbed

_HUB = "laconic-hub"
_HOST = "laconic-host-"
_CABLE = "cable"
_NETWORK = "10.213.0."
_PROBE = "laconic-probe-"
# Only root has hosts; TMPDIR, which may differ from call to call, must not part them.
_LOCK = Path("/run/laconic-hosts.lock")
# A bucket holds what passes at the full rate in this time: much more, and small messages would travel for nothing.
_BUCKET_SECONDS = 0.003
_LEAST_BUCKET_BYTES = 5_000
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

    def namespace(self, host: int) -> Path:
        """Return the file that stands for a host's network: a process that is to live there enters it (setns)."""
        return Path("/run/netns") / f"{_HOST}{host}"

    def connect(self, host: int, *, up: bool) -> None:
        """Plug a host's cable into the bridge, or pull it out."""
        _in(_HUB, "link", "set", f"{_CABLE}{host}", "up" if up else "down")

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

    def limit(self, megabits: float | None) -> None:
        """Let every host send at most so many megabits a second from now on; None: as many as it can."""
        if megabits is None:
            for host in range(self.number):
                _run("tc", "-n", f"{_HOST}{host}", "qdisc", "replace", "dev", _CABLE, "root", "noqueue")
            return
        rate = _bucket(megabits)
        for host in range(self.number):
            _run("tc", "-n", f"{_HOST}{host}", "qdisc", "replace", "dev", _CABLE, "root", "tbf", *rate)

    def sent_bytes(self, host: int) -> int:
        """Return how many bytes have left a host so far, with the headers of TCP, IP and Ethernet."""
        counter = f"/sys/class/net/{_CABLE}{host}/statistics/rx_bytes"
        return int(_run("ip", "netns", "exec", _HUB, "cat", counter))


def missing() -> str:
    """Say what this machine lacks for hosts of its own; nothing if it lacks nothing."""
    lacking = _absent()
    if lacking:
        return lacking
    refused = _refused()
    needed = "hosts on this machine need CAP_SYS_ADMIN and CAP_NET_ADMIN, and bridge, veth and tbf of the kernel"
    return f"{needed}: {refused}" if refused else ""


def _absent() -> str:
    absent = [word for word in ("ip", "tc") if shutil.which(word) is None]
    if absent:
        return f"hosts on this machine need {' and '.join(absent)} of iproute2, which is not installed"
    return "hosts on this machine need root, to make network namespaces" if os.geteuid() else ""


def _refused() -> str:
    """Try on a namespace of its own what hosts are made of, as root may lack the right; say what went wrong."""
    name = f"{_PROBE}{os.getpid()}"
    try:
        with undisturbed():
            _run("ip", "netns", "add", name)
            try:
                _in(name, "link", "add", "bridge", "type", "bridge")
                _in(name, "link", "add", _CABLE, "type", "veth", "peer", "name", f"{_CABLE}0")
                _run("tc", "-n", name, "qdisc", "replace", "dev", _CABLE, "root", "tbf", *_bucket(1.0))
            finally:
                _run("ip", "netns", "delete", name)
    except OSError as error:
        return str(error)
    return ""


@contextmanager
def shaped_hosts(number: int, *, packet_bytes: int | None = None) -> Iterator[Hosts]:
    """Put hosts up, and take them down in the end, whatever happens; what a killed call left goes first.

    Give ``packet_bytes`` where a limit becomes lower while hosts send: a packet larger than the bucket, queued
    before the bucket shrank, would stop the cable for good.
    """
    lacking = _absent()
    if lacking:
        raise OSError(f"{lacking}. Run it as root on a Linux machine that has them, a virtual one, say.")
    with _alone(), ended_in_order():
        try:
            _take_down()
            _run("ip", "netns", "add", _HUB)
            _in(_HUB, "link", "add", "bridge", "type", "bridge")
            _in(_HUB, "link", "set", "bridge", "up")
            for host in range(number):
                _put_up(host, packet_bytes)
            yield Hosts(number=number)
        finally:
            with undisturbed():
                _take_down()


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the names of the hosts: a second call would take the first one's down."""
    import fcntl  # Unix has it, where alone this is called

    with _LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError("another benchmark has hosts up on this machine. Wait until it is done.") from None
        yield


def _put_up(host: int, packet_bytes: int | None) -> None:
    name, hub_end = f"{_HOST}{host}", f"{_CABLE}{host}"
    _run("ip", "netns", "add", name)
    _in(name, "link", "add", _CABLE, "type", "veth", "peer", "name", hub_end, "netns", _HUB)
    _in(name, "address", "add", f"{_NETWORK}{host + 1}/24", "dev", _CABLE)
    for interface in ("lo", _CABLE):
        _in(name, "link", "set", interface, "up")
    if packet_bytes is not None:
        _in(name, "link", "set", _CABLE, "gso_max_size", str(packet_bytes))
    _in(_HUB, "link", "set", hub_end, "master", "bridge", "up")


def _bucket(megabits: float) -> list[str]:
    size = max(_LEAST_BUCKET_BYTES, int(megabits * 1e6 / 8 * _BUCKET_SECONDS))
    return ["rate", f"{round(megabits * 1e6)}bit", "burst", str(size), "latency", f"{_QUEUE_MILLISECONDS}ms"]


def _take_down() -> None:
    """Remove all that there is; what cannot be removed does not keep the rest, and is told in the end."""
    failed: list[str] = []
    names = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]
    for name in names:
        if name == _HUB or name.startswith(_HOST):
            # Namespaces live on while a process is in them: one whose parent was killed, say.
            for work in (_end_all_in, _delete):
                try:
                    work(name)
                except OSError as error:
                    failed.append(str(error))
    if failed:
        raise OSError(f"hosts could not be taken down: {'; '.join(failed)}. Look with ip netns list.")


def _end_all_in(name: str) -> None:
    for process in _run("ip", "netns", "pids", name).split():
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def _delete(name: str) -> None:
    _run("ip", "netns", "delete", name)


def _in(namespace: str, *words: str) -> None:
    _run("ip", "-n", namespace, *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout
