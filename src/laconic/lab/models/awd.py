"""AWD-LSTM: LSTM layers with dropout on the recurrent weights and everywhere else (Merity et al. 2017)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.lab.models.lstm import Reading, State, pairs


@dataclass(frozen=True, kw_only=True)
class Drops:
    """Shares dropped in training: of words, of input, between layers, of output and of hidden-to-hidden weights."""

    words: float = 0.1
    inputs: float = 0.4
    between: float = 0.25
    output: float = 0.4
    weights: float = 0.5

    def scaled(self, factor: float) -> Drops:
        """Return all of them multiplied.

        >>> Drops().scaled(0.5).between
        0.125
        """
        return Drops(
            words=self.words * factor,
            inputs=self.inputs * factor,
            between=self.between * factor,
            output=self.output * factor,
            weights=self.weights * factor,
        )


class AWD(nn.Module):
    """Three LSTM layers by default, the softmax tied to the embedding, so that the last layer has its size.

    In training the loss gets the penalty alpha*mean(d^2) + beta*mean((h_t+1 - h_t)^2), with h the last layer's
    output before dropout and d after it (arXiv:1708.02182, activation regularisation).
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        tied: bool = True,
        drops: Drops = Drops(),  # noqa: B008 (frozen)
        alpha: float = 2.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        sizes = [embedding] + [hidden] * (layers - 1) + [embedding if tied else hidden]
        self.lstm = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in pairwise(sizes))
        self.out = nn.Linear(sizes[-1], vocabulary)
        if tied:
            self.out.weight = self.embedding.weight
        self.drops, self.alpha, self.beta = drops, alpha, beta
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.out.weight, -0.1, 0.1)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Tensor, state: State | None) -> Reading:
        """Read [streams, length] tokens on from a state; None is the beginning."""
        drops, training = self.drops, self.training
        table = drop_rows(self.embedding.weight, drops.words, training)
        signal = raw = drop_locked(functional.embedding(tokens, table), drops.inputs, training)
        left: list[Tensor] = []
        for number, (layer, before) in enumerate(zip(self.lstm, pairs(state, len(self.lstm)), strict=True)):
            recurrent = functional.dropout(layer.get_parameter("weight_hh_l0"), drops.weights, training)
            raw, after = run_layer(layer, signal, before, recurrent)
            left += after
            last = number + 1 == len(self.lstm)
            signal = drop_locked(raw, drops.output if last else drops.between, training)
        penalty = self._penalty(raw, signal) if training else None
        return Reading(scores=self.out(signal), state=tuple(left), penalty=penalty)

    def _penalty(self, raw: Tensor, dropped: Tensor) -> Tensor:
        activity = self.alpha * dropped.square().mean()
        if raw.shape[1] < 2:
            return activity
        return activity + self.beta * (raw[:, 1:] - raw[:, :-1]).square().mean()


def run_layer(
    layer: nn.Module, signal: Tensor, before: tuple[Tensor, Tensor] | None, recurrent: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the output of an LSTM layer and the state it leaves, with other hidden-to-hidden weights."""
    if before is None:
        zeros = signal.new_zeros(1, signal.shape[0], recurrent.shape[1])
        before = (zeros, zeros)
    into, *biases = (layer.get_parameter(name) for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"))
    weights = [into, recurrent, *biases]
    with warnings.catch_warnings():
        # Weights that were just dropped are never in cuDNN's one piece.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        output, hidden, cell = torch.lstm(signal, before, weights, True, 1, 0.0, layer.training, False, True)
    return output, (hidden, cell)


def drop_locked(signal: Tensor, share: float, training: bool) -> Tensor:
    """Drop the same features of [streams, length, features] all along a window, others in each stream."""
    if not training or share == 0:
        return signal
    return signal * functional.dropout(signal.new_ones(signal.shape[0], 1, signal.shape[2]), share)


def drop_rows(table: Tensor, share: float, training: bool) -> Tensor:
    """Drop whole rows of a table, so that a word is there or not there wherever it stands in a window."""
    if not training or share == 0:
        return table
    return table * functional.dropout(table.new_ones(table.shape[0], 1), share)
