"""Begin dense and fall to the method's density geometrically: early gradients change fast, and memory is empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laconic.arguments import check_number, check_share, check_whole
from laconic.spectrum import SpectrumOf
from laconic.tuners.movable import sparsifier
from laconic.types import Compressor, Observation, TunerState


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """From density ``start`` to the method's own in ``steps`` steps, by equal factors.

    A length in epochs needs to know them: ``Warmup.epochs(2, steps_per_epoch=331)``. From 0.25 to 0.001 the
    path passes the rows of DGC's table (0.25, 0.0625, 0.0156, 0.004, 0.001) to within 1.5%, step by step
    instead of epoch by epoch. A threshold in deviations moves its coefficient to the nominal density.

    >>> from laconic.compressors import TopK
    >>> tuner, topk = Warmup(steps=2, start=1.0), TopK(density=0.0625)
    >>> state = tuner.init(topk)
    >>> seen = Observation(step=1, entries=0, sent=0, wanted=0, skipped=False)
    >>> tuner.update(state, seen, topk)[1]
    TopK(density=0.25, whole_below=1024)
    """

    name: ClassVar[str] = "warmup"
    needs_loss: ClassVar[bool] = False
    spectrum_of: ClassVar[SpectrumOf] = "none"
    steps: int = 100
    start: float = 0.25

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 1, "For no warm-up use Constant().")
        check_share("start", self.start, "It is the density of the first step; DGC starts at 0.25.")

    @staticmethod
    def epochs(epochs: float, *, steps_per_epoch: int, start: float = 0.25) -> Warmup:
        """Return the warm-up that lasts so many epochs."""
        check_number("epochs", epochs, 0.0, "For no warm-up use Constant().")
        check_whole("steps_per_epoch", steps_per_epoch, 1, "len(loader), where each batch is a step.")
        return Warmup(steps=max(1, round(epochs * steps_per_epoch)), start=start)

    def init(self, compressor: Compressor) -> TunerState:
        """Remember the density to reach."""
        return {"density": sparsifier(compressor, "warm-up").density}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the compressor with this step's density; never below the one to reach."""
        final = state["density"]
        share = min(1.0, seen.step / self.steps)
        density = final if share == 1.0 else max(final, self.start ** (1 - share) * final**share)
        return state, sparsifier(compressor, "warm-up").at_density(density)
