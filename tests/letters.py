"""Messages before they are packed: what tests of the wire write and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

import torch
from torch import Tensor

from contracts.vectors import segments_of
from laconic import kernels
from laconic.codecs import Exact
from laconic.coding import Codec
from laconic.spectrum import SPECTRUM_BYTES
from laconic.types import Payload, Plan
from laconic.wire import HEADER_BYTES, Frame, Header, Message, Packed, pack, seal_, unpack

HUGE = 2**31


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a rank chooses of one segment: positions within it, and how many qualified."""

    size: int
    room: int
    chosen: tuple[int, ...] = ()
    wanted: int | None = None

    @property
    def qualified(self) -> int:
        return len(self.chosen) if self.wanted is None else self.wanted


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A message before it is packed; ``values`` are those of the known parameters, then those chosen."""

    parts: tuple[Part, ...] = ()
    known: tuple[int, ...] = ()
    values: Sequence[float] = ()
    dtype: torch.dtype = torch.float32
    codec: Codec = field(default_factory=Exact)
    counted: bool = True
    finite: bool = True
    notes: tuple[int, ...] = ()
    spectrum: bytes | None = None
    seed: int = 0

    @cached_property
    def plan(self) -> Plan:
        return Plan(
            known=torch.arange(sum(self.known)),
            known_sizes=self.known,
            choosing=segments_of([part.size for part in self.parts]),
            rooms=tuple(part.room for part in self.parts),
            counted=self.counted,
        )

    @cached_property
    def payload(self) -> Payload:
        each = zip(self.plan.choosing, self.parts, strict=True)
        at = [segment.offset + p for segment, part in each for p in part.chosen]
        values = torch.tensor(self.values, dtype=self.dtype)
        return Payload(
            known=values[: sum(self.known)],
            positions=torch.tensor(at, dtype=torch.int64),
            values=values[sum(self.known) :],
            wanted=torch.tensor([part.qualified for part in self.parts], dtype=torch.int64),
        )

    @cached_property
    def header(self) -> Header:
        return Header(
            fingerprint=7,
            step=8,
            count=sum(len(part.chosen) for part in self.parts),
            wanted=sum(part.qualified for part in self.parts),
            finite=self.finite,
            rates=5,
            value_bytes=self.dtype.itemsize,
            form=self.codec.form,
        )

    @cached_property
    def frame(self) -> Frame:
        return Frame(
            plan=self.plan,
            form=self.codec.form,
            dtype=self.dtype,
            notes=len(self.notes),
            spectrum=self.spectrum is not None,
        )

    def pack(self, payload: Payload | None = None) -> Packed:
        """Pack it, or another payload in its stead."""
        told = None if self.spectrum is None else torch.tensor(list(self.spectrum), dtype=torch.uint8)
        notes = torch.tensor(self.notes, dtype=torch.uint8)
        given = self.payload if payload is None else payload
        return pack(self.frame, given, self.header, self.codec, notes=notes, spectrum=told, seed=self.seed)

    def row(self) -> Tensor:
        """The message's bytes."""
        return self.pack().message

    def read(self, *rows: Tensor, own: Header | None = None) -> list[Message]:
        """Read rows as they come from the ranks."""
        return unpack(torch.stack(rows), self.frame, own or self.header)


def resealed(row: Tensor) -> Tensor:
    """The bytes with a seal that fits, as one would make it who means harm; what can have none is as it was."""
    if row.numel() < HEADER_BYTES or row.numel() % 8:
        return row
    row = row.clone()
    row.view(torch.int64)[5] &= 0xFFFFFFFF
    return seal_(row)


def decoded(codec: Codec, values: Tensor, ends: Tensor, seed: int = 0) -> Tensor:
    """What values are read as."""
    coded = codec.encode(values, ends, seed=seed)
    if codec.form.kind in ("float", "bfloat16"):
        return coded.codes.to(values.dtype)
    return kernels.dequantise(coded.codes, ends, coded.numbers, codec.form)


def alone(codec: Codec, values: list[float], seed: int = 0, dtype: torch.dtype = torch.float32) -> list[float]:
    """What the values of one span are read as."""
    return decoded(codec, torch.tensor(values, dtype=dtype), torch.tensor([len(values)]), seed).tolist()


def a_letter(source: Random, codec: Codec, dtype: torch.dtype = torch.float32) -> Letter:
    """Any message: up to four segments, some empty, some huge; parameters that go whole, notes, a spectrum."""
    counted = source.random() < 0.5
    parts = tuple(_part(source, counted=counted) for _ in range(source.randrange(5)))
    known = tuple(source.randrange(5) for _ in range(source.randrange(4)))
    count = sum(known) + sum(len(part.chosen) for part in parts)
    return Letter(
        parts=parts,
        known=known,
        values=[_number(source, dtype) for _ in range(count)],
        dtype=dtype,
        codec=codec,
        counted=counted,
        notes=tuple(source.randbytes(source.randrange(18))),
        spectrum=source.randbytes(SPECTRUM_BYTES) if source.random() < 0.5 else None,
        seed=source.getrandbits(32),
    )


def _part(source: Random, *, counted: bool) -> Part:
    """A segment and what is chosen of it; where nobody counts all room is used."""
    size = source.choice([0, 1, 3, 40, 1000, HUGE - 1, HUGE, HUGE + 10, 2**40])
    near = [source.randrange(max(0, size - 4), size) for _ in range(3)] if size else []
    some = [source.randrange(size) for _ in range(source.randrange(9))] if size else []
    chosen = sorted(set(near + some)) if source.random() < 0.8 else []
    free = min(3, size - len(chosen))
    room = len(chosen) + (source.randint(0, free) if counted else 0)
    wanted = len(chosen) + (source.randint(0, free) if room == len(chosen) else 0)
    return Part(size=size, room=room, chosen=tuple(chosen), wanted=wanted)


def _number(source: Random, dtype: torch.dtype) -> float:
    """A finite number: often a small one, a zero of either sign, the least or the largest there is."""
    limits = torch.finfo(dtype)
    edges = [0.0, -0.0, 1.0, -1.0, 2.0, limits.smallest_normal / 8, limits.max, -limits.max]
    return source.choice(edges) if source.random() < 0.2 else source.gauss(0.0, 10.0 ** source.randint(-3, 3))
