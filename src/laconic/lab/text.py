"""English text that needs no download: the language reference that CPython carries for its help system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Characters as numbers; the last tenth is for validation."""

    alphabet: str
    train: Tensor
    valid: Tensor


def embedded_corpus() -> Corpus:
    """Read ``pydoc_data``, in the order of its topics' names."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError(
            "this Python comes without pydoc_data (some distributions package it apart). "
            "Install the full standard library, on Debian: apt-get install python3-doc libpython3-stdlib."
        ) from error
    text = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    index = {c: i for i, c in enumerate(alphabet)}
    codes = torch.tensor([index[c] for c in text])
    cut = len(codes) * 9 // 10
    return Corpus(alphabet=alphabet, train=codes[:cut], valid=codes[cut:])


def streams(codes: Tensor, *, rank: int, ranks: int, batch: int) -> Tensor:
    """Cut the text in ranks x batch parallel streams and return this rank's, one a row."""
    length = len(codes) // (ranks * batch)
    return codes[: ranks * batch * length].view(ranks, batch, length)[rank]


def windows(rows: Tensor, *, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Walk along the streams: inputs and the characters that follow them, without overlap, for one pass."""
    if rows.shape[1] < length + 2:
        raise ValueError(
            f"a stream has {rows.shape[1]} characters, a window of {length} needs {length + 2}. "
            f"Use fewer ranks, a smaller batch or a shorter window."
        )
    for start in range(0, rows.shape[1] - length - 1, length):
        yield rows[:, start : start + length], rows[:, start + 1 : start + length + 1]
