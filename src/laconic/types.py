"""The vocabulary: what is sent, what ranks agree on, and the protocols of those who decide."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor

from laconic.collectives import Reply, Request
from laconic.pace import UNKNOWN_PACE, Pace
from laconic.segments import Segments
from laconic.spectrum import Spectrum, SpectrumOf


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every rank knows of a payload before it is made.

    ``known`` indexes the entries that every rank sends, whose positions therefore need not travel: all of
    them (dense), small parameters, a seeded random choice; ``known_sizes`` are those of the parameters they come
    from, one behind the other. Of each segment in ``choosing`` a rank chooses entries of its own, at most its
    ``rooms``. The byte size of the message follows, so no sizes are ever exchanged. Where a plan is ``counted`` the
    number chosen varies: messages then say for each segment how many entries qualified, and the next rooms follow.
    """

    known: Tensor | slice
    known_sizes: tuple[int, ...]
    choosing: Segments = field(default_factory=lambda: Segments(()))
    rooms: tuple[int, ...] = ()
    counted: bool = False
    step: int = 0

    @property
    def known_count(self) -> int:
        """How many entries every rank sends."""
        return sum(self.known_sizes)

    @property
    def capacity(self) -> int:
        """The most entries a rank may choose by itself."""
        return sum(self.rooms)


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """What is known of each segment when a payload is made, beside the vector itself.

    ``deviation`` is that of what this step added, about zero (its root mean square): of the fresh gradient,
    or of the velocity made of it where momentum is the method's own. ``running`` is its running mean over the
    steps before (0 where there were none), ``overall`` the same for the whole model, ``largest`` the largest
    magnitude in the vector. ``before`` is what was owed before the fresh gradient came, for compressors that
    ask for it (``reads_before``).
    """

    deviation: Tensor
    running: Tensor
    overall: Tensor
    largest: Tensor
    before: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What one rank sends: values at the plan's known entries, and chosen (position, value) pairs.

    ``wanted`` counts for each choosing segment the entries that qualified. Chosen are the first of them, at
    most the segment's room: their number is ``min(wanted, rooms)`` and needs no copy to the host. Positions
    and values come in index order; what lies behind that number is zero and stands for nothing.
    ``thresholds`` is what a segment's entries had to exceed, for compressors that have such a thing.
    """

    known: Tensor
    positions: Tensor
    values: Tensor
    wanted: Tensor
    thresholds: Tensor | None = None

    @property
    def count(self) -> int:
        """How many entries lie here."""
        return self.known.numel() + self.values.numel()


Over = Literal["ranks", "senders"]


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What an exchange needs to know beside the vector: what stands in every header, notes, and ``Mean.kept``.

    ``notes`` are small numbers of which every rank must see the sum, ``rooms`` the agreed rooms by segment name,
    ``fresh`` what is known of the segments. ``loss`` is this rank's (NaN: not told), ``alarmed``: what it owes has
    run away, ``pace``: how long its step before took; ``spectrum`` and ``change`` are what its gauge tells. The
    ``senders`` send (None: all), ``rank`` hears them anyway; ``turn``: by what they take turns (None: ``step``).
    """

    step: int
    world_size: int
    fingerprint: int = 0
    rates: int = 0
    finite: Tensor | bool = True
    notes: Tensor | None = None
    rooms: Mapping[str, int] = field(default_factory=dict)
    fresh: Fresh | None = None
    loss: float = nan
    alarmed: bool = False
    pace: Pace = UNKNOWN_PACE
    spectrum: Tensor | None = None
    change: Tensor | None = None
    senders: tuple[int, ...] | None = None
    rank: int = 0
    turn: int | None = None
    kept: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """A mean that nobody has added up yet: what each rank sent, and what the plan's ``known`` entries are.

    Chosen entries are divided ``over`` all the ranks here, or over an entry's senders: those with a value but 0.
    """

    known: Tensor | slice
    payloads: tuple[Payload, ...]
    over: Over = "ranks"


@dataclass(frozen=True, kw_only=True)
class Mean:
    """What an exchange returns: the mean over ranks, what all ranks now agree on, and what this rank sent.

    ``values`` is a vector, or what was ``Gathered``: adding that up touches only entries that were sent.
    ``counts`` has for each segment that was chosen from a number a rank, and together they are what qualified;
    ``qualified`` is the sum of all, out of ``choosable``. With ``senders`` these are the ranks that count, and
    ``own``, what of this rank's is in the mean, is None on the others. Of ``message_bytes`` ``fixed_bytes`` were
    not for chosen entries; beside positions one had ``value_bits``. ``pace`` is the group's in the step before,
    ``change`` how much of what was sent then is used up (NaN: unknown), ``kept`` what the exchange wants again.
    """

    values: Tensor | Gathered
    finite: bool
    sent: int
    wanted: int
    notes: Tensor | None = None
    qualified: int = 0
    choosable: int = 0
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rooms: Mapping[str, int] = field(default_factory=dict)
    loss: float = nan
    alarmed: bool = False
    pace: Pace = UNKNOWN_PACE
    spectrum: Spectrum | None = None
    change: float = nan
    message_bytes: int = 0
    fixed_bytes: int = 0
    value_bits: int = 0
    own: Payload | None = None
    senders: tuple[int, ...] | None = None
    kept: Mapping[str, Tensor] = field(default_factory=dict)


