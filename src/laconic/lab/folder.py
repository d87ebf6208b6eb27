"""A run's folder: its spec, what it ran on, a line every few steps, checkpoints, and in the end its result."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import IO, Any

import torch

from laconic.lab.training import Course

_KEPT = 2
# A checkpoint that has it is whole.
_SEAL = "sealed"
# Where a part says which one it is.
_OF = "of"


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
        # What was begun later was never sealed, or is of a run that is made anew.
        for late in self.path.glob("checkpoints/step-*"):
            if int(late.name.removeprefix("step-")) > from_step:
                shutil.rmtree(late)
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
        spec = read_json(self.path / "spec.json")
        if not spec:
            raise FileNotFoundError(
                f"{self.path} has no spec.json: it is not the folder of a run. Give one that is."
            )
        return spec

    def course(self) -> Course | None:
        """Read the settings of a run that was begun, with nothing left open."""
        course = read_json(self.path / "spec.json").get("course")
        return Course(**course) if course else None

    def result(self) -> dict[str, Any] | None:
        """Read the result, if there is one."""
        return read_json(self.path / "result.json") or None

    def save_rank(self, step: int, name: str, state: dict[str, Any]) -> None:
        """Write one rank's part of a checkpoint."""
        folder = self._checkpoint(step)
        folder.mkdir(parents=True, exist_ok=True)
        half = folder / f".{name}.half"
        try:
            with half.open("wb") as file:
                torch.save(state | {_OF: [step, name]}, file)
                _to_disk(file)
            _replace(folder / f"{name}.sha256", _digest(half) + "\n")
        except (OSError, RuntimeError) as error:
            # torch raises RuntimeError where it could not write. What is no checkpoint must not fill the disk.
            half.unlink(missing_ok=True)
            raise OSError(f"{half.with_name(f'{name}.pt')}: {_cause(error)}") from error
        half.replace(folder / f"{name}.pt")

    def seal(self, step: int) -> None:
        """Make a checkpoint the one to go on from, once every rank has written its part; drop older ones."""
        _replace(self._checkpoint(step) / _SEAL, f"{step}\n")
        for old in sorted(self.path.glob("checkpoints/step-*"))[:-_KEPT]:
            # First of all: what is half removed is no checkpoint.
            (old / _SEAL).unlink(missing_ok=True)
            # What cannot be removed, for another holds it, is no reason to stop.
            shutil.rmtree(old, ignore_errors=True)

    def drop(self, step: int) -> None:
        """Remove what there is of a checkpoint that could not be written."""
        shutil.rmtree(self._checkpoint(step), ignore_errors=True)

    def latest(self) -> int:
        """Return the step to go on from, 0 if nothing was saved: the last one that was sealed and is still here."""
        if (self.path / "checkpoints" / "latest.json").is_file():
            raise ValueError(
                f"{self.path} has checkpoints of an earlier version, which this one cannot read. Go on with the "
                f"version that wrote them, or begin anew elsewhere."
            )
        sealed = [kept.parent.name for kept in self.path.glob(f"checkpoints/step-*/{_SEAL}")]
        return max((int(name.removeprefix("step-")) for name in sealed), default=0)

    def load_rank(self, step: int, name: str) -> dict[str, Any]:
        """Read one rank's part of a checkpoint."""
        path = self._checkpoint(step) / f"{name}.pt"
        if not path.exists():
            raise FileNotFoundError(
                f"the checkpoint of step {step} has no {path.name} in {path.parent}. Share the folder between "
                f"machines, or bring together what each of them has written."
            )
        written = path.with_suffix(".sha256")
        if not written.is_file() or written.read_text(errors="replace").strip() != _digest(path):
            raise ValueError(
                f"{path} is damaged: its bytes are not those that were written. Remove {path.parent}, and the run "
                f"goes on from the checkpoint before it."
            )
        read: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        of = read.pop(_OF, None)
        if of != [step, name]:
            raise ValueError(
                f"{path} is another part, or of another version: it says that it is {of}, not {[step, name]}. "
                f"Bring back what was written there, or remove {path.parent}, and the run goes on from the "
                f"checkpoint before it."
            )
        return read

    def _checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:08d}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a steps.jsonl; a run that still writes, or was killed, may leave half of a last one."""
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    lines: list[dict[str, Any]] = []
    for place, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            # Only what stands behind the last line break can be a half-written line.
            if place == len(texts):
                break
            raise ValueError(f"{path}, line {place} is no JSON: {text[:60]!r}. Remove the line.") from None
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise ValueError(f"{path}, line {place} must be an object with a step, got {text[:60]!r}.")
        lines.append(line)
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
    """Return the object in a file; an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}. Run the training again, or leave this folder out.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(found).__name__}. Is it laconic's file?")
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write data in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps(data, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with half.open("w") as file:
            file.write(text)
            _to_disk(file)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    half.replace(path)


def _to_disk(file: IO[Any]) -> None:
    """Have the content on the disk before its name is: a host that loses power must not find an empty file."""
    file.flush()
    os.fsync(file.fileno())


def _cause(error: BaseException) -> str:
    """Say what first went wrong: where a disk is full, torch tells of the write that came after."""
    while error.__context__ is not None:
        error = error.__context__
    return (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
