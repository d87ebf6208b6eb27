"""The messages of an exchange in two rounds: entries go to the rank that adds them up, and sums to every rank.

A part of the first round has a word (a mark, the last bits of the step and of a digest of what ranks agree on, and
how many entries the rank has chosen there), for counted plans how many qualified of each segment that begins there,
and its entries. A message of the second round has a whole header, how many entries ranks had for the range and how
many of them are in the sum, spectrum, notes, for counted plans how many qualified over all ranks, and the sums. All
start at multiples of 8 bytes, and unused room is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

import torch
from torch import Tensor

from laconic.coding import padded
from laconic.errors import WireError
from laconic.shards import Part, Shard
from laconic.spectrum import SPECTRUM_BYTES, Spectrum
from laconic.wire.first_word import chosen_by, first_word, seal_parts_
from laconic.wire.header import HEADER_BYTES, Header, Received, read_said, seal_, with_totals
from laconic.wire.message import Frame
from laconic.wire.parts import Bodies, Entries, read_parts
from laconic.wire.sheet import Sheet, sheet_of

_WORD = 8


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What all ranks gave to this one: how many entries each had, how many it gave, and these."""

    demand: int
    counts: list[int]
    wanted: list[int]
    entries: Entries


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a rank tells of its range: entries that ranks had for it, those summed up, how many qualified."""

    demand: int
    survived: int
    wanted: list[int]


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What every rank learns in the second round: what ranks had for each range, what was summed up, the sums."""

    headers: list[Received]
    demand: list[int]
    survived: list[int]
    wanted: list[int]
    notes: Tensor | None
    spectrum: Spectrum | None
    entries: Entries


