"""The vocabulary: where parameters lie, what is sent, what is asked of a transport, and the four protocols."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.futures import Future


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One parameter's place in a flat tensor."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Segments:
    """Where each parameter lies in a flat tensor, so that per-layer rules are one call.

    >>> Segments.of(["weight", "bias"], [6, 2])["bias"]
    Segment(name='bias', offset=6, size=2)
    """

    items: tuple[Segment, ...]

    @staticmethod
    def of(names: Sequence[str], sizes: Sequence[int]) -> Segments:
        """Lay the named sizes out one behind the other."""
        items, offset = [], 0
        for name, size in zip(names, sizes, strict=True):
            items.append(Segment(name=name, offset=offset, size=size))
            offset += size
        return Segments(tuple(items))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, name: str) -> Segment:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Segment]:
        return {s.name: s for s in self.items}

    @cached_property
    def numel(self) -> int:
        """How many entries the flat tensor has."""
        return sum(s.size for s in self.items)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names, in flat order."""
        return tuple(s.name for s in self.items)

    def merged(self) -> Segments:
        """The same entries as one segment: a rule over the whole vector."""
        return Segments((Segment(name=f"{len(self)} parameters", offset=0, size=self.numel),))

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each segment of ``flat`` as a view."""
        return [flat[s.offset : s.offset + s.size] for s in self.items]

    def label(self) -> str:
        """Name these segments in a message to a person."""
        first, last = self.items[0].name, self.items[-1].name
        return first if len(self) == 1 else f"{first} .. {last} ({len(self)} parameters)"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every rank knows of a payload before it is made.

    ``known`` indexes the entries that every rank sends, whose positions therefore need not travel: all of
    them (dense), small parameters, a seeded random choice. ``capacity`` is the most entries a rank may choose
    by itself. The byte size of the message follows from the two, so no sizes are ever exchanged.
    """

    known: Tensor | slice
    known_count: int
    capacity: int


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What one rank sends: values at the plan's known entries, and chosen (position, value) pairs."""

    known: Tensor
    positions: Tensor
    values: Tensor
    wanted: int

    @property
    def count(self) -> int:
        """How many entries are sent."""
        return self.known.numel() + self.values.numel()


@dataclass(frozen=True, kw_only=True)
class AllGather:
    """Ask for every rank's bytes; the reply has one row a rank, in rank order."""

    send: Tensor


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Ask for the sum over ranks; the tensor itself is replaced by the sum and is the reply."""

    send: Tensor


Request = AllGather | AllReduce
Reply = Tensor


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What an exchange needs to know beside the vector: what stands in every header, and this rank's notes.

    ``notes`` are small numbers that every rank must see the sum of (say: which parameters got a gradient).
    """

    step: int
    world_size: int
    fingerprint: int = 0
    rates: int = 0
    finite: bool = True
    notes: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Mean:
    """What an exchange returns: the mean over ranks and what all ranks now agree on."""

    values: Tensor
    finite: bool
    sent: int
    wanted: int
    notes: Tensor | None = None


Steps = Generator[Request, Reply, Mean]
T = TypeVar("T")


@runtime_checkable
class Compressor(Protocol):
    """WHAT is worth sending. Frozen data; two with equal fields are the same compressor.

    ``ranks_choose`` says whether each rank chooses entries of its own, or all ranks send the same ones.
    """

    name: ClassVar[str]
    ranks_choose: ClassVar[bool]

    def plan(self, segments: Segments, *, step: int) -> Plan:
        """Say what every rank knows of this step's payload before it is made."""
        ...

    def compress_(self, x: Tensor, segments: Segments, plan: Plan) -> Payload:
        """Take entries out of x; leave in x exactly what was not taken."""
        ...


@runtime_checkable
class Sparsifier(Protocol):
    """A compressor whose amount is one number, so that a tuner can move it."""

    name: ClassVar[str]

    @property
    def density(self) -> float:
        """The share of entries sent, in (0, 1]."""
        ...

    def at_density(self, density: float) -> Compressor:
        """Return the same compressor with another density."""
        ...


@runtime_checkable
class Exchange(Protocol):
    """HOW vectors become a mean: a generator that asks for collectives and does no I/O of its own."""

    name: ClassVar[str]

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Reduce x to the mean of what all ranks sent; leave in x what this rank did not send."""
        ...

    def check(self, compressor: Compressor) -> None:
        """Raise ``ValueError`` if this exchange cannot carry what the compressor makes."""
        ...


class Transport(Protocol):
    """Who does the talking. Later rounds are issued in submission order by the caller's own thread."""

    rank: int
    world_size: int
    wire_bytes: int
    collectives: int

    def start(self, steps: Generator[Request, Reply, T], *, label: str) -> Future[T]:
        """Run the exchange to its first request, issue that, and return before the reply."""
        ...

    def drain(self) -> None:
        """Bring every started exchange to its end."""
        ...


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What all ranks agree on of the step before, given to the tuner when the next one begins."""

    step: int
    entries: int
    sent: int
    wanted: int
    skipped: bool


TunerState = dict[str, float]


@runtime_checkable
class Tuner(Protocol):
    """HOW MUCH: a pure pair. The state is a dict of numbers, so that it can be saved as it is."""

    name: ClassVar[str]

    def init(self, compressor: Compressor) -> TunerState:
        """Return the state before the first step, or raise ``ValueError`` if it cannot tune this compressor."""
        ...

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the next state and the compressor for the step ``seen.step``."""
        ...


def accumulation_dtype(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """Return the dtype that memory and wire values have for these parameters: float64 if any is, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32
