"""Vectors to choose entries from: random ones in real models' layouts, and a real gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from laconic.lab.data.embedded import python_docs
from laconic.lab.layouts import lstm, resnet50
from laconic.lab.models.lstm import LSTM
from laconic.segments import Segments

_WORDS, _STREAMS, _LENGTH = 10_000, 20, 35


@dataclass(frozen=True, kw_only=True)
class Vector:
    """A vector, and where its parameters lie."""

    x: Tensor
    segments: Segments


def vectors(entries: int, *, layouts: bool) -> dict[str, Callable[[], Vector]]:
    """Return the vectors by name, to be made when they are wanted."""
    found: dict[str, Callable[[], Vector]] = {f"{entries:,} entries": lambda: random_vector([entries])}
    if layouts:
        found |= {
            "ResNet-50": lambda: random_vector(resnet50()),
            "LSTM 2 x 1500": lambda: random_vector(lstm()),
            "LSTM gradient": lstm_gradient,
        }
    return found


def random_vector(sizes: list[int]) -> Vector:
    """Return normal numbers laid out as parameters of these sizes."""
    segments = Segments.of([str(i) for i in range(len(sizes))], sizes)
    x = torch.randn(segments.numel, generator=torch.Generator().manual_seed(0))
    return Vector(x=x, segments=segments)


def lstm_gradient() -> Vector:
    """Return the gradient of an LSTM language model on the text that Python carries, by words, as it begins."""
    words = python_docs().train.split()
    known = {word: i for i, (word, _) in enumerate(Counter(words).most_common(_WORDS))}
    text = [known[word] for word in words if word in known][: _STREAMS * (_LENGTH + 1)]
    codes = torch.tensor(text).view(_STREAMS, -1)
    torch.manual_seed(0)
    model = LSTM(len(known), embedding=200, hidden=400)
    scores = model(codes[:, :-1], None).scores
    functional.cross_entropy(scores.flatten(0, 1), codes[:, 1:].flatten()).backward()
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    segments = Segments.of([name for name, _ in named], [g.numel() for _, g in named])
    return Vector(x=torch.cat([g.flatten() for _, g in named]), segments=segments)