@dataclass(frozen=True, kw_only=True)
class Deal:
    """What all ranks know of both rounds before they begin: frame and shards; ``rank`` is this one."""

    frame: Frame
    shards: tuple[Shard, ...]
    rank: int

    @property
    def ranks(self) -> int:
        """How many take part."""
        return len(self.shards)

    @cached_property
    def given(self) -> Sheet:
        """The parts that a rank gives."""
        return self._sheet(tuple(shard.part for shard in self.shards))

    @cached_property
    def heard(self) -> Sheet:
        """The parts that this rank hears."""
        return self._sheet((self.shards[self.rank].part,) * self.ranks)

    @cached_property
    def told(self) -> Sheet:
        """The sums of all ranks."""
        return self._sheet(tuple(shard.result for shard in self.shards))

    @cached_property
    def own(self) -> Sheet:
        """The sums of this rank."""
        return self._sheet((self.shards[self.rank].result,))

    @cached_property
    def given_bytes(self) -> tuple[int, ...]:
        """How many bytes a rank gives to each."""
        each = zip(self.shards, self.given.sizes, strict=True)
        return tuple(_WORD + self._wanted_bytes(shard) + size for shard, size in each)

    @cached_property
    def message_bytes(self) -> int:
        """How many bytes a rank tells all."""
        each = zip(self.shards, self.told.sizes, strict=True)
        return max(self._body(shard) + size for shard, size in each)

    @property
    def received_bytes(self) -> int:
        """How many bytes a rank receives in both rounds, at most."""
        return self.ranks * (max(self.given_bytes) + self.message_bytes)

    @property
    def sent_bytes(self) -> int:
        """How many bytes a rank hands over in both rounds."""
        return sum(self.given_bytes) + self.message_bytes

    @property
    def fixed_bytes(self) -> int:
        """How many of them are not for chosen entries, for the rank that has most of these."""
        first = zip(self.shards, self.given.fixed, strict=True)
        second = zip(self.shards, self.told.fixed, strict=True)
        given = sum(_WORD + self._wanted_bytes(shard) + fixed for shard, fixed in first)
        return given + max(self._body(shard) + fixed for shard, fixed in second)

    @property
    def count_dtype(self) -> torch.dtype:
        """What counts over all ranks are written in."""
        return torch.int32 if self.ranks * max(1, self.frame.plan.choosing.numel) < 2**31 else torch.int64

    def wanted_bytes(self, wanted: Tensor, shard: Shard) -> Tensor:
        """Return how many qualified of the segments that begin in a range, as bytes; none if that is agreed."""
        out = torch.zeros(self._wanted_bytes(shard), dtype=torch.uint8, device=wanted.device)
        if out.numel():
            raw = wanted[shard.told].to(self.count_dtype).view(torch.uint8)
            out[: raw.numel()] = raw
        return out

    def _sheet(self, parts: tuple[Part, ...]) -> Sheet:
        return sheet_of(parts, self.frame.form, self.frame.dtype)

    def _wanted_bytes(self, shard: Shard) -> int:
        count = shard.told.stop - shard.told.start if self.frame.plan.counted else 0
        return padded(8 * count * self.count_dtype.itemsize)

    @property
    def _spectrum(self) -> int:
        return HEADER_BYTES + 2 * self.count_dtype.itemsize

    @property
    def _notes(self) -> int:
        return self._spectrum + (SPECTRUM_BYTES if self.frame.spectrum else 0)

    @property
    def _wanted(self) -> int:
        return self._notes + padded(8 * self.frame.notes)

    def _body(self, shard: Shard) -> int:
        return self._wanted + self._wanted_bytes(shard)

    def give(self, bodies: Bodies, had: Tensor, wanted: Tensor, own: Header) -> Tensor:
        """Return what goes to the ranks, one behind the other; this one ``had`` so many entries for each."""
        words = ((had << 32) + first_word(own)).view(torch.uint8).split(_WORD)
        each = zip(words, self.shards, bodies.raw, strict=True)
        out = torch.cat(
            [raw for word, shard, body in each for raw in (word, self.wanted_bytes(wanted, shard), *body)]
        )
        return seal_parts_(out, self._begins)

    @cached_property
    def _begins(self) -> tuple[int, ...]:
        """At which word of what a rank gives each part begins."""
        return tuple(accumulate((size // _WORD for size in self.given_bytes), initial=0))

    def hear(self, reply: Tensor, own: Header) -> Heard:
        """Read what every rank gave; raise if one is malformed, or at another step."""
        shard, size = self.shards[self.rank], self.given_bytes[self.rank]
        if reply.numel() != self.ranks * size:
            raise WireError(f"the ranks gave {reply.numel()} bytes, the plan says {self.ranks * size}.")
        rows, start = reply.view(self.ranks, size), _WORD + self._wanted_bytes(shard)
        begin = self._begins[self.rank]
        said, totals = with_totals(rows, start, first=begin)
        words: list[int] = said[:, :_WORD].contiguous().view(torch.int64).flatten().tolist()
        had = chosen_by(words, totals.tolist(), own, begin)
        wanted = self._wanted_of(said[:, _WORD:], shard)
        most = self._most(shard)
        for rank, (count, some) in enumerate(zip(had, wanted, strict=True)):
            if not 0 <= count <= most or not self._possible(some, shard):
                raise WireError(
                    f"rank {rank} says it has chosen {count} entries of a range ({some} having qualified of its "
                    f"parameters); at most {most} can be."
                )
        counts = [min(count, shard.part.room) for count in had]
        return Heard(
            demand=sum(had),
            counts=counts,
            wanted=[sum(column) for column in zip(*wanted, strict=True)],
            entries=read_parts(self.heard, list(rows[:, start:]), counts),
        )

    def tell(
        self, own: Header, told: Bodies, numbers: Numbers, spectrum: Tensor | None, notes: Tensor | None
    ) -> Tensor:
        """Return what this rank tells all of its range."""
        device, shard = told.sent.known.device, self.shards[self.rank]
        out = torch.zeros(self.message_bytes, dtype=torch.uint8, device=device)
        counts = torch.tensor([numbers.demand, numbers.survived, *numbers.wanted], dtype=self.count_dtype)
        raw = counts.view(torch.uint8).to(device, non_blocking=True)
        split = 2 * self.count_dtype.itemsize
        parts = [
            (0, own.words(device).view(torch.uint8)),
            (HEADER_BYTES, raw[:split]),
            (self._spectrum, out[:0] if spectrum is None else spectrum),
            (self._notes, out[:0] if notes is None else notes.to(torch.uint8)),
            (self._wanted, raw[split:]),
            (self._body(shard), torch.cat(told.raw[0])),
        ]
        for start, part in parts:
            out[start : start + part.numel()] = part
        return seal_(out)

    def learn(self, rows: Tensor, own: Header) -> Learnt:
        """Read what every rank tells; raise if one is malformed, or from another run."""
        if rows.shape[1] != self.message_bytes:
            raise WireError(f"a message has {rows.shape[1]} bytes, the plan says {self.message_bytes}.")
        said, totals = with_totals(rows, max(self._body(shard) for shard in self.shards))
        headers = read_said(said, own, self.frame.plan, totals, most=[shard.result.room for shard in self.shards])
        numbers: list[list[int]] = (
            said[:, HEADER_BYTES : self._spectrum].contiguous().view(self.count_dtype).tolist()
        )
        for rank, (header, shard, (demand, survived)) in enumerate(zip(headers, self.shards, numbers, strict=True)):
            most = self.ranks * min(shard.part.room, header.count)
            if not header.count <= survived <= min(demand, most) or demand > self.ranks * self._most(shard):
                raise WireError(
                    f"rank {rank} says that {survived} of {demand} entries are in its sum of {header.count}; there "
                    f"can be {most} of {self.ranks * self._most(shard)}."
                )
        rows_said = [self._wanted_of(said[i : i + 1, self._wanted :], s)[0] for i, s in enumerate(self.shards)]
        possible = all(map(partial(self._possible, ranks=self.ranks), rows_said, self.shards))
        wanted, qualified = [n for row in rows_said for n in row], sum(header.wanted for header in headers)
        if self.frame.plan.counted and (sum(wanted) != qualified or not possible):
            raise WireError(f"{qualified} entries qualified by what ranks say, and {wanted} of each parameter.")
        starts = [self._body(shard) for shard in self.shards]
        bodies = [row[at : at + size] for row, at, size in zip(rows, starts, self.told.sizes, strict=True)]
        spectra = [Spectrum.read(row[self._spectrum : self._notes]) for row in said] if self.frame.spectrum else []
        notes = rows[:, self._notes : self._notes + self.frame.notes]
        return Learnt(
            headers=headers,
            demand=[demand for demand, _ in numbers],
            survived=[survived for _, survived in numbers],
            wanted=wanted,
            notes=notes.sum(0) if self.frame.notes else None,
            spectrum=Spectrum.mean(spectra) if spectra else None,
            entries=read_parts(self.told, bodies, [header.count for header in headers]),
        )

    def _most(self, shard: Shard) -> int:
        """Return how many entries a rank can have for a range."""
        return min(self.frame.plan.capacity, sum(map(len, shard.part.pieces)))

    def _possible(self, wanted: list[int], shard: Shard, *, ranks: int = 1) -> bool:
        """Say whether so many can have qualified of the segments that begin in a range."""
        segments = self.frame.plan.choosing.items[shard.told]
        return all(0 <= n <= ranks * segment.size for n, segment in zip(wanted, segments, strict=False))

    def _wanted_of(self, said: Tensor, shard: Shard) -> list[list[int]]:
        """Read counts of the segments that begin in a range, a list a row."""
        if not self.frame.plan.counted:
            return [[] for _ in said]
        raw = said[:, : self._wanted_bytes(shard)].contiguous().view(self.count_dtype)
        found: list[list[int]] = raw[:, : shard.told.stop - shard.told.start].tolist()
        return found
