"""The link, fitted while training: what an exchange of so many bytes makes all ranks wait, from recent ones.

No byte is sent for it. Exchanges differ in size because what is worth sending does; where they hardly do, the
latency known before is kept and the rate is fitted alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from statistics import median

import numpy as np

from laconic.pace import Pace
from laconic.types import Observation, TunerState

_KEPT = 24
# As many exchanges in a row that are off by this factor mean that the link is another one.
_SURPRISES, _OFF = 3, 1.5
# Sizes that differ by less tell a latency from a rate only by chance.
_APART = 1.25
_KEYS = ("bytes", "waited", "rest")


@dataclass(frozen=True, kw_only=True)
class Link:
    """A step takes ``rest`` seconds, and ``latency`` + bytes * ``per_byte`` of waiting.

    The waiting is what is left after whatever backward hides, and has the adding up in it: what a user pays.
    """

    latency: float
    per_byte: float
    rest: float

    def waiting(self, size: float) -> float:
        """Return how long an exchange of so many bytes makes ranks wait."""
        return self.latency + self.per_byte * size


def note(state: TunerState, seen: Observation) -> TunerState:
    """Return the state with the last step's bytes, and the link as it looks now.

    A pace is heard one step late: it belongs to the bytes that were noted before.
    """
    state = dict(state)
    size, pace = state.get("link.sent", 0.0), seen.pace
    state["link.sent"] = float(seen.message_bytes)
    if size and not isnan(pace.waited + pace.rest):
        state = _fit(_remember(state, size, pace))
    return state


def known(state: TunerState) -> Link | None:
    """Return the link as the state has it; None before the first exchange was timed."""
    if "link.latency" not in state:
        return None
    return Link(latency=state["link.latency"], per_byte=state["link.per_byte"], rest=state["link.rest"])


def _remember(state: TunerState, size: float, pace: Pace) -> TunerState:
    rows = [[*_rows(state)[:, i].tolist(), new] for i, new in enumerate((size, pace.waited, pace.rest))]
    kept = _KEPT
    link = known(state)
    if link is not None and _surprised(link, rows[0][-_SURPRISES:], rows[1][-_SURPRISES:]):
        kept = _SURPRISES
    state = {key: value for key, value in state.items() if not key.startswith("link.at.")}
    for name, row in zip(_KEYS, rows, strict=True):
        state |= {f"link.at.{name}.{i}": value for i, value in enumerate(row[-kept:])}
    return state


def _rows(state: TunerState) -> np.ndarray:
    """Return what is remembered, a row an exchange, the latest last."""
    count = sum(key.startswith("link.at.bytes.") for key in state)
    return np.array([[state[f"link.at.{name}.{i}"] for name in _KEYS] for i in range(count)]).reshape(-1, 3)


def _surprised(link: Link, sizes: list[float], waited: list[float]) -> bool:
    ratios = [(w + 1e-4) / (link.waiting(size) + 1e-4) for size, w in zip(sizes, waited, strict=True)]
    return len(ratios) == _SURPRISES and (min(ratios) > _OFF or max(ratios) < 1 / _OFF)


def _fit(state: TunerState) -> TunerState:
    """Return the state with the line that half of all pairs of exchanges lie above: outliers do not move it."""
    sizes, waited, rest = _rows(state).T
    if sizes.max() >= _APART * sizes.min():
        first, second = np.triu_indices(len(sizes), k=1)
        apart = sizes[second] - sizes[first]
        far = np.abs(apart) >= (_APART - 1) / 2 * sizes.max()
        per_byte = max(0.0, float(np.median((waited[second] - waited[first])[far] / apart[far])))
        latency = float(np.median(waited - per_byte * sizes))
    else:
        latency = min(state.get("link.latency", 0.0), float(np.median(waited)) / 2)
        per_byte = float(np.median((waited - latency) / sizes))
    if latency < 0:
        latency, per_byte = 0.0, float(np.median(waited / sizes))
    fitted = {"link.latency": latency, "link.per_byte": per_byte, "link.rest": median(rest.tolist())}
    return state | fitted
