"""Commands in processes of their own, so many at a time, all of which end when asked or when time is up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from laconic.lab.signals import StopWish

_GLANCE_SECONDS = 0.1
# What a run may take to end by itself once it was asked to: it may be in the middle of an evaluation.
_GRACE_SECONDS = 60.0
_MPS = "nvidia-cuda-mps-control"
# Each run is one of many on this machine.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


@dataclass(frozen=True, kw_only=True)
class Errand:
    """A command that writes ``out``; what it has to say goes to ``log``."""

    name: str
    command: Sequence[str]
    out: Path
    log: Path
    environment: Mapping[str, str]

    def start(self) -> subprocess.Popen[bytes]:
        """Start it."""
        with self.log.open("wb") as log:
            environment = {**os.environ, **self.environment}
            # With a session of its own it can be ended together with all that it has started.
            return subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )


def carried_out(errands: Sequence[Errand], *, jobs: int, wish: StopWish, seconds: float) -> Iterator[Errand]:
    """Run all, and hand each over when it has written its file; one that fails is told of on standard error.

    Once it is wished, or so many seconds have gone by, none is begun, and those under way are asked to end.
    """
    waiting, running, until = deque(errands), dict[str, tuple[Errand, subprocess.Popen[bytes]]](), None
    began = time.monotonic()
    try:
        while waiting or running:
            if until is None and (wish.wanted or time.monotonic() - began >= seconds):
                until = time.monotonic() + _GRACE_SECONDS
                waiting.clear()
                for _, process in running.values():
                    process.terminate()
            if until is not None and time.monotonic() > until:
                break
            while waiting and len(running) < jobs:
                errand = waiting.popleft()
                running[errand.name] = errand, errand.start()
            for errand, process in list(running.values()):
                if process.poll() is None:
                    continue
                del running[errand.name]
                if errand.out.exists():
                    yield errand
                elif until is None:
                    told = errand.log.read_text(errors="replace")[-2000:]
                    print(f"{errand.name} failed ({process.returncode}):\n{told}", file=sys.stderr)
            time.sleep(_GLANCE_SECONDS)
    finally:
        for _, process in running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def shared_gpu() -> Iterator[None]:
    """Let processes use one GPU at the same time, by NVIDIA's MPS, where it is there and works."""
    started = shutil.which(_MPS) is not None and _worked([_MPS, "-d"])
    # It may start where a container forbids it to work; no process would then get at the GPU.
    if started and not _worked([sys.executable, "-c", "import torch; torch.zeros(1, device='cuda').item()"]):
        print("MPS does not work here: runs take turns on the GPU.", file=sys.stderr)
        _quit_mps()
        started = False
    try:
        yield
    finally:
        if started:
            _quit_mps()


def _worked(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _quit_mps() -> None:
    try:
        subprocess.run([_MPS], input=b"quit\n", capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        print("MPS could not be ended.", file=sys.stderr)
