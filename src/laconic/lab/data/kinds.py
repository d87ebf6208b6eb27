"""What a data set is once it is in memory, one class a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# scipy.sparse.csr_matrix of float32; scipy has no types of its own.
SparseMatrix = Any


@dataclass(frozen=True, kw_only=True)
class Text:
    """Running text. Where a set has no test part, ``test`` is empty."""

    name: str
    train: str
    valid: str
    test: str


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Images as bytes, [number, height, width, channels], and their classes from 0."""

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    classes: int


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A recording of one channel, 16 bits a sample; what is said in it, in words; and who says it."""

    samples: NDArray[np.int16]
    words: str
    speaker: str


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Recordings with ``rate`` samples a second. ``digits``: each is one digit, to be joined into strings."""

    name: str
    rate: int
    train: tuple[Utterance, ...]
    test: tuple[Utterance, ...]
    digits: bool


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of sparse features with a label of 0 or 1 each."""

    name: str
    train: SparseMatrix
    train_labels: NDArray[np.int64]
    test: SparseMatrix
    test_labels: NDArray[np.int64]
