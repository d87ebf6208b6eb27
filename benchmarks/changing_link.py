"""Methods over a link that slows down in the middle of a run: how soon each of them reaches a loss. Linux, as root.

    laconic data import ptb FOLDER
    python benchmarks/changing_link.py --out benchmarks/results/changing_link.json
    python benchmarks/changing_link.py --table benchmarks/results/changing_link.json

Every rank is ``laconic train`` in a network namespace of its own that sends at a limited rate. All methods have the
same seed, rate, data and seconds; the link changes at the same second of training. The clock is that of
steps.jsonl, which stands still while the model is evaluated. The target is the validation loss that the best fixed
density has at a share of the time.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from link_curves import judge_, table
from rich.console import Console

from laconic.lab.data.home import default_home
from laconic.lab.data.kinds import Text
from laconic.lab.data.store import load
from laconic.lab.folder import read_json, read_lines, write_json
from laconic.lab.machine import machine
from laconic.lab.network.crew import killed_in_the_end, place_of
from laconic.lab.network.hosts import Hosts, shaped_hosts

_TOPK = "topk:density={}:memory=update:scope=model"
METHODS = ("dense", *(_TOPK.format(density) for density in (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)))
_PORT = 29613
# The limit becomes lower while hosts send: no packet may be larger than the smaller bucket.
_PACKET_BYTES = 4_000
_KEPT = ("step", "seconds", "loss", "eval_loss", "wire_bytes", "density", "interface_bytes")
# To load torch and the data, and to compile kernels.
_START_SECONDS = 180
# A step that a large message makes long is then broken off.
_STOP_SECONDS = 20
# For so long it is looked whether others work.
_LOOK_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train with each method over the same changing link; a second call goes on where a first broke off."""

    out: Path = Path("changing_link.json")
    """Where the results go; rewritten after every run. Runs that it has already are not made again."""
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    methods: tuple[str, ...] = METHODS
    """Methods with their settings."""
    rounds: int = 1
    """How often each is run; the methods take turns, so that they share the machine's good and bad minutes."""
    quiet: float = 0.3
    """A run is good if other work took at most so many cores meanwhile."""
    tries: int = 2
    """Runs that are not are made anew, until there have been so many; the quietest counts."""
    wait_seconds: float = 60.0
    """Wait at most so long before a run for other work to end."""
    ranks: int = 2
    """Hosts, each with one rank and one thread."""
    fast: float = 200.0
    """Megabits a second that a host can send at first."""
    slow: float = 10.0
    """Megabits a second later."""
    change_at: float = 20.0
    """Second of training at which the link slows down."""
    seconds: float = 60.0
    """Seconds of training of every run."""
    target_share: float = 0.8
    """The target is what the best fixed density has reached by this share of the seconds."""
    batch: int = 8
    """Streams of text a rank and step."""
    hidden: int = 200
    """Width of the LSTM's two layers, and of its embedding: 200 makes 4.7 million parameters."""
    rate: float = 30.0
    """Learning rate, constant."""
    clip: float = 0.25
    """Norm to which the mean gradient is clipped."""
    eval_every: int = 10
    """Steps between evaluations."""
    valid_lines: int = 200
    """Lines of the validation text that count."""
    data_home: Path = field(default_factory=default_home)
    """Where laconic data keeps PTB."""

    def command(self, method: str, text: Path, out: Path) -> list[str]:
        """Return what every rank runs."""
        said = {
            "method": method, "data": text, "level": "word", "hidden": self.hidden, "out": out, "device": "cpu",
            "steps": 100_000, "batch": self.batch, "rate": self.rate, "clip": self.clip, "schedule": "constant",
            "eval-every": self.eval_every, "log-every": min(5, self.eval_every), "checkpoint-every": 100_000,
        }  # fmt: skip
        words = [word for name, value in said.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "laconic", "train", "lm", *words, "--json"]


def main(options: Options) -> None:
    if options.table is None:
        run_all(options)
    result = json.loads((options.table or options.out).read_text())
    Console(width=180).print(table(result))


def run_all(options: Options) -> None:
    """Run what the file does not have yet, in turns."""
    settings = {name: value for name, value in asdict(options).items() if name not in _NOT_SETTINGS}
    before = read_json(options.out)
    if before and before["settings"] != settings:
        raise SystemExit(f"{options.out} has runs with {before['settings']}, not {settings}. Name another file.")
    about = machine("python benchmarks/changing_link.py", {})
    about.pop("options")
    result = about | {"settings": settings, "runs": before.get("runs", [])}
    judge_(result, options.target_share)
    with tempfile.TemporaryDirectory() as scratch:
        text = _shorter_text(options, Path(scratch) / "text")
        for turn in range(options.rounds):
            for method in options.methods:
                if any((run["method"], run["turn"]) == (method, turn) for run in result["runs"]):
                    continue
                print(f"turn {turn}: {method}", file=sys.stderr, flush=True)
                result["runs"].append({"method": method, "turn": turn} | _quietest(options, method, text))
                judge_(result, options.target_share)
                write_json(options.out, result)


