"""The conditions under which TopK-SGD converges, measured while training.

With acc = memory + fresh (fresh is the gradient in the memory's units), gamma^2 = 1 - K/n and P ranks:

    xi          ||TopK(mean acc) - mean TopK(acc)|| / ||mean fresh||          Assumption 1
    drift       v - x = mean memory, x being the iterate that sends everything
    bound       ||v - x|| <= (gamma + xi) / (1 - gamma) * max ||mean fresh||   the drift lemma, summed

The bound is a theorem when every step is measured; otherwise its maxima run over the measured steps only.
Measuring costs four dense all-reduces on the steps measured, and two vectors of the model's size.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from laconic.stats import Measurement
from laconic.types import AllReduce, Compressor, Envelope, Exchange, Reply, Request, Segments, Steps


@dataclass
class _Norms:
    """Squared norms of one step, summed over its exchanges."""

    mismatch: float = 0.0
    fresh: float = 0.0
    left: float = 0.0
    acc: float = 0.0
    drift: float = 0.0
    identity: float = 0.0
    owed: float = 0.0
    gamma: float = 0.0


@dataclass
class Probe:
    """Watches the exchanges of one rank; ``every`` steps it measures, on all ranks alike."""

    every: int
    drift: Tensor
    largest_xi: float = 0.0
    largest_fresh: float = 0.0
    history: list[Measurement] = field(default_factory=list)
    _norms: _Norms = field(default_factory=_Norms)
    _proposed: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def watch(
        self,
        x: Tensor,
        owed: Tensor,
        positions: Tensor,
        segments: Segments,
        compressor: Compressor,
        exchange: Exchange,
        envelope: Envelope,
    ) -> Steps:
        """Run the exchange with measurements around it; ``positions`` says where x's entries lie in the drift."""
        due = envelope.step % self.every == 0
        share = 1.0 / envelope.world_size
        acc, fresh = x.clone(), x - owed
        mean_acc = yield from _sum(acc * share, due)
        mean_fresh = yield from _sum(fresh * share, due)
        mean = yield from exchange.steps(x, segments, compressor, envelope)
        drift = self.drift[positions] + fresh - mean.values
        self._proposed.append((positions, drift))
        mean_drift = yield from _sum(drift * share, due)
        mean_owed = yield from _sum(x * share, due)
        if due:
            norms, left = self._norms, mean_acc.clone()
            compressor.compress_(left, segments, compressor.plan(segments, step=envelope.step))
            norms.mismatch += _square(mean_acc - left - mean.values)
            norms.fresh += _square(mean_fresh)
            norms.left += _square(x)
            norms.acc += _square(acc)
            norms.drift += _square(mean_drift)
            norms.identity += _square(mean_drift - mean_owed)
            norms.owed += _square(mean_owed)
            norms.gamma = max(norms.gamma, _gamma(segments, compressor, envelope.step))
        return mean

    def settle(self, step: int, *, finite: bool) -> None:
        """Take the step over into the drift and the history, or drop it if it was poisoned."""
        norms, proposed = self._norms, self._proposed
        self._norms, self._proposed = _Norms(), []
        if not finite:
            return
        for positions, drift in proposed:
            self.drift[positions] = drift
        if step % self.every == 0:
            self.history.append(self._measurement(step, norms))

    def _measurement(self, step: int, norms: _Norms) -> Measurement:
        fresh = sqrt(norms.fresh)
        xi = _ratio(sqrt(norms.mismatch), fresh)
        self.largest_xi, self.largest_fresh = max(self.largest_xi, xi), max(self.largest_fresh, fresh)
        return Measurement(
            step=step,
            xi=xi,
            kept_error=_ratio(sqrt(norms.left), sqrt(norms.acc)),
            drift=sqrt(norms.drift),
            drift_bound=(norms.gamma + self.largest_xi) / (1 - norms.gamma) * self.largest_fresh,
            identity_error=_ratio(sqrt(norms.identity), sqrt(norms.owed)),
            gradient_norm=fresh,
        )


def _sum(x: Tensor, due: bool) -> Generator[Request, Reply, Tensor]:
    if due:
        return (yield AllReduce(send=x))
    return x


def _gamma(segments: Segments, compressor: Compressor, step: int) -> float:
    """The contraction ||y - TopK(y)|| <= gamma ||y||: the worst over segments."""
    worst = 0.0
    for segment in segments:
        if segment.size:
            plan = compressor.plan(Segments((segment,)), step=step)
            worst = max(worst, 1 - (plan.known_count + plan.capacity) / segment.size)
    return sqrt(worst)


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double())) ** 2


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
