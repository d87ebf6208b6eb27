"""What benchmarks share: what they ran on, whether it was idle, the memory that a call takes, and their files."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console


def check_device(device: str) -> None:
    """Raise unless it names a device that is there."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}. Write --device cpu.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda wants a GPU that torch can use, got none. Write --device cpu.")


def machine(command: str, options: dict[str, Any]) -> dict[str, Any]:
    """Say what was run, with what, on what."""
    words, given = command.split()[1:], sys.argv[1:]
    given = given[len(words) :] if given[: len(words)] == words else given
    models = [line.split(":", 1)[1].strip() for line in lines_of("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([*command.split(), *given]),
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in options.items()},
        "python": platform.python_version(),
        "laconic": version("laconic"),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def introduce(console: Console, about: dict[str, Any], more: str) -> None:
    """Say what runs on what; and whether something else has run there, which makes times worthless."""
    where = about.get("gpu") or f"{about['cpu']}, {about['cores']} cores"
    console.print(f"kernels in use: [bold]{about['kernels']}[/], {more}", highlight=False)
    console.print(f"{where}, torch {about['torch']}", highlight=False)
    if (about["load_before"] or 0.0) > 0.25 * (about["cores"] or 1):
        console.print(
            f"[yellow]The load was {about['load_before']:.1f} on {about['cores']} cores before this began: other "
            f"work on them makes these times wrong, those of several threads by far. Wait until it is done.[/]"
        )


def save(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result, if it is wanted."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def lines_of(path: str) -> list[str]:
    """Return the lines of a file that only some systems have."""
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def kilobytes(path: str, key: str) -> int | None:
    """Return what Linux says about memory under a name."""
    found = [line.split()[1] for line in lines_of(path) if line.startswith(f"{key}:")]
    return int(found[0]) if found else None


def extra_bytes(work: Callable[[], object], *, cuda: bool) -> int | None:
    """Return how much memory a call takes at its peak beyond what is held; None where that cannot be seen."""
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - allocated
    try:
        # Pages that the heap keeps from earlier calls would hide what this one takes.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    resident = kilobytes("/proc/self/status", "VmRSS") or 0
    kept = work()
    peak = kilobytes("/proc/self/status", "VmHWM") or 0
    del kept
    return 1024 * max(0, peak - resident)
