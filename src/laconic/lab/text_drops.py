"""What language models drop while they train, drawn for all ranks of a process at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.lab.models.awd import AWD
from laconic.lab.models.lstm import LSTM


@dataclass(frozen=True, kw_only=True)
class Drops:
    """What is left of signals and weights, as factors; None: all of it.

    ``signals`` are those of the embedding and of each layer's output, and fit [groups, length, columns, width];
    ``weights`` [groups, 4 width, width] are those of each layer's recurrent matrix.
    """

    signals: list[Tensor | None]
    weights: list[Tensor | None]


def drawn(model: LSTM | AWD, tokens: Tensor, widths: list[int], *, like: Tensor) -> Drops:
    """Draw for tokens [groups, length, columns]; ``widths`` are those of the embedding and the layers.

    AWD-LSTM's groups are its ranks: each draws weights and words of its own.
    """
    groups, length, columns = tokens.shape
    if isinstance(model, LSTM):
        shapes = [(groups, length, columns, width) for width in widths]
        return Drops(
            signals=[_left(shape, model.dropout, like) for shape in shapes], weights=[None] * len(model.lstm)
        )
    drops, layers = model.drops, len(model.lstm)
    shares = [drops.inputs, *[drops.between] * (layers - 1), drops.output]
    # The same all along a window.
    signals = [_left((groups, 1, columns, width), share, like) for width, share in zip(widths, shares, strict=True)]
    words = _left((groups, model.embedding.num_embeddings), drops.words, like)
    if words is not None:
        # A word that is dropped is nowhere in a rank's window.
        there = words.gather(1, tokens.flatten(1)).view(groups, length, columns, 1)
        signals[0] = there if signals[0] is None else signals[0] * there
    matrices = [_left((groups, 4 * width, width), drops.weights, like) for width in widths[1:]]
    return Drops(signals=signals, weights=matrices)


def _left(shape: tuple[int, ...], share: float, like: Tensor) -> Tensor | None:
    return like.new_empty(shape).bernoulli_(1 - share).div_(1 - share) if share else None


def dropped(signal: Tensor, left: Tensor | None) -> Tensor:
    """Return what is left of a signal."""
    return signal if left is None else signal * left


def penalised_(losses: Tensor, back: Tensor, raw: Tensor, signal: Tensor, model: LSTM | AWD) -> Tensor | None:
    """Add AWD-LSTM's penalty to each rank's loss, and to ``back`` what it asks of the dropped output.

    ``raw`` and ``signal`` [ranks, length, streams, width] are the last layer's output before and after dropout.
    Return what the penalty asks of the raw output; None: nothing.
    """
    if isinstance(model, LSTM):
        return None
    each = signal[0].numel()
    losses.add_(signal.square().flatten(1).mean(1), alpha=model.alpha)
    back.add_(signal, alpha=2 * model.alpha / each)
    if raw.shape[1] < 2:
        return None
    moved = raw[:, 1:] - raw[:, :-1]
    losses.add_(moved.square().flatten(1).mean(1), alpha=model.beta)
    moved.mul_(2 * model.beta / moved[0].numel())
    asked = torch.zeros_like(raw)
    asked[:, 1:] += moved
    asked[:, :-1] -= moved
    return asked
