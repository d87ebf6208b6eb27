"""A language model of LSTM layers; and what every language model of the laboratory takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

# Of every layer its output and its cell; empty for a model that remembers nothing.
State = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a language model makes of a window of tokens.

    ``scores`` [streams, length, vocabulary] are of the token after each, before the softmax; ``state`` is what the
    next window goes on from; ``penalty`` is to be added to the loss (None: nothing).
    """

    scores: Tensor
    state: State
    penalty: Tensor | None = None


class LSTM(nn.Module):
    """Embedding, LSTM layers, softmax; dropout only between layers, not along time (Zaremba et al. 2014).

    ``tied`` shares the embedding with the softmax, and wants ``embedding == hidden``. With ``spread`` all weights
    are drawn from [-spread, spread], as in the paper; otherwise they are what torch makes them.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 64,
        hidden: int = 256,
        layers: int = 1,
        dropout: float = 0.0,
        tied: bool = False,
        spread: float | None = None,
    ) -> None:
        super().__init__()
        if tied and embedding != hidden:
            raise ValueError(
                f"tied weights want embedding and hidden of one size, got {embedding} and {hidden}. "
                f"Write --embedding {hidden} or leave out --tied."
            )
        self.embedding = nn.Embedding(vocabulary, embedding)
        # One module a layer: cuDNN's dropout between the layers of one module does not heed torch's seed.
        sizes = [embedding] + [hidden] * layers
        self.lstm = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in pairwise(sizes))
        self.out = nn.Linear(hidden, vocabulary)
        if tied:
            self.out.weight = self.embedding.weight
        self.dropout = dropout
        if spread is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -spread, spread)

    def forward(self, tokens: Tensor, state: State | None) -> Reading:
        """Read [streams, length] tokens on from a state; None is the beginning."""
        signal = functional.dropout(self.embedding(tokens), self.dropout, self.training)
        left: list[Tensor] = []
        for layer, before in zip(self.lstm, pairs(state, len(self.lstm)), strict=True):
            signal, after = layer(signal, before)
            left += after
            signal = functional.dropout(signal, self.dropout, self.training)
        return Reading(scores=self.out(signal), state=tuple(left))


def pairs(state: State | None, layers: int) -> Sequence[tuple[Tensor, Tensor] | None]:
    """Return output and cell of each layer; None for each at the beginning."""
    if state is None:
        return [None] * layers
    return list(zip(state[::2], state[1::2], strict=True))
