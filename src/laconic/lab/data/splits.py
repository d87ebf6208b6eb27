"""Who gets which examples: ways to share a training set out over ranks, from alike to very different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from laconic.lab.seeds import seed_for

Indices = NDArray[np.int64]
WAYS = ("iid", "similarity", "dirichlet", "speaker")
_WRITTEN = {"iid": "iid", "similarity": "similarity:50", "dirichlet": "dirichlet:0.5", "speaker": "speaker"}


@dataclass(frozen=True, kw_only=True)
class _How:
    way: str
    number: float


def _read(how: str, allowed: Sequence[str]) -> _How:
    way, colon, text = how.partition(":")
    there_is = ", ".join(_WRITTEN[name] for name in allowed)
    if way not in allowed:
        raise ValueError(f"there is no split {how!r} here. There is: {there_is}.")
    if way in ("iid", "speaker"):
        if colon:
            raise ValueError(f"split {way} takes no number, got {how!r}. Write {way}.")
        return _How(way=way, number=0.0)
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"split {way} wants a number, got {how!r}. Write {_WRITTEN[way]}, say.") from None
    if way == "similarity" and not 0 <= number <= 100:
        raise ValueError(f"similarity is in percent, 0 to 100, got {how!r}. Write similarity:50, say.")
    if way == "dirichlet" and not (isfinite(number) and number > 0):
        raise ValueError(f"dirichlet wants a finite number above 0, got {how!r}. Write dirichlet:0.5, say.")
    return _How(way=way, number=number)


def check_split(how: str, allowed: Sequence[str] = WAYS) -> None:
    """Refuse what ``split`` would not understand, or what is not among the ways allowed.

    >>> check_split("similarity:30")
    """
    _read(how, allowed)


def split(
    how: str, *, ranks: int, seed: int, labels: NDArray[np.int64], speakers: Sequence[str] | None = None
) -> list[Indices]:
    """Return each rank's examples: no example twice, every rank at least one, the same for the same seed.

    | how | a rank gets |
    |---|---|
    | ``iid`` | an equal slice of the shuffled examples |
    | ``similarity:S`` | equal slices of a shuffled pool, S% of each label, and of one sorted by label (EPISODE) |
    | ``dirichlet:A`` | of each label a share; a label's shares over ranks are drawn from Dirichlet(A, ..., A) |
    | ``speaker`` | whole speakers, the largest first to the rank that has least so far |

    iid and similarity give equal sizes and leave out ``len(labels) % ranks`` examples; the others leave out none.

    >>> [len(part) for part in split("iid", ranks=3, seed=0, labels=np.zeros(10, dtype=np.int64))]
    [3, 3, 3]
    """
    wanted = _read(how, WAYS)
    if len(labels) < ranks:
        raise ValueError(f"{len(labels)} examples cannot be shared out over {ranks} ranks. Use fewer ranks.")
    draw = np.random.default_rng(seed_for(seed, "split"))
    if wanted.way == "iid":
        return _slices(draw.permutation(len(labels)), ranks)
    if wanted.way == "similarity":
        return _similar(draw, labels, wanted.number / 100, ranks)
    if wanted.way == "dirichlet":
        return _dirichlet(draw, labels, wanted.number, ranks)
    if speakers is None or len(speakers) != len(labels):
        raise ValueError("split speaker needs to know who speaks: this data has no speakers. Write iid.")
    return _by_speaker(speakers, ranks)


def _slices(pool: Indices, ranks: int) -> list[Indices]:
    size = len(pool) // ranks
    return [pool[rank * size : (rank + 1) * size] for rank in range(ranks)]


def _similar(draw: np.random.Generator, labels: Indices, share: float, ranks: int) -> list[Indices]:
    shuffled, kept = [], []
    for label in np.unique(labels):
        mine = draw.permutation(np.flatnonzero(labels == label))
        cut = round(share * len(mine))
        shuffled.append(mine[:cut])
        kept.append(mine[cut:])
    by_label = np.concatenate(kept)
    # What equal slices would leave over of the sorted pool goes to the other, so that only n % ranks are lost.
    over = np.sort(draw.choice(len(by_label), len(by_label) % ranks, replace=False))
    pool = draw.permutation(np.concatenate([*shuffled, by_label[over]]))
    both = zip(_slices(pool, ranks), _slices(np.delete(by_label, over), ranks), strict=True)
    return [np.concatenate(pair) for pair in both]


def _dirichlet(draw: np.random.Generator, labels: Indices, concentration: float, ranks: int) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(ranks)]
    for label in np.unique(labels):
        mine = draw.permutation(np.flatnonzero(labels == label))
        shares = draw.dirichlet(np.full(ranks, concentration))
        # Of very small numbers all shares can come out as 0/0: one rank has everything then.
        if not np.isfinite(shares).all():
            shares = np.eye(ranks)[draw.integers(ranks)]
        cuts = np.rint(np.cumsum(shares)[:-1] * len(mine)).astype(np.int64)
        for part, piece in zip(parts, np.split(mine, cuts), strict=True):
            part.append(piece)
    return _none_empty([np.concatenate(part) for part in parts])


def _none_empty(parts: list[Indices]) -> list[Indices]:
    """Give one example of the largest part to each rank that has none."""
    for rank in range(len(parts)):
        if not len(parts[rank]):
            largest = max(range(len(parts)), key=lambda r: len(parts[r]))
            parts[rank], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return parts


def _by_speaker(speakers: Sequence[str], ranks: int) -> list[Indices]:
    names, who, counts = np.unique(np.asarray(speakers), return_inverse=True, return_counts=True)
    if len(names) < ranks:
        raise ValueError(
            f"split speaker gives whole speakers to ranks: {len(names)} speakers do not go round {ranks} ranks. "
            f"Use at most {len(names)} ranks, or another split."
        )
    owner = np.zeros(len(names), dtype=np.int64)
    load = np.zeros(ranks, dtype=np.int64)
    for speaker in np.argsort(-counts, kind="stable"):
        owner[speaker] = np.argmin(load)
        load[owner[speaker]] += counts[speaker]
    return [np.flatnonzero(owner[who] == rank) for rank in range(ranks)]
