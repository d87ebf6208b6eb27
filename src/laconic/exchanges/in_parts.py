"""One part of the entries in each step, another in the next: by another exchange, which then sees so many fewer.

A position among a part's entries takes fewer bits than one among all, and choosing among them is less work. An
entry that is chosen once in hundreds of steps loses little by waiting for the turn of its part.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from laconic.arguments import check_whole
from laconic.exchanges.gather_mean import GatherMean
from laconic.exchanges.led_mean import LedMean
from laconic.segments import Segment, Segments
from laconic.types import (
    Compressor,
    Envelope,
    Exchange,
    Gathered,
    Mean,
    Payload,
    Sparsifier,
    Steps,
    Thresholder,
)


@dataclass(frozen=True, kw_only=True)
class InParts:
    """``inner``, in each step for one of ``parts`` parts of the entries, which take turns.

    Blocks of ``block`` entries that lie together are dealt out to the parts one by one. What sends a share of the
    entries sends as many a step as without parts, all of them of one part; where a part has no more than these,
    there are fewer parts. A threshold stays what it is.

        method = laconic.topk(0.002, scope="model", memory="update", exchange="led", values="sign")
        replace(method, exchange=InParts(inner=method.exchange, parts=16))
    """

    name: ClassVar[str] = "in_parts"
    inner: Exchange = field(default_factory=LedMean)
    parts: int = 16
    # A cache line or four: to read one of many blocks then costs as little as it can.
    block: int = 64

    def __post_init__(self) -> None:
        if not isinstance(self.inner, GatherMean | LedMean):
            raise TypeError(
                f"inner must be an exchange whose messages name entries, got {self.inner!r}. Write LedMean() or "
                f"GatherMean()."
            )
        check_whole("parts", self.parts, 2, "Write 16, say; without parts take the inner exchange by itself.")
        check_whole("block", self.block, 1, "It counts entries; write 64, say.")

    @property
    def lossless(self) -> bool:
        """Whether values arrive as they are."""
        return self.inner.lossless

    @property
    def tells(self) -> bool:
        """Whether every rank hears every rank."""
        return self.inner.tells

    def check(self, compressor: Compressor) -> None:
        """Refuse what chooses nothing or has no share to keep to, and what the inner exchange refuses."""
        if not compressor.ranks_choose or not isinstance(compressor, Sparsifier):
            raise ValueError(
                f"in_parts has ranks choose from a part of the entries, and {compressor.name} keeps to no share "
                f"and no threshold. Use TopK, or {self.inner.name} without parts."
            )
        try:
            self.inner.check(compressor)
        except ValueError as error:
            raise ValueError(f"in_parts is within a part what its inner exchange is: {error}") from error

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; return the mean of what all ranks sent."""
        self.check(compressor)
        compressor, parts = _within(compressor, self.parts)
        part = _Part(number=envelope.step % parts, of=parts, block=self.block)
        fresh = envelope.fresh
        if fresh is not None and fresh.before is not None:
            envelope = replace(envelope, fresh=replace(fresh, before=part.taken(fresh.before)))
        mine = part.taken(x)
        mean = yield from self.inner.steps(mine, _segments_of(segments, part), compressor, envelope)
        part.put_(x, mine)
        mean = _spread(mean, part)
        # What may be chosen is all there is: over a whole turn, all that is chosen is chosen from it.
        choosable = mean.choosable * x.numel() // max(1, mine.numel())
        return replace(mean, choosable=choosable)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Every ``of``-th block of a vector, from block ``number`` on."""

    number: int
    of: int
    block: int

    def begins(self, offset: int) -> int:
        """Return how many of the part's entries lie before an offset of the whole.

        >>> [_Part(number=1, of=2, block=3).begins(offset) for offset in (0, 3, 4, 6, 9, 11)]
        [0, 0, 1, 3, 3, 5]
        """
        rounds, rest = divmod(offset, self.of * self.block)
        return rounds * self.block + min(max(rest - self.number * self.block, 0), self.block)

    def at(self, positions: Tensor) -> Tensor:
        """Return where entries of the part lie in the whole.

        >>> _Part(number=1, of=2, block=3).at(torch.arange(5)).tolist()
        [3, 4, 5, 9, 10]
        """
        block = torch.div(positions, self.block, rounding_mode="floor")
        return positions + block * ((self.of - 1) * self.block) + self.number * self.block

    def taken(self, x: Tensor) -> Tensor:
        """Return a copy of the part."""
        rows, rest = self._views(x)
        return torch.cat([rows.reshape(-1), rest])

    def put_(self, x: Tensor, part: Tensor) -> None:
        """Write the part into x; the other parts are left as they are."""
        rows, rest = self._views(x)
        rows.copy_(part[: rows.numel()].view(rows.shape))
        rest.copy_(part[rows.numel() :])

    def _views(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part's blocks, a row each, and what it has behind the last full round of blocks."""
        full = x.numel() // (self.of * self.block)
        rows = x[: full * self.of * self.block].view(full, self.of, self.block)[:, self.number]
        return rows, x[full * self.of * self.block :][self.number * self.block :][: self.block]


@lru_cache(maxsize=1024)
def _segments_of(segments: Segments, part: _Part) -> Segments:
    """Return where the part's share of each segment lies in the part; a small one may have none."""
    edges = [(part.begins(s.offset), part.begins(s.offset + s.size)) for s in segments]
    return Segments(
        tuple(Segment(name=s.name, offset=a, size=b - a) for s, (a, b) in zip(segments, edges, strict=True))
    )


def _within(compressor: Compressor, parts: int) -> tuple[Compressor, int]:
    """Return what chooses from a part as much as it would from all, and how many parts there are then."""
    assert isinstance(compressor, Sparsifier)
    parts = max(1, min(parts, int(1 / compressor.density))) if compressor.density > 0 else parts
    if isinstance(compressor, Thresholder) or parts == 1:
        return compressor, parts
    return compressor.at_density(min(1.0, compressor.density * parts)), parts


def _spread(mean: Mean, part: _Part) -> Mean:
    """Return the mean of a part as one of the whole."""
    values = mean.values
    assert isinstance(values, Gathered)
    known = values.known
    if isinstance(known, slice):
        known = torch.arange(known.start or 0, known.stop)
    payloads = tuple(_placed(payload, part) for payload in values.payloads)
    own = None if mean.own is None else _placed(mean.own, part)
    return replace(mean, values=replace(values, known=part.at(known), payloads=payloads), own=own)


def _placed(payload: Payload, part: _Part) -> Payload:
    return replace(payload, positions=part.at(payload.positions))
