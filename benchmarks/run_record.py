"""What is kept of a run: its scores, its curve, its bytes, and what it was trained with and on."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from laconic.lab.folder import finite
from laconic.lab.loop import Loop, Outcome
from laconic.lab.machine import lines_of
from laconic.lab.signals import StopWish

T = TypeVar("T")
# Lines of a run that are kept; all evaluations are.
MOST_LINES = 60
_OF_LINES = ("step", "epoch", "loss", "density", "clipped_share", "owed_norm", "wire_bytes", "metric")
_OF_EVALUATIONS = ("step", "epoch", "metric", "eval_loss", "loss", "wire_bytes")


class Lines:
    """Keeps the lines of a run, and wishes its end once its loss is not finite; ``aloud``, says each score."""

    def __init__(self, wish: StopWish, *, aloud: bool = False) -> None:
        self.kept: list[dict[str, Any]] = []
        self.diverged, self._wish, self._aloud = False, wish, aloud

    def line(self, line: dict[str, Any]) -> None:
        """Keep a line."""
        self.kept.append(line)
        if self._aloud and "metric" in line:
            print(f"epoch {line['epoch']:.2f}: {line['metric']:.4f}", flush=True)
        if not math.isfinite(line["loss"]):
            self.diverged = self._wish.wanted = True


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run at its end, as its first rank knows it."""

    loop: Loop
    lines: Lines
    outcome: Outcome
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return plain data; numbers that are not finite are null.

        ``valid_loss`` is that of the first split, at the last evaluation.
        """
        loop, outcome, stats, lines = self.loop, self.outcome, self.outcome.stats, self.lines
        curve = [_some(line, _OF_EVALUATIONS) for line in lines.kept if "metric" in line]
        told = {
            "metric": loop.work.metric.name,
            "lower_is_better": loop.work.metric.lower_is_better,
            "scores": outcome.scores,
            "best": outcome.totals.best,
            "valid_loss": curve[-1]["eval_loss"] if curve else None,
            "train_loss": outcome.last.get("loss"),
            "wire_bytes": stats.wire_bytes,
            "dense_bytes": stats.dense_bytes,
            "ratio": stats.ratio,
            "steps": stats.steps,
            "epochs": outcome.steps / loop.work.steps_per_epoch,
            "syncs": stats.syncs,
            "density": outcome.totals.density_sum / max(1, outcome.totals.density_lines),
            "clipped_share": outcome.clipped_share,
            "skipped_steps": stats.skipped_steps,
            "diverged": lines.diverged,
            "stopped": outcome.stopped and not lines.diverged,
            "seconds": self.seconds,
            "ranks": loop.place.ranks,
            "parameters": sum(p.numel() for p in loop.work.model.parameters()),
            "weights_sha256": outcome.weights_sha256,
            "device": device_name(loop.place.device),
            "course": asdict(loop.course),
            "curve": curve,
            "lines": [_some(line, _OF_LINES) for line in thinned(lines.kept, MOST_LINES)],
        }
        plain: dict[str, Any] = finite(told)
        return plain


def device_name(device: torch.device) -> str:
    """Name the chip."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    models = [line.split(":", 1)[1].strip() for line in lines_of("/proc/cpuinfo") if line.startswith("model name")]
    return models[0] if models else platform.machine()


def thinned(items: Sequence[T], most: int) -> list[T]:
    """Return at most so many, evenly spread, the first and the last among them.

    >>> thinned([0, 1, 2, 3, 4], 3)
    [0, 2, 4]
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _some(line: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    # Of what is drawn six digits are enough.
    return {key: _short(line[key]) for key in keys if key in line}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
