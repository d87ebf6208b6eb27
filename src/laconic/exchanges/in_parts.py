"""One part of the entries in each step, another in the next: by another exchange, which then sees so many fewer.

A position among a part's entries takes fewer bits than one among all, and choosing among them is less work. An
entry that is chosen once in hundreds of steps loses little by waiting for the turn of its part.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from laconic import kernels
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
    there are fewer parts. A threshold stays what it is. Where one rank chooses for all, each rank does so for each
    part in turn.

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
        """Refuse what does not choose a share or by a threshold, and what the inner exchange refuses."""
        largest = compressor.ranks_choose and isinstance(compressor, _Largest)
        # What draws by chance is right in the mean only where every entry may be drawn in every step.
        if not largest or compressor.name == "stochastic":
            raise ValueError(
                f"in_parts has ranks choose the largest entries of a part, and {compressor.name} does not choose "
                f"the largest, or no share of them. Use TopK, or {self.inner.name} without parts."
            )
        try:
            self.inner.check(compressor)
        except ValueError as error:
            raise ValueError(f"in_parts is within a part what its inner exchange is: {error}") from error

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; return the mean of what all ranks sent."""
        self.check(compressor)
        compressor, parts = _within(compressor, self.parts, x.numel())
        if parts == 1:
            return (yield from self.inner.steps(x, segments, compressor, envelope))
        part = _Part(number=envelope.step % parts, of=parts, block=self.block)
        mine, share = part.taken(x), _segments_of(segments, part)
        fresh = envelope.fresh
        if fresh is not None:
            # Where nothing passes a threshold, the largest that is here goes.
            fresh = replace(fresh, largest=kernels.fresh_of(mine, share).largest)
        # A step later another rank chooses for all, and so does one when this part comes again.
        envelope = replace(envelope, fresh=fresh, turn=envelope.step // parts + envelope.step % parts)
        mean = yield from self.inner.steps(mine, share, compressor, envelope)
        part.put_(x, mine)
        # Over a whole turn of the parts, what is chosen is chosen from all there is.
        choosable = mean.choosable * x.numel() // max(1, mine.numel())
        return replace(_spread(mean, part), choosable=choosable)


@runtime_checkable
class _Largest(Sparsifier, Protocol):
    """What chooses the largest, or about these, but takes small segments whole."""

    @property
    def whole_below(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Of every ``of`` blocks of a vector one: the ``number``-th of the first, and each time the one before.

    Were it always the same, in a matrix whose rows are a whole number of such rounds it would be the same columns.
    """

    number: int
    of: int
    block: int

    def begins(self, offset: int) -> int:
        """Return how many of the part's entries lie before an offset of the whole.

        >>> [_Part(number=1, of=2, block=3).begins(offset) for offset in (0, 3, 4, 6, 9, 11)]
        [0, 0, 1, 3, 6, 6]
        """
        rounds, rest = divmod(offset, self.of * self.block)
        here = rest - (self.number - rounds) % self.of * self.block
        return rounds * self.block + min(max(here, 0), self.block)

    def at(self, positions: Tensor) -> Tensor:
        """Return where entries of the part lie in the whole.

        >>> _Part(number=1, of=2, block=3).at(torch.arange(6)).tolist()
        [3, 4, 5, 6, 7, 8]
        """
        rounds = torch.div(positions, self.block, rounding_mode="floor")
        return positions + (rounds * (self.of - 1) + (self.number - rounds) % self.of) * self.block

    def taken(self, x: Tensor) -> Tensor:
        """Return a copy of the part."""
        blocks, rest = self._blocks(x)
        mine = x.new_empty(self.begins(x.numel()))
        there = mine[: mine.numel() - rest.numel()].view(-1, self.block)
        torch.index_select(blocks, 0, self._places(x), out=there)
        mine[there.numel() :] = rest
        return mine

    def put_(self, x: Tensor, part: Tensor) -> None:
        """Write the part into x; the other parts are left as they are."""
        blocks, rest = self._blocks(x)
        there = part[: part.numel() - rest.numel()].view(-1, self.block)
        blocks.index_copy_(0, self._places(x), there)
        rest.copy_(part[there.numel() :])

    def _blocks(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the blocks of all whole rounds, a row each, and what the part has behind them."""
        rounds = x.numel() // (self.of * self.block)
        behind = x[rounds * self.of * self.block :][(self.number - rounds) % self.of * self.block :]
        return x[: rounds * self.of * self.block].view(-1, self.block), behind[: self.block]

    def _places(self, x: Tensor) -> Tensor:
        """Return which of the blocks are the part's."""
        rounds = torch.arange(x.numel() // (self.of * self.block), device=x.device)
        return rounds * self.of + (self.number - rounds) % self.of


@lru_cache(maxsize=4096)
def _segments_of(segments: Segments, part: _Part) -> Segments:
    """Return where the part's share of each segment lies in the part; a small one may have none.

    They have names of their own: how much is sent of one part says little of the next.
    """
    edges = [(part.begins(s.offset), part.begins(s.offset + s.size)) for s in segments]
    return Segments(
        tuple(
            Segment(name=f"{s.name}, part {part.number} of {part.of}", offset=a, size=b - a)
            for s, (a, b) in zip(segments, edges, strict=True)
        )
    )


def _within(compressor: Compressor, parts: int, entries: int) -> tuple[Compressor, int]:
    """Return what chooses from a part as much as it would from all, and how many parts there are then."""
    assert isinstance(compressor, _Largest)
    if entries < compressor.whole_below or compressor.density == 1:
        return compressor, 1
    # Whether the whole model is a small one was asked above; no part is.
    large: Any = replace(cast("Any", compressor), whole_below=0)
    if isinstance(compressor, Thresholder):
        return large, parts
    parts = max(1, min(parts, int(1 / compressor.density)))
    return large.at_density(min(1.0, compressor.density * parts)), parts


def _spread(mean: Mean, part: _Part) -> Mean:
    """Return the mean of a part as one of the whole."""
    values = mean.values
    assert isinstance(values, Gathered)
    assert isinstance(values.known, Tensor)
    payloads = tuple(_placed(payload, part) for payload in values.payloads)
    own = None if mean.own is None else _placed(mean.own, part)
    return replace(mean, values=replace(values, known=part.at(values.known), payloads=payloads), own=own)


def _placed(payload: Payload, part: _Part) -> Payload:
    return replace(payload, positions=part.at(payload.positions))
