"""The guard's fall-back: send more while what is owed has run away, on all ranks alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from laconic.arguments import check_number, check_whole
from laconic.spectrum import SpectrumOf
from laconic.tuners.constant import Constant
from laconic.tuners.movable import sparsifier
from laconic.types import Compressor, Observation, Tuner, TunerState


@dataclass(frozen=True, kw_only=True)
class Relief:
    """Multiply the density that the ``inner`` tuner chose by ``factor``, again every ``every`` steps of alarm.

    It goes back by the same factor after as many steps without one. An alarm on any rank counts on all.
    """

    name: ClassVar[str] = "relief"
    inner: Tuner = field(default_factory=Constant)
    factor: float = 4.0
    every: int = 50

    def __post_init__(self) -> None:
        if isinstance(self.inner, type) or not isinstance(self.inner, Tuner):
            raise TypeError(f"inner must be a tuner such as Constant(), got {self.inner!r}.")
        check_number("factor", self.factor, 1.0, "4 sends four times as much.")
        check_whole("every", self.every, 1, "It counts steps.")

    @property
    def needs_loss(self) -> bool:
        """Whether the inner tuner follows the loss."""
        return self.inner.needs_loss

    @property
    def spectrum_of(self) -> SpectrumOf:
        """Return of what the inner tuner wants the spectrum."""
        return self.inner.spectrum_of

    def init(self, compressor: Compressor) -> TunerState:
        """Remember the inner tuner's state and density."""
        inner = {f"inner.{key}": value for key, value in self.inner.init(compressor).items()}
        return inner | {
            "density": sparsifier(compressor, "relief").density,
            "relief": 1.0,
            "alarms": 0.0,
            "calm": 0.0,
        }

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the inner tuner's compressor, denser while there is alarm."""
        relief = state["relief"]
        if relief > 1.0:
            # The inner tuner finds the compressor as it left it, and no counts that the relief has raised.
            compressor = sparsifier(compressor, "relief").at_density(state["density"])
            seen = replace(seen, qualified=0, choosable=0)
        inner = {key.removeprefix("inner."): value for key, value in state.items() if key.startswith("inner.")}
        inner, chosen = self.inner.update(inner, seen, compressor)
        density = sparsifier(chosen, "relief").density
        alarms, calm = (state["alarms"] + 1, 0.0) if seen.alarmed else (0.0, state["calm"] + 1)
        if alarms and (alarms - 1) % self.every == 0:
            relief = min(relief * self.factor, max(1.0, 1 / density))
        elif calm and calm % self.every == 0:
            relief = max(1.0, relief / self.factor)
        kept = {"density": density, "relief": relief, "alarms": alarms, "calm": calm}
        state = {f"inner.{key}": value for key, value in inner.items()} | kept
        if relief == 1.0:
            return state, chosen
        return state, sparsifier(chosen, "relief").at_density(min(1.0, density * relief))
