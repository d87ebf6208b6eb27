"""Hold a density by moving the coefficient, from counts on which all ranks agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laconic.arguments import check_number, check_share, check_whole
from laconic.spectrum import SpectrumOf
from laconic.tuners.movable import thresholder
from laconic.types import Compressor, Observation, TunerState


@dataclass(frozen=True, kw_only=True)
class TargetDensity:
    """Every ``every`` steps compare the share that qualified with ``density``; outside +-20% move c by a factor.

    Parameters that are sent whole do not count. c stays between ``c_min`` and ``c_max``. A controller in the
    manner of SIDCo's.
    """

    name: ClassVar[str] = "target_density"
    needs_loss: ClassVar[bool] = False
    spectrum_of: ClassVar[SpectrumOf] = "none"
    density: float = 0.001
    every: int = 5
    factor: float = 1.02
    c_min: float = 0.5
    c_max: float = 1000.0

    def __post_init__(self) -> None:
        check_share("density", self.density, "For 0.1% write 0.001.")
        check_whole("every", self.every, 1, "It counts steps.")
        check_number("factor", self.factor, 1.0, "1.02 moves c by 2% at a time.")
        check_number("c_min", self.c_min, 0.0, "It is the least coefficient.")
        check_number("c_max", self.c_max, self.c_min, "It is the largest coefficient.")

    def init(self, compressor: Compressor) -> TunerState:
        """Begin at the method's own coefficient; from 0, where nothing is chosen, at ``c_min``."""
        return {
            "c": max(self.c_min, thresholder(compressor, "a target density").c),
            "qualified": 0.0,
            "choosable": 0.0,
            "steps": 0.0,
        }

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the compressor with the coefficient for the next step."""
        state = dict(state)
        if seen.choosable and not seen.skipped:
            state["qualified"] += seen.qualified
            state["choosable"] += seen.choosable
            state["steps"] += 1
        if state["steps"] >= self.every:
            share = state["qualified"] / state["choosable"] / self.density
            factor = self.factor if share > 1.2 else 1 / self.factor if share < 0.8 else 1.0
            state |= {"c": min(self.c_max, max(self.c_min, state["c"] * factor))}
            state |= {"qualified": 0.0, "choosable": 0.0, "steps": 0.0}
        return state, thresholder(compressor, "a target density").at_c(state["c"])
