"""How many entries a vector has of each magnitude: the curve that says what sending more would gain, in 72 bytes.

Magnitudes are told apart by the upper bits of their floats, four bins an octave, as the kernels do that select the
largest. Of a large vector a part is looked at, another one at every step: about a thousandth of a second's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.segments import Segment, Segments

SPECTRUM_BYTES = 72
Gain = Literal["alpha", "beta", "omega"]
# Of what a tuner wants to know it: of all that could be sent, or of what the step has added, and how that changes.
SpectrumOf = Literal["none", "owed", "fresh", "change"]
Numbers = NDArray[np.float64]

# The sign goes, 8 bits of exponent and 2 of the mantissa stay: four bins an octave.
_SHIFT = 21
_ALL_BINS = 1 << (31 - _SHIFT)
# From here on exponents stand for infinities and NaN.
_BINS = 255 << 2
_WINDOW = 64
# A count c travels as round(8 log2(1 + c)): exact below 12, to 4.5% above.
_FINENESS = 8.0
_MOST_LOOKED_AT = 1 << 17
_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Mean numbers of entries by bin over the ranks, from bin ``top`` downwards.

    >>> x = torch.tensor([4.0, -3.0, 2.0, -1.5, 1.0, 0.0])
    >>> seen = Spectrum.mean([Spectrum.read(measure(x, Segments.of(["w"], [6]), turn=0))])
    >>> seen.entries, float(seen.gains("alpha", np.array([2.0]))[0].round(2))
    (5.0, 0.77)
    """

    top: int
    counts: tuple[float, ...]

    @staticmethod
    def read(sent: Tensor) -> Spectrum:
        """Read what ``measure`` made, on the host."""
        top, codes = int(sent[:8].contiguous().view(torch.int64)), sent[8:].to(torch.float64)
        counts = ((codes / _FINENESS).exp2() - 1).round()
        # Bytes from outside: no bin beyond those there are.
        return Spectrum(top=min(max(top, 0), _BINS - 1), counts=tuple(counts.tolist()))

    @staticmethod
    def mean(ranks: Sequence[Spectrum]) -> Spectrum:
        """Return the mean over ranks."""
        total = Spectrum.total(ranks)
        return Spectrum(top=total.top, counts=tuple(count / len(ranks) for count in total.counts))

    @staticmethod
    def total(parts: Sequence[Spectrum]) -> Spectrum:
        """Return the spectrum of vectors that together are one; what is too small to show is left out."""
        top, counts = max((part.top for part in parts), default=0), np.zeros(_WINDOW)
        for part in parts:
            down = top - part.top
            if down < _WINDOW:
                counts[down:] += part.counts[: _WINDOW - down]
        return Spectrum(top=top, counts=tuple(counts.tolist()))

    @property
    def entries(self) -> float:
        """How many entries show."""
        return float(sum(self.counts))

    def gains(self, gain: Gain, counts: Numbers) -> Numbers:
        """Return the share of a full step that sending so many entries guarantees (Khirirat et al. 2021).

        alpha is for the largest entries, beta for their signs and mean magnitude, omega for entries drawn with the
        best probabilities (``laconic.descent`` has them exactly).
        """
        number, sums, squares = self._numbers
        energy = float(squares[-1])
        if energy == 0:
            return np.ones_like(counts)
        if gain == "alpha":
            return _at(counts, number, squares) / energy
        if gain == "beta":
            return _at(counts, number, sums) ** 2 / (np.maximum(counts, 1e-300) * energy)
        drawn, second = self._drawn
        return np.asarray(np.minimum(1.0, energy / _at(counts, drawn, second)))

    @cached_property
    def _numbers(self) -> NDArray[np.float64]:
        """Rows of running sums from the top bin downwards: entries, magnitudes, squares; the first column is 0."""
        lower, upper = self._bounds
        counts = np.array(self.counts)
        rows = np.stack([counts, counts * (lower + upper) / 2, counts * (lower**2 + lower * upper + upper**2) / 3])
        return np.concatenate([np.zeros((3, 1)), rows.cumsum(axis=1)], axis=1)

    @cached_property
    def _bounds(self) -> NDArray[np.float64]:
        """The bins' lower and upper edges, over that of the top one: squares of floats can leave their range."""
        at = self.top - np.arange(_WINDOW)
        return np.asarray(np.stack([_edges(at), _edges(at + 1)]) / _edges(np.array([self.top + 1])))

    @cached_property
    def _drawn(self) -> NDArray[np.float64]:
        """For falling thresholds: how many entries are drawn, and the second moment of what is then sent.

        Entry j is drawn with probability p = min(1, |g_j| / threshold) and sent as g_j / p.
        """
        lower, upper = self._bounds
        # Below the smallest floats bins have no width.
        there = np.array(self.counts) > 0
        counts, middle = np.array(self.counts)[there], (lower + upper)[there] / 2
        thresholds = np.maximum(np.concatenate([np.geomspace(1e6, 1.01, 64), upper, lower[-1:] / 2]), 1e-300)
        larger = np.maximum(middle[None, :], thresholds[:, None])
        return np.stack([(counts * middle / larger).sum(axis=1), (counts * middle * larger).sum(axis=1)])


