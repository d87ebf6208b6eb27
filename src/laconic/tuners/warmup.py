"""Begin dense and fall to the method's density geometrically: early gradients change fast, and memory is empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laconic.arguments import check_share, check_whole
from laconic.types import Compressor, Observation, Sparsifier, TunerState


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """From density ``start`` to the method's own in ``steps`` steps, by equal factors.

    >>> from laconic.compressors import TopK
    >>> tuner, topk = Warmup(steps=2, start=1.0), TopK(density=0.0625)
    >>> state = tuner.init(topk)
    >>> seen = Observation(step=1, entries=0, sent=0, wanted=0, skipped=False)
    >>> tuner.update(state, seen, topk)[1]
    TopK(density=0.25, whole_below=1024)
    """

    name: ClassVar[str] = "warmup"
    steps: int = 100
    start: float = 0.25

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 1, "For no warm-up use Constant().")
        check_share("start", self.start, "It is the density of the first step; DGC starts at 0.25.")

    def init(self, compressor: Compressor) -> TunerState:
        """Remember the density to reach."""
        return {"density": _sparsifier(compressor).density}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the compressor with this step's density; never below the one to reach."""
        final = state["density"]
        share = min(1.0, seen.step / self.steps)
        density = final if share == 1.0 else max(final, self.start ** (1 - share) * final**share)
        return state, _sparsifier(compressor).at_density(density)


def _sparsifier(compressor: Compressor) -> Sparsifier:
    if not isinstance(compressor, Sparsifier):
        raise ValueError(f"warm-up moves a density, and {compressor.name} has none. Use Constant().")
    return compressor
