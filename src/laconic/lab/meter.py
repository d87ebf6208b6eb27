"""What a run has come to so far: losses since the last line, seconds of training, steps that were clipped."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Protocol

import torch


class Clock(Protocol):
    """What a run is timed by."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def start(self) -> None:
        """From here on training is timed."""
        ...

    def stop(self) -> None:
        """From here on the run is looked at."""
        ...

    def step(self, number: int) -> None:
        """A step begins."""
        ...


class WallClock:
    """The machine's own: it never stands."""

    def now(self) -> float:
        """Return the time in seconds."""
        return time.perf_counter()

    def start(self) -> None:
        """It runs anyway."""

    def stop(self) -> None:
        """It runs on."""

    def step(self, number: int) -> None:
        """It takes no notice."""


@dataclass
class Totals:
    """What is added up over a whole run, and saved with it. Seconds are those of training, without evaluation.

    ``epochs_before`` had gone by at ``steps_before``, when the number of ranks changed last. ``waits_bytes`` were
    sent for ``link.waits()`` since the run was started or resumed last; the link counts them too, until it ends.
    """

    seconds: float = 0.0
    data_seconds: float = 0.0
    clipped_steps: int = 0
    density_sum: float = 0.0
    density_lines: int = 0
    best: float | None = None
    lab_bytes: int = 0
    steps_before: int = 0
    epochs_before: float = 0.0
    waits_bytes: int = 0

    def epochs_at(self, step: int, steps_per_epoch: int) -> float:
        """Return how many epochs have gone by after a step."""
        return self.epochs_before + (step - self.steps_before) / steps_per_epoch

    def as_dict(self) -> dict[str, float | None]:
        """Return plain data."""
        return asdict(self)


class Meter:
    """A clock that stands still while the run is looked at, and sums of what steps had."""

    def __init__(self, device: torch.device, totals: Totals, clock: Clock | None = None) -> None:
        self.totals, self._device, self._clock = totals, device, clock or WallClock()
        self._running_since: float | None = None
        self.restart()

    def restart(self) -> None:
        """Begin a new line's worth of steps."""
        self.steps = 0
        # Read only when a line is written: to read a number is to wait for the GPU.
        self.loss, self._clipped = torch.zeros(2, dtype=torch.float64, device=self._device)
        self._seconds_before, self._data_before = self.totals.seconds, self.totals.data_seconds

    def start(self) -> None:
        """Let the clock run."""
        # What the clock waits for when it starts was asked for by training.
        self._running_since = self._clock.now()
        self._clock.start()

    def stop(self) -> None:
        """Stop the clock, once the device has done what it was given."""
        if self._running_since is None:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._clock.stop()
        self.totals.seconds += self._clock.now() - self._running_since
        self._running_since = None
        self.totals.clipped_steps += int(self._clipped)
        self._clipped.zero_()

    def stepped(self, loss: torch.Tensor, data_seconds: float, clipped: torch.Tensor | None) -> None:
        """Take a step in: its loss, what it waited for data, and whether it was clipped."""
        self.steps += 1
        self.loss += loss.detach()
        self.totals.data_seconds += data_seconds
        if clipped is not None:
            self._clipped += clipped

    def state_dict(self) -> dict[str, float]:
        """Return what has been added up since the last line."""
        since = {"seconds": self._seconds_before, "data_seconds": self._data_before}
        return since | {"steps": self.steps, "loss": float(self.loss)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from there."""
        self._seconds_before, self._data_before = state["seconds"], state["data_seconds"]
        self.steps = int(state["steps"])
        self.loss.fill_(state["loss"])

    @property
    def step_seconds(self) -> float:
        """Seconds a step since the last line."""
        return (self.totals.seconds - self._seconds_before) / max(1, self.steps)

    @property
    def data_share(self) -> float:
        """The share of the seconds since the last line that went by waiting for data."""
        seconds = self.totals.seconds - self._seconds_before
        return (self.totals.data_seconds - self._data_before) / seconds if seconds else 0.0