def measure(
    x: Tensor, choosing: Segments, *, turn: int, minus: Tensor | None = None, home: Segments | None = None
) -> Tensor:
    """Return the spectrum of the segments' entries as bytes, on the device; nothing is copied from it.

    With ``minus`` it is that of the difference; the segments lie in it as ``home`` says.
    """
    parts, stride = _looked_at(x, _runs(choosing) if minus is None else choosing, turn)
    if minus is not None:
        parts = parts - _looked_at(minus, choosing if home is None else home, turn)[0]
    bins = (parts.to(torch.float32).view(torch.int32) & 0x7FFFFFFF) >> _SHIFT
    counts = torch.zeros(_ALL_BINS, dtype=torch.int32, device=x.device)
    counts.index_add_(0, bins, torch.ones_like(bins))
    # Zeros are worth nothing; what is not finite is said elsewhere.
    counts[:1] = 0
    counts[_BINS:] = 0
    places = torch.arange(_ALL_BINS, device=x.device)
    top = torch.where(counts > 0, places, 0).max()
    window = top - places[:_WINDOW]
    shown = torch.where(window > 0, counts[window.clamp(min=0)], 0)
    codes = (shown.to(torch.float32).mul_(stride).add_(1).log2_() * _FINENESS).round_()
    return torch.cat([top.view(1).view(torch.uint8), codes.clamp_(max=255).to(torch.uint8)])


def _looked_at(x: Tensor, segments: Segments, turn: int) -> tuple[Tensor, int]:
    """Return some of the segments' entries, and for how many each of them stands."""
    stride = max(1, -(-segments.numel // _MOST_LOOKED_AT))
    parts = [x[:0]]
    for segment in segments:
        values = x[segment.offset : segment.offset + segment.size]
        whole = segment.size // (stride * _BLOCK) * stride * _BLOCK
        parts.append(values[:whole].view(-1, stride, _BLOCK)[:, turn % stride].reshape(-1))
        parts.append(values[whole + turn % stride :: stride])
    return torch.cat(parts), stride


@lru_cache(maxsize=1024)
def _runs(segments: Segments) -> Segments:
    """Return segments that lie side by side as one."""
    runs: list[Segment] = []
    for segment in segments:
        last = runs[-1] if runs else None
        if last is not None and last.offset + last.size == segment.offset:
            runs[-1] = Segment(name=last.name, offset=last.offset, size=last.size + segment.size)
        else:
            runs.append(segment)
    return Segments(tuple(runs))


def _at(counts: Numbers, known: Numbers, values: Numbers) -> Numbers:
    return np.asarray(np.interp(counts, known, values), dtype=np.float64)


def _edges(bins: NDArray[np.int64]) -> Numbers:
    """Return the lowest magnitude of each bin; bins below all have none."""
    bits = np.clip(bins, 0, _BINS - 1).astype(np.int32) << _SHIFT
    return bits.view(np.float32).astype(np.float64)
