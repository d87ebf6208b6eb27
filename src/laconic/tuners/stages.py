"""SIDCo's controller: the number of stages follows the share that its fit achieves."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import ClassVar, Protocol, runtime_checkable

from laconic.arguments import check_whole
from laconic.spectrum import SpectrumOf
from laconic.types import Compressor, Observation, TunerState


@runtime_checkable
class _Staged(Protocol):
    @property
    def density(self) -> float: ...

    @property
    def stages(self) -> int: ...

    def at_stages(self, stages: int) -> Compressor: ...


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Every ``every`` steps: a stage fewer if over 1.2 times the density qualified, one more if under 0.8.

    Between 1 and ceil(ln density / ln 0.5) stages (Abdelmoniem et al. 2021).
    """

    name: ClassVar[str] = "stages"
    needs_loss: ClassVar[bool] = False
    spectrum_of: ClassVar[SpectrumOf] = "none"
    every: int = 5

    def __post_init__(self) -> None:
        check_whole("every", self.every, 1, "It counts steps; SIDCo has 5.")

    def init(self, compressor: Compressor) -> TunerState:
        """Begin with the compressor's own stages."""
        return {"stages": float(_staged(compressor).stages), "achieved": 0.0, "steps": 0.0}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the compressor with the stages for the next step."""
        staged, state = _staged(compressor), dict(state)
        if seen.choosable and not seen.skipped:
            state["achieved"] += seen.qualified / seen.choosable / staged.density
            state["steps"] += 1
        if state["steps"] >= self.every:
            achieved = state["achieved"] / state["steps"]
            most = max(1, ceil(log(staged.density) / log(0.5)))
            moved = state["stages"] + (achieved < 0.8) - (achieved > 1.2)
            state = {"stages": min(float(most), max(1.0, moved)), "achieved": 0.0, "steps": 0.0}
        return state, staged.at_stages(int(state["stages"]))


def _staged(compressor: Compressor) -> _Staged:
    if not isinstance(compressor, _Staged):
        raise ValueError(f"stages are SIDCo's, and {compressor.name} has none. Use Sidco.")
    return compressor
