"""Communication-aware tuning: at every step the amount that gains the most descent for what it costs.

Khirirat, Magnússon, Aytekin and Johansson, AAAI 2021, choose T from the true gradient of one worker. Here T is
agreed: every rank tells the spectrum of what it could send, all read the same mean, and the next step has the T
that is best for it.

Where what is not sent stays owed there are two other gains, both ours. In the long run all that is added is sent,
in fewer and larger pieces: entry j goes out when it has gathered a threshold, in the share p_j = min(1, |u_j| /
threshold) of steps, u being what a step adds; the second moment of what is sent is |u|^2 / omega(T), as if entries
were drawn with these p. So to first order the descent is the same whatever T, and comes late: by (1 / omega(T) - 1)
/ 2 steps on average, weighted by descent. After n steps a run stands where sending all would have stood that much
earlier: ``lag`` gains n / (n + lateness), n being the steps so far. To second order larger pieces overshoot:
``curvature`` gains 1 - s / (2 omega(T)), s being the share of what was sent that the next fresh gradient lacks,
which is measured (``laconic.gauge``). docs/cat.md compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar, Literal, get_args

import numpy as np
import torch

from laconic.arguments import check_amounts, check_choice
from laconic.costs import Cost, Seconds
from laconic.efficiency import Curve, candidates
from laconic.linkfit import known, note
from laconic.sizes import Size
from laconic.spectrum import Numbers, SpectrumOf
from laconic.tuners.amounts import approached, at_count, choosable
from laconic.tuners.movable import sparsifier
from laconic.types import Compressor, Observation, Thresholder, TunerState

Coding = Literal["wire", "published"]
Weighed = Literal["alpha", "beta", "omega", "lag", "curvature"]
_HARDLY = 1e-12
# Before so many steps a run is as good as new: what comes late is not lost yet.
_FEWEST_STEPS = 20
# Of the share of what was sent that the next gradient lacks: unknown, as little and as much as is believed, and the
# weight of a step in its mean.
_FIRST_CHANGE, _LEAST_CHANGE, _MOST_CHANGE, _WEIGHT = 0.25, 1e-3, 2.0, 0.2


@dataclass(frozen=True, kw_only=True)
class Cat:
    """Send the T entries with the largest gain for their ``cost``, T between ``floor`` and ``ceiling`` shares.

    ``gain`` is alpha for the largest entries, beta for their signs, omega for entries drawn by chance; with memory
    ``lag``, or ``curvature`` where steps are as long as the problem allows. ``coding`` says what bits are counted:
    those of our ``wire``, a value's and its coded position's, or the ``published`` ceil(log2 d) + 32 an entry. With
    ``Seconds()`` the cost is a step's whole time on the link as it is measured: what else a step does is its
    overhead. On a link that is measured an amount goes half the way at each step, and at most doubles.
    """

    name: ClassVar[str] = "cat"
    needs_loss: ClassVar[bool] = False
    cost: Cost = field(default_factory=Seconds)
    gain: Weighed = "alpha"
    coding: Coding = "wire"
    floor: float = 1e-5
    ceiling: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.cost, type) or not isinstance(self.cost, Cost):
            raise TypeError(f"cost must be a cost such as Seconds() or Bits(), got {self.cost!r}.")
        check_choice("gain", self.gain, get_args(Weighed))
        check_choice("coding", self.coding, get_args(Coding))
        check_amounts(self.floor, self.ceiling)

    @property
    def spectrum_of(self) -> SpectrumOf:
        """Return of what it wants the spectrum."""
        if self.gain == "curvature":
            return "change"
        return "fresh" if self.gain == "lag" else "owed"

    @property
    def measures(self) -> bool:
        """Whether the link is measured while training."""
        return isinstance(self.cost, Seconds) and self.cost.measured

    def init(self, compressor: Compressor) -> TunerState:
        """Begin at the compressor's own density."""
        return {"density": sparsifier(compressor, "cat").density}

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the compressor with the amount that was best for the step before."""
        state = _with_change(note(state, seen) if self.measures else dict(state), seen)
        if seen.skipped:
            return state, compressor
        curve = self.curve(state, seen)
        if curve is None:
            return state, compressor
        count = float(curve.counts[curve.best()])
        if self.measures and not isinstance(compressor, Thresholder):
            count = approached(count, seen)
        gain, cost = (float(np.interp(count, curve.counts, row)) for row in (curve.gains, curve.costs))
        state |= {"count": count, "gain": gain, "cost": cost}
        state["density"] = count / choosable(seen)
        return state, at_count(compressor, count, seen)

    def curve(self, state: TunerState, seen: Observation) -> Curve | None:
        """Return what each amount would have gained in the step before; None where that cannot be said yet."""
        cost, spectrum, entries = self._cost(state), seen.spectrum, choosable(seen)
        size = self._size(seen, entries)
        if cost is None or size is None or spectrum is None or not spectrum.entries:
            return None
        low, high = max(1.0, self.floor * entries), max(1.0, self.ceiling * entries)
        counts = candidates(low, max(low, high), size, cost)
        costs = cost.of(size.bits(torch.from_numpy(counts))).numpy()
        return Curve(counts=counts, gains=self._gains(state, seen, counts), costs=costs)

    def _gains(self, state: TunerState, seen: Observation, counts: Numbers) -> Numbers:
        assert seen.spectrum is not None
        if self.gain == "lag":
            late = (1 / seen.spectrum.gains("omega", counts) - 1) / 2
            return np.asarray(1 / (1 + late / max(_FEWEST_STEPS, seen.step)))
        if self.gain == "curvature":
            omega = seen.spectrum.gains("omega", counts)
            change = state.get("change", _FIRST_CHANGE)
            # Where nothing is sure to gain, what comes nearest to it.
            return np.asarray(np.maximum(1 - change / (2 * omega), _HARDLY * omega))
        return seen.spectrum.gains(self.gain, counts)

    def _cost(self, state: TunerState) -> Cost | None:
        if not isinstance(self.cost, Seconds) or not self.cost.measured:
            return self.cost
        link = known(state)
        if link is None:
            return None
        return self.cost.at(link.rest + link.latency, 1 / max(link.per_byte / 8, 1e-18))

    def _size(self, seen: Observation, entries: int) -> Size | None:
        if not entries or not seen.value_bits:
            return None
        if self.coding == "wire":
            return Size(fixed_bits=8.0 * seen.fixed_bytes, entry_bits=seen.value_bits, among=entries)
        return Size.signs(entries) if self.gain == "beta" else Size.pairs(entries)


def _with_change(state: TunerState, seen: Observation) -> TunerState:
    """Return the state with the mean change of recent steps."""
    if isfinite(seen.change):
        change = min(_MOST_CHANGE, max(_LEAST_CHANGE, seen.change))
        before = state.get("change", change)
        state["change"] = before + _WEIGHT * (change - before)
    return state
