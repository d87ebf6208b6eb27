"""The conditions under which TopK-SGD converges, measured while training.

With acc = memory + fresh (fresh is the gradient in the memory's units), gamma^2 = 1 - K/n and P ranks:

    xi          ||TopK(mean acc) - mean TopK(acc)|| / ||mean fresh||          Assumption 1
    drift       v - x = mean memory, x being the iterate that sends everything
    bound       ||v - x|| <= (gamma + xi) / (1 - gamma) * max ||mean fresh||   the drift lemma, summed

The bound is a theorem for magnitude selection when every step is measured; otherwise its maxima run over
the measured steps only. Measuring costs four dense all-reduces on the steps measured, and on every step one
more vector of the model's size and a few passes over it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from laconic import kernels
from laconic.averaging import dense
from laconic.collectives import AllReduce, Reply, Request
from laconic.memory import Memory
from laconic.segments import Segments
from laconic.stats import Measurement
from laconic.types import Compressor, Envelope, Steps


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


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One exchange's vector: what x is now, what was owed before, what is held back, and where it belongs."""

    x: Tensor
    owed: Tensor
    held: Tensor
    home: Segments


@dataclass
class Probe:
    """Watches the exchanges of one rank; every ``every`` steps it measures, on all ranks alike.

    ``drift`` holds this rank's sum of gradients less the sum of means; its mean over ranks is v - x.
    """

    every: int
    drift: Memory
    largest_xi: float = 0.0
    largest_fresh: float = 0.0
    history: list[Measurement] = field(default_factory=list)
    _norms: _Norms = field(default_factory=_Norms)
    _proposed: list[tuple[Segments, Tensor]] = field(default_factory=list)

    def watch(
        self,
        watched: Watched,
        segments: Segments,
        compressor: Compressor,
        envelope: Envelope,
        steps: Steps,
    ) -> Steps:
        """Run the exchange with measurements around it."""
        x = watched.x
        fresh = x + watched.held - watched.owed
        if envelope.step % self.every:
            mean = yield from steps
            self._propose(watched.home, fresh - dense(mean.values, x))
            return mean
        acc = x.clone()
        mean_acc = yield from _mean(acc, envelope)
        mean_fresh = yield from _mean(fresh, envelope)
        mean = yield from steps
        values = dense(mean.values, x)
        drift = self._propose(watched.home, fresh - values)
        mean_drift = yield from _mean(drift, envelope)
        mean_owed = yield from _mean(x + watched.held, envelope)
        norms, left = self._norms, mean_acc.clone()
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        compressor.compress_(left, segments, plan, kernels.fresh_of(left, segments))
        norms.mismatch += _square(mean_acc - left - values)
        norms.fresh += _square(mean_fresh)
        norms.left += _square(x)
        norms.acc += _square(acc)
        norms.drift += _square(mean_drift)
        norms.identity += _square(mean_drift - mean_owed)
        norms.owed += _square(mean_owed)
        norms.gamma = max(norms.gamma, _gamma(segments, compressor, envelope.step))
        return mean

    def _propose(self, home: Segments, change: Tensor) -> Tensor:
        drift = self.drift.read("drift", home) + change
        self._proposed.append((home, drift))
        return drift

    def settle(self, step: int, *, finite: bool) -> None:
        """Take the step over into the drift and the history, or drop it if it was poisoned."""
        norms, proposed = self._norms, self._proposed
        self._norms, self._proposed = _Norms(), []
        if not finite:
            return
        for home, drift in proposed:
            self.drift.write("drift", home, drift)
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


def _mean(x: Tensor, envelope: Envelope) -> Generator[Request, Reply, Tensor]:
    return (yield AllReduce(send=x * (1.0 / envelope.world_size)))


def _gamma(segments: Segments, compressor: Compressor, step: int) -> float:
    """The contraction ||y - TopK(y)|| <= gamma ||y||: the worst over segments."""
    worst = 0.0
    for segment in segments:
        if segment.size:
            plan = compressor.plan(Segments((segment,)), step=step, rooms={})
            worst = max(worst, 1 - (plan.known_count + plan.capacity) / segment.size)
    return sqrt(worst)


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double())) ** 2


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
