"""Where each parameter lies in a flat tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One parameter's place in a flat tensor; there it is a matrix of ``rows``, or a vector where that is 1."""

    name: str
    offset: int
    size: int
    rows: int = 1


@dataclass(frozen=True)
class Segments:
    """Where each parameter lies in a flat tensor, so that per-layer rules are one call.

    >>> Segments.of(["weight", "bias"], [6, 2])["bias"]
    Segment(name='bias', offset=6, size=2, rows=1)
    """

    items: tuple[Segment, ...]

    @staticmethod
    def of(names: Sequence[str], sizes: Sequence[int], rows: Sequence[int] | None = None) -> Segments:
        """Lay the named sizes out one behind the other; without ``rows`` all are vectors."""
        items, offset = [], 0
        for name, size, row in zip(names, sizes, rows or [1] * len(names), strict=True):
            items.append(Segment(name=name, offset=offset, size=size, rows=row))
            offset += size
        return Segments(tuple(items))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, name: str) -> Segment:
        return self._by_name[name]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Layouts are looked up at every step, and are long.
        return hash(self.items)

    def among(self, names: tuple[str, ...]) -> Segments:
        """Return the named ones, where they lie; the same object for the same names.

        >>> Segments.of(["a", "b", "c"], [3, 2, 1]).among(("c", "a"))["c"].offset
        5
        """
        if names not in self._chosen:
            self._chosen[names] = Segments(tuple(self._by_name[name] for name in names))
        return self._chosen[names]

    @cached_property
    def _chosen(self) -> dict[tuple[str, ...], Segments]:
        return {}

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
