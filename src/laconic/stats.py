"""The truth about a run so far, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The theory of TopK-SGD, measured at one step (Alistarh et al. 2018; our bound, docs/theory.md).

    ``xi`` is the constant of Assumption 1, ``kept_error`` this rank's ||acc - TopK(acc)|| / ||acc||,
    ``drift`` the distance ||v - x|| to the iterate that would have sent everything, ``identity_error``
    how far v - x is from the mean of the memories, relative to it, and ``drift_bound`` what the drift
    lemma allows. xi is reported, never judged: it grows near stationary points.
    """

    step: int
    xi: float
    kept_error: float
    drift: float
    drift_bound: float
    identity_error: float
    gradient_norm: float


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One parameter, as the last step left it.

    ``density`` is the share of its entries sent, over all ranks; ``threshold`` what this rank's entries had
    to exceed and ``c`` the deviations that is (None where a method has no such thing). ``owed_gradients``
    is the norm of what this rank owes over that of its fresh gradient: how many steps' worth wait. ``oldest``
    counts the steps since the entry longest unsent, of those that owe something, was sent (None unless
    ``attach(..., track_age=True)``). ``clipped_share`` is the share of steps in which it was clipped.
    """

    name: str
    entries: int
    density: float
    threshold: float | None
    c: float | None
    owed_gradients: float
    oldest: int | None
    clipped_share: float


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What a tuner that weighs gain against cost has chosen for the next step.

    ``count`` entries a rank, the share ``gain`` of a full step that they guarantee, their ``cost`` in ``unit``. The
    link as it was fitted, where it is measured: ranks wait ``latency_seconds`` and what ``bits_per_second`` make of
    a rank's message (NaN: not measured). ``curve`` has the efficiency of other amounts, as (count, gain / cost).
    """

    count: float
    gain: float
    cost: float
    unit: str
    latency_seconds: float = nan
    bits_per_second: float = nan
    curve: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    @property
    def efficiency(self) -> float:
        """The gain for each unit of cost."""
        return self.gain / self.cost if self.cost else nan


# Who waited longer than another by less than this is taken to have waited as long.
_NOISE_SHARE, _NOISE_SECONDS = 0.1, 0.1
_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How many ``seconds`` each rank waited in exchanges, of the ``of_seconds`` since ranks last told each other.

    A slow rank is the one that waits least, while the others wait for it. What all wait for alike is the network.

    >>> print(Waits(seconds=(2.2, 2.2, 0.1, 2.2), of_seconds=10.0))
    ranks 0, 1 and 3 waited 2.1 s of 10.0 s for rank 2
    """

    seconds: tuple[float, ...]
    of_seconds: float

    @property
    def slowest(self) -> int | None:
        """The rank that waited least, if more than half of the others wait for it; None where no one is slow."""
        least = self.seconds.index(min(self.seconds))
        return least if 2 * len(self._longer_than(least)) > len(self.seconds) - 1 else None

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that wait for the slowest: they waited longer by a tenth of the time, and by 0.1 s, or more."""
        return () if self.slowest is None else self._longer_than(self.slowest)

    def __add__(self, other: Waits) -> Waits:
        seconds = tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True))
        return Waits(seconds=seconds, of_seconds=self.of_seconds + other.of_seconds)

    def __str__(self) -> str:
        slowest, waiting, whole = self.slowest, self.waiting, f"{self.of_seconds:.1f} s"
        if len(self.seconds) == 1:
            return "one rank alone waits for nobody"
        if slowest is None:
            return f"ranks waited {min(self.seconds):.1f} to {max(self.seconds):.1f} s of {whole}, for no one rank"
        for_it = sum(self.seconds[rank] for rank in waiting) / len(waiting) - self.seconds[slowest]
        return f"{_named(waiting)} waited {for_it:.1f} s of {whole} for rank {slowest}"

    def _longer_than(self, rank: int) -> tuple[int, ...]:
        noise = max(_NOISE_SHARE * self.of_seconds, _NOISE_SECONDS)
        return tuple(r for r, seconds in enumerate(self.seconds) if seconds - self.seconds[rank] >= noise)


def _named(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


@dataclass
class Counters:
    """What a reducer adds up step by step, and saves."""

    skipped_steps: int = 0
    wire_bytes: int = 0
    link_bytes: int = 0
    node_bytes: int = 0
    dense_bytes: int = 0
    collectives: int = 0
    select_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What this rank has sent, skipped and waited for, since the run's first step.

    ``wire_bytes`` are the bytes this rank handed to the ``collectives`` for its exchanges, ``dense_bytes``
    what plain DDP would have handed over for the same steps, ``setup_bytes`` those of the handshake and
    the first broadcast since ``attach``. ``density`` is the share of entries sent in the last step, over all
    ranks; ``owed_norm`` the norm of what this rank has not sent yet. ``select_seconds`` were spent
    choosing and packing, ``wait_seconds`` after backward, waiting for peers and adding up. ``kernels`` names
    what selects (Numba, Triton or plain torch), ``compile_seconds`` were spent by ``attach`` to compile it or to
    find it on disk. ``layers`` has one entry a parameter, ``tuning`` is there for methods that
    weigh what they send.

    ``link_bytes`` were sent to other ranks for ``wire_bytes``, a gathered message N - 1 times, say: what this
    rank's interface sent, but for what packets add. They are counted as gloo sends; NCCL's algorithms may differ.
    Of parts dealt out to ranks ``wire_bytes`` have this rank's own, too, which goes nowhere. ``node_bytes`` were
    handed to collectives within a node, and are in neither.

    ``syncs`` counts exchanges: one a step, or with local steps one a round of ``every`` steps. For those,
    ``drift`` is how far this rank's model was from the mean of all at the last sync and ``drift_bound`` how far it
    can have been (2 * gamma * I; infinite without clipping), ``clipped_share`` the share of steps that were
    clipped; a step with an infinity is skipped by its rank alone. ``look_bytes`` were sent for ``link.averaged()``
    and ``link.waits()`` and to compare models (``check_every``), and are not in ``wire_bytes``. ``waits`` is what
    ``link.waits()`` returned last.
    """

    steps: int
    skipped_steps: int
    wire_bytes: int
    dense_bytes: int
    collectives: int
    density: float
    owed_norm: float
    select_seconds: float
    wait_seconds: float
    syncs: int = 0
    every: int = 1
    clipped_share: float = 0.0
    drift: float = 0.0
    drift_bound: float = 0.0
    look_bytes: int = 0
    setup_bytes: int = 0
    link_bytes: int = 0
    node_bytes: int = 0
    kernels: str = ""
    compile_seconds: float = 0.0
    history: tuple[Measurement, ...] = field(default=(), repr=False)
    layers: tuple[Layer, ...] = field(default=(), repr=False)
    tuning: Tuning | None = None
    waits: Waits | None = None

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than plain DDP; infinite where a rank sent nothing."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else float("inf")
