"""A run's folder: its spec, what it ran on, a line every few steps, checkpoints, and in the end its result."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch

_KEPT = 2


class RunFolder:
    """The files of one run. What is written replaces what was there in one move: nothing is ever half there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, spec: dict[str, Any], environment: dict[str, Any], *, from_step: int) -> None:
        """Write down what runs, and keep the lines of steps.jsonl up to the step it goes on from."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "spec.json", spec)
        write_json(self.path / "environment.json", environment)
        (self.path / "result.json").unlink(missing_ok=True)
        kept = [line for line in read_lines(self.path / "steps.jsonl") if line["step"] <= from_step]
        _replace(self.path / "steps.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    def add(self, line: dict[str, Any]) -> None:
        """Append a line to steps.jsonl. Numbers that are not finite become null, which JSON has."""
        with (self.path / "steps.jsonl").open("a") as file:
            file.write(json.dumps(finite(line)) + "\n")

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result."""
        write_json(self.path / "result.json", finite(result))

    def spec(self) -> dict[str, Any]:
        """Read the spec of a run that was begun."""
        path = self.path / "spec.json"
        if not path.exists():
            raise FileNotFoundError(
                f"{self.path} has no spec.json: it is not the folder of a run. Give one that is."
            )
        return read_json(path)

    def result(self) -> dict[str, Any] | None:
        """Read the result, if there is one."""
        path = self.path / "result.json"
        return read_json(path) if path.exists() else None

    def save_rank(self, step: int, name: str, state: dict[str, Any]) -> None:
        """Write one rank's part of a checkpoint."""
        folder = self._checkpoint(step)
        folder.mkdir(parents=True, exist_ok=True)
        half = folder / f".{name}.half"
        torch.save(state, half)
        half.replace(folder / f"{name}.pt")

    def seal(self, step: int) -> None:
        """Make a checkpoint the one to go on from, once every rank has written its part; drop older ones."""
        write_json(self.path / "checkpoints" / "latest.json", {"step": step})
        for old in sorted(self.path.glob("checkpoints/step-*"))[:-_KEPT]:
            shutil.rmtree(old)

    def latest(self) -> int:
        """Return the step to go on from, 0 if nothing was saved."""
        path = self.path / "checkpoints" / "latest.json"
        return int(json.loads(path.read_text())["step"]) if path.exists() else 0

    def load_rank(self, step: int, name: str) -> dict[str, Any]:
        """Read one rank's part of a checkpoint."""
        path = self._checkpoint(step) / f"{name}.pt"
        if not path.exists():
            raise FileNotFoundError(
                f"the checkpoint of step {step} has no {path.name} in {path.parent}. Resume on as many workers as "
                f"wrote it, with the folder shared between machines."
            )
        read: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        return read

    def _checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:08d}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a steps.jsonl; a last line that was cut off is left out."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, at any depth.

    >>> finite({"loss": float("nan"), "layers": [1.0]})
    {'loss': None, 'layers': [1.0]}
    """
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """Read what ``write_json`` wrote."""
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write data in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps(data, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(text)
    half.replace(path)
