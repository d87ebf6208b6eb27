"""A small character language model: one LSTM, its state carried along each stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laconic.lab.text import windows

State = tuple[Tensor, Tensor]


class CharLM(nn.Module):
    """Embedding, LSTM, softmax over the alphabet."""

    def __init__(self, alphabet: int, *, embedding: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.out = nn.Linear(hidden, alphabet)

    def forward(self, codes: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the scores of the next characters and the state to go on from."""
        hidden, state = self.lstm(self.embedding(codes), state)
        return self.out(hidden), state


def loss_of(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats a character."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


@torch.no_grad()
def validate(model: nn.Module, rows: Tensor, *, length: int) -> float:
    """Return the mean loss along the streams."""
    model.eval()
    state, losses = None, []
    for x, y in windows(rows, length=length):
        scores, state = model(x, state)
        losses.append(loss_of(scores, y).item())
    model.train()
    return sum(losses) / len(losses)
