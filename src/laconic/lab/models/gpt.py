"""A small decoder-only transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.lab.models.lstm import Reading, State


class Block(nn.Module):
    """Causal self-attention and a perceptron of four times the width, each after a norm and around a short cut."""

    def __init__(self, width: int, *, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_perceptron = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, signal: Tensor) -> Tensor:
        """Return [streams, length, width] with what each place read from itself and the places before it."""
        signal = signal + self._drop(self.attention_out(self._attend(self.norm_attention(signal))))
        thought = functional.gelu(self.wide(self.norm_perceptron(signal)))
        return signal + self._drop(self.narrow(thought))

    def _attend(self, signal: Tensor) -> Tensor:
        parts = self.queries_keys_values(signal).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        share = self.dropout if self.training else 0.0
        read = functional.scaled_dot_product_attention(query, key, value, dropout_p=share, is_causal=True)
        return read.transpose(1, 2).flatten(2)

    def _drop(self, signal: Tensor) -> Tensor:
        return functional.dropout(signal, self.dropout, self.training)


class GPT(nn.Module):
    """Learned positions, blocks with norms first, softmax tied to the embedding (Radford et al. 2019).

    Weights are drawn with deviation 0.02; those that end a short cut with 0.02/sqrt(2*layers), so that the sum over
    the layers starts as large whatever their number. It reads at most ``window`` tokens and keeps nothing of them.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        window: int,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width must be a multiple of {heads} heads, got {width}. Write --hidden 128.")
        self.window, self.dropout = window, dropout
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(window, width)
        self.blocks = nn.ModuleList(Block(width, heads=heads, dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)
        self._draw_weights()
        if tied:
            self.out.weight = self.embedding.weight

    def _draw_weights(self) -> None:
        for name, parameter in self.named_parameters():
            ends = name.endswith(("attention_out.weight", "narrow.weight"))
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(self.blocks)) if ends else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, state: State | None) -> Reading:  # noqa: ARG002 (it keeps nothing)
        """Read [streams, length] tokens; a place sees itself and what is before it in the window."""
        length = tokens.shape[1]
        if length > self.window:
            raise ValueError(f"the model reads at most {self.window} tokens, got {length}. Use shorter windows.")
        places = torch.arange(length, device=tokens.device)
        signal = functional.dropout(self.embedding(tokens) + self.positions(places), self.dropout, self.training)
        for block in self.blocks:
            signal = block(signal)
        return Reading(scores=self.out(self.norm(signal)), state=())
