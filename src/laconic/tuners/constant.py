"""The setting stays as the method has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laconic.spectrum import SpectrumOf
from laconic.types import Compressor, Observation, TunerState


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Never change the compressor."""

    name: ClassVar[str] = "constant"
    needs_loss: ClassVar[bool] = False
    spectrum_of: ClassVar[SpectrumOf] = "none"

    def init(self, compressor: Compressor) -> TunerState:  # noqa: ARG002
        """Remember nothing."""
        return {}

    def update(
        self,
        state: TunerState,
        seen: Observation,  # noqa: ARG002
        compressor: Compressor,
    ) -> tuple[TunerState, Compressor]:
        """Return both unchanged."""
        return state, compressor
