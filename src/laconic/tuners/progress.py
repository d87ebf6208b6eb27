"""The coefficient follows the loss: compress harder as it falls."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from laconic.arguments import check_number, check_share
from laconic.spectrum import SpectrumOf
from laconic.tuners.movable import thresholder
from laconic.types import Compressor, Observation, TunerState


@dataclass(frozen=True, kw_only=True)
class Progress:
    """c = c_max - (c_max - c_min) * min(1, F / F_0): F the smoothed loss, F_0 its first value.

    c_max is the method's own coefficient. ``smoothing`` is the weight of a step's loss in F. The loss is
    the mean over ranks of what ``link.observe(loss)`` was told.
    """

    name: ClassVar[str] = "progress"
    needs_loss: ClassVar[bool] = True
    spectrum_of: ClassVar[SpectrumOf] = "none"
    c_min: float = 1.0
    smoothing: float = 0.02

    def __post_init__(self) -> None:
        check_number("c_min", self.c_min, 0.0, "It is the coefficient before the loss has fallen.")
        check_share("smoothing", self.smoothing, "0.02 averages about fifty steps.")

    def init(self, compressor: Compressor) -> TunerState:
        """Remember the coefficient to reach."""
        c = thresholder(compressor, "the law of progress").c
        if c < self.c_min:
            raise ValueError(f"c must be c_min = {self.c_min} or more, got {c}. Give the threshold a larger c.")
        return {"c": c}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the compressor with the coefficient for the loss so far; it begins at ``c_min``."""
        state = dict(state)
        if isfinite(seen.loss) and not seen.skipped:
            before = state.get("loss", seen.loss)
            state["loss"] = before + self.smoothing * (seen.loss - before)
            state.setdefault("first", state["loss"])
        left = min(1.0, state["loss"] / state["first"]) if state.get("first", 0.0) > 0 else 1.0
        c = state["c"] - (state["c"] - self.c_min) * max(0.0, left)
        return state, thresholder(compressor, "the law of progress").at_c(c)