Steps = Generator[Request, Reply, Mean]


@runtime_checkable
class Compressor(Protocol):
    """WHAT is worth sending. Frozen data; two with equal fields are the same compressor.

    ``ranks_choose`` says whether each rank chooses entries of its own, or all ranks send the same ones;
    ``counts_vary`` whether its plans are counted; ``reads_before`` whether it needs ``Fresh.before``.
    """

    name: ClassVar[str]
    ranks_choose: ClassVar[bool]
    counts_vary: ClassVar[bool]
    reads_before: ClassVar[bool]

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Say what every rank knows of this step's payload before it is made.

        ``rooms`` are the agreed ones by segment name; a segment that has none yet gets a first guess.
        """

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:
        """Take entries out of x; leave in x exactly what was not taken."""


@runtime_checkable
class Sparsifier(Protocol):
    """A compressor whose amount is one number, so that a tuner can move it."""

    name: ClassVar[str]

    @property
    def density(self) -> float:
        """The share of entries sent, in (0, 1]."""

    def at_density(self, density: float) -> Compressor:
        """Return the same compressor with another density."""


@runtime_checkable
class Thresholder(Sparsifier, Protocol):
    """A compressor that sends what exceeds c deviations; a larger c sends less."""

    @property
    def c(self) -> float:
        """The coefficient of the deviation, over 0."""

    def at_c(self, c: float) -> Compressor:
        """Return the same compressor with another coefficient."""


@runtime_checkable
class Exchange(Protocol):
    """HOW vectors become a mean: a generator that asks for collectives and does no I/O of its own."""

    name: ClassVar[str]

    @property
    def lossless(self) -> bool:
        """Whether what the compressor takes arrives as it is, so that a dense gradient leaves nothing owed."""

    @property
    def tells(self) -> bool:
        """Whether every rank hears every rank: its loss, alarm and spectrum, and only some ranks may send."""

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Reduce x to the mean of what all ranks sent; leave in x what this rank did not send."""

    def check(self, compressor: Compressor) -> None:
        """Raise ``ValueError`` if this exchange cannot carry what the compressor makes."""


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """The momentum that a method applies to a parameter in the optimizer's stead."""

    factor: float
    nesterov: bool = False


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What all ranks agree on of the step before, given to the tuner when the next one begins.

    ``qualified`` of ``choosable`` entries would have been sent had there been room, leaving out what every
    rank sends anyway. ``loss`` is the mean over the ranks that told ``link.observe`` one (NaN: none did);
    ``alarmed`` says that on some rank what is owed has run away. ``spectrum`` is the mean over ranks of how large
    entries were (for tuners that need it). Of a rank's ``message_bytes`` ``fixed_bytes`` were not for chosen
    entries; there was ``room`` for so many of these, a value having ``value_bits``. ``ranks`` of ``world_size``
    sent. ``pace`` is of one step earlier; ``change``: by which share the fresh gradient fell along what was sent.
    """

    step: int
    entries: int
    sent: int
    wanted: int
    skipped: bool
    qualified: int = 0
    choosable: int = 0
    loss: float = nan
    alarmed: bool = False
    spectrum: Spectrum | None = None
    message_bytes: int = 0
    fixed_bytes: int = 0
    value_bits: int = 0
    room: int = 0
    ranks: int = 1
    world_size: int = 1
    change: float = nan
    pace: Pace = UNKNOWN_PACE


TunerState = dict[str, float]


@runtime_checkable
class Tuner(Protocol):
    """HOW MUCH: a pure pair. The state is a dict of numbers, so that it can be saved as it is."""

    name: ClassVar[str]

    @property
    def needs_loss(self) -> bool:
        """Whether it follows ``Observation.loss``."""

    @property
    def spectrum_of(self) -> SpectrumOf:
        """Of what it wants ``Observation.spectrum``, which then travels in every message."""

    def init(self, compressor: Compressor) -> TunerState:
        """Return the state before the first step, or raise ``ValueError`` if it cannot tune this compressor."""

    def update(self, state: TunerState, seen: Observation, compressor: Compressor) -> tuple[TunerState, Compressor]:
        """Return the next state and the compressor for the step ``seen.step``."""
