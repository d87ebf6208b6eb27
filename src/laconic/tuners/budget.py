"""A budget instead of an optimum: as much as the link may carry, in bits a second or as a share of the step."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch

from laconic.arguments import check_amounts, check_number, check_share
from laconic.linkfit import Link, known, note
from laconic.sizes import Size
from laconic.spectrum import SpectrumOf
from laconic.tuners.amounts import approached, at_count, choosable
from laconic.tuners.movable import sparsifier
from laconic.types import Compressor, Observation, Thresholder, TunerState


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Send the most entries whose exchange takes at most ``share`` of a step, or ``bits_per_second`` of a link.

    Give one of the two. A rank's message goes to each of the others, and the bits are counted so. The time is what
    ranks are seen to wait, fitted while training; an amount goes half the way at each step, and at most doubles.
    """

    name: ClassVar[str] = "budget"
    needs_loss: ClassVar[bool] = False
    spectrum_of: ClassVar[SpectrumOf] = "none"
    share: float | None = None
    bits_per_second: float | None = None
    floor: float = 1e-5
    ceiling: float = 0.5

    def __post_init__(self) -> None:
        if (self.share is None) == (self.bits_per_second is None):
            raise ValueError(
                f"a budget is a share of the step or bits a second, got share={self.share!r} and "
                f"bits_per_second={self.bits_per_second!r}. Write Budget(share=0.05), say."
            )
        if self.share is not None:
            check_share("share", self.share, "For 5% of the step write 0.05.")
            if self.share == 1:
                raise ValueError(
                    f"share must be below 1, at which there is nothing but waiting, got {self.share!r}. For 5% of "
                    f"the step write 0.05."
                )
        if self.bits_per_second is not None:
            check_number("bits_per_second", self.bits_per_second, 1.0, "For 10 Mbit/s write 10e6.")
        check_amounts(self.floor, self.ceiling)

    def init(self, compressor: Compressor) -> TunerState:
        """Begin at the compressor's own density."""
        return {"density": sparsifier(compressor, "a budget").density}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the compressor with the amount that the budget has room for."""
        state = note(state, seen)
        if seen.skipped:
            return state, compressor
        link, entries = known(state), choosable(seen)
        if link is None or not entries or not seen.value_bits:
            return state, compressor
        size = Size(fixed_bits=8.0 * seen.fixed_bytes, entry_bits=seen.value_bits, among=entries)
        count = float(size.most(torch.tensor(8.0 * self._bytes(link, seen.world_size), dtype=torch.float64)))
        count = min(max(count, self.floor * entries, 1.0), max(1.0, self.ceiling * entries))
        if not isinstance(compressor, Thresholder):
            count = approached(count, seen)
        sent = float(size.bits(torch.tensor(count, dtype=torch.float64))) / 8
        state |= {"count": count, "cost": link.rest + link.waiting(sent), "density": count / entries}
        return state, at_count(compressor, count, seen)

    def _bytes(self, link: Link, ranks: int) -> float:
        """Return how many bytes a message may have."""
        if self.share is not None:
            spare = self.share / (1 - self.share) * link.rest - link.latency
            return spare / link.per_byte if link.per_byte else inf
        assert self.bits_per_second is not None
        # The longer a step takes, the more bits it may send: rate * (rest + waiting) = 8 * (ranks - 1) * bytes.
        left = 8 * max(1, ranks - 1) - self.bits_per_second * link.per_byte
        return self.bits_per_second * (link.rest + link.latency) / left if left > 0 else inf