def _quietest(options: Options, method: str, text: Path) -> dict[str, Any]:
    """Run until others leave the cores alone, or there are no tries left; return the run they disturbed least."""
    runs: list[dict[str, Any]] = []
    while len(runs) < options.tries and not any(_others(run) <= options.quiet for run in runs):
        _wait_for_quiet(options)
        with (
            tempfile.TemporaryDirectory() as scratch,
            shaped_hosts(options.ranks, packet_bytes=_PACKET_BYTES) as hosts,
        ):
            runs.append(Run(options, hosts, method, text, Path(scratch) / "out").made())
    return min(runs, key=_others)


def _others(run: dict[str, Any]) -> float:
    return float(run["cores_taken_by_others"])


def _wait_for_quiet(options: Options) -> None:
    until = time.monotonic() + options.wait_seconds
    while time.monotonic() < until:
        busy = _busy_seconds()
        time.sleep(_LOOK_SECONDS)
        if _busy_seconds() - busy <= options.quiet * _LOOK_SECONDS:
            return


# What may differ between calls that go on with one file.
_NOT_SETTINGS = ("out", "table", "methods", "rounds", "quiet", "tries", "wait_seconds", "data_home", "target_share")


def _shorter_text(options: Options, folder: Path) -> Path:
    """Write PTB with less to validate on, so that evaluations take a moment."""
    text = load("ptb", options.data_home)
    if not isinstance(text, Text):
        raise TypeError(f"ptb must be text, got {type(text).__name__}. Import it again: laconic data import ptb.")
    folder.mkdir()
    cut = "\n".join(text.valid.split("\n")[: options.valid_lines])
    for name, part in {"train": text.train, "valid": cut, "test": cut}.items():
        (folder / f"{name}.txt").write_text(part)
    return folder


class Run:
    """One training over the changing link, followed from outside."""

    def __init__(self, options: Options, hosts: Hosts, method: str, text: Path, out: Path) -> None:
        self.options, self.hosts, self.out = options, hosts, out
        self.command = options.command(method, text, out / "run")
        self.lines: list[dict[str, Any]] = []
        self.changed_at: float | None = None
        self._heard = 0.0

    def made(self) -> dict[str, Any]:
        """Train, and return the curve and what else went on."""
        self.out.mkdir()
        self.hosts.limit(self.options.fast)
        load, busy, own, began = os.getloadavg()[0], _busy_seconds(), _own_seconds(), time.monotonic()
        with killed_in_the_end() as ranks:
            for rank in range(self.options.ranks):
                ranks.append(self._start(rank))
            self._follow(ranks)
            for process in ranks:
                process.send_signal(signal.SIGTERM)
            # Ranks stop when they next agree to, after a step that can be long; its result is not needed.
            with suppress(subprocess.TimeoutExpired):
                ranks[0].wait(_STOP_SECONDS)
        wall, others = time.monotonic() - began, _busy_seconds() - busy - (_own_seconds() - own)
        return {
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "cores_taken_by_others": round(others / wall, 3),
            "link_changed_at": self.changed_at,
            "step_seconds": self._step_seconds(),
            "settings": read_json(self.out / "run" / "result.json").get("settings"),
            "curve": [{key: line[key] for key in _KEPT if key in line} for line in self.lines],
        }

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        ranks = self.options.ranks
        environment = place_of(rank, ranks, self.hosts, _PORT, node_size=ranks)
        return self.hosts.start(rank, self.command, environment, self.out / f"rank-{rank}.log")

    def _follow(self, ranks: list[subprocess.Popen[bytes]]) -> None:
        """Read lines as they come, slow the link down at its second, and return when the time is over."""
        began = time.monotonic()
        while True:
            time.sleep(0.02)
            for rank, process in enumerate(ranks):
                if process.poll() is not None:
                    said = (self.out / f"rank-{rank}.log").read_text(errors="replace")
                    raise SystemExit(f"rank {rank} ended with {process.returncode}:\n{said[-2000:]}")
            self._read()
            now = time.monotonic()
            if not self.lines and now - began > _START_SECONDS:
                raise SystemExit(f"no step within {_START_SECONDS} s: see what else this machine does.")
            if not self.lines:
                continue
            # A line is written when its evaluation is over and the clock goes on.
            seconds = self.lines[-1]["seconds"] + now - self._heard
            if self.changed_at is None and seconds >= self.options.change_at:
                self.hosts.limit(self.options.slow)
                self.changed_at = round(seconds, 3)
            if seconds >= self.options.seconds:
                return

    def _read(self) -> None:
        lines = read_lines(self.out / "run" / "steps.jsonl")
        if len(lines) > len(self.lines):
            self._heard = time.monotonic()
            lines[-1]["interface_bytes"] = self.hosts.sent_bytes(0)
            self.lines += lines[len(self.lines) :]

    def _step_seconds(self) -> dict[str, float | None]:
        """Return the middle of a step's seconds before and after the change."""
        change = self.changed_at or 0.0
        before = [line["step_seconds"] for line in self.lines[1:] if line["seconds"] <= change]
        after = [line["step_seconds"] for line in self.lines if line["seconds"] > change][1:]
        return {"fast": median(before) if before else None, "slow": median(after) if after else None}


def _busy_seconds() -> float:
    """Return the seconds that this machine's cores have worked so far."""
    user, nice, system, _, _, irq, softirq = (int(n) for n in Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
