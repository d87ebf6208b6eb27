"""A recognizer of speech that is trained without knowing which frame belongs to which label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

BLANK = 0
LETTERS = "abcdefghijklmnopqrstuvwxyz' "


class Alphabet:
    """Labels from 1 on for words, or for letters; 0 is the blank.

    >>> Alphabet(None).labels(["ab", "c"])
    [1, 2, 28, 3]
    """

    def __init__(self, words: Sequence[str] | None) -> None:
        self._letters = words is None
        self._signs = list(LETTERS) if words is None else sorted(set(words))
        self._number = {sign: number for number, sign in enumerate(self._signs, start=1)}
        self.size = len(self._signs) + 1

    def labels(self, words: Sequence[str]) -> list[int]:
        """Return the labels of words."""
        signs: Sequence[str] = " ".join(words) if self._letters else words
        strange = sorted({sign for sign in signs if sign not in self._number})
        if strange:
            there = "a to z, apostrophe and space" if self._letters else ", ".join(self._signs)
            raise ValueError(f"{' '.join(words)!r} has {strange}, which are not among the labels: {there}.")
        return [self._number[sign] for sign in signs]

    def words(self, labels: Sequence[int]) -> list[str]:
        """Return the words of labels."""
        signs = [self._signs[label - 1] for label in labels]
        return "".join(signs).split() if self._letters else signs


class Recognizer(nn.Module):
    """A strided convolution over time, LSTM layers in both directions, a linear map to labels.

    Label 0 is the blank. Time goes by ``stride`` frames a step after the convolution. What an utterance scores
    does not depend on the others in its batch.
    """

    def __init__(self, *, bands: int, labels: int, hidden: int, layers: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(bands, hidden, 2 * stride + 1, stride=stride, padding=stride)
        self.lstm = nn.LSTM(hidden, hidden, layers, bidirectional=True)
        self.linear = nn.Linear(2 * hidden, labels)

    def steps_of_time(self, frames: int) -> int:
        """Return how many steps of time are left of so many frames."""
        return (frames - 1) // self.stride + 1

    def forward(self, frames: Tensor, lengths: list[int]) -> Tensor:
        """Return log probabilities [time, number, labels] of frames [number, longest, bands], the longest first.

        Behind an utterance's end ``frames`` has zeros. Lengths are plain numbers: DDP would move a tensor.
        """
        x = F.relu(self.conv(frames.transpose(1, 2)))
        left = torch.tensor([self.steps_of_time(length) for length in lengths])
        y, _ = self.lstm(pack_padded_sequence(x.permute(2, 0, 1), left))
        y, _ = pad_packed_sequence(y)
        return F.log_softmax(self.linear(y), dim=-1)


def ctc_losses(log_probs: Tensor, lengths: Sequence[int], targets: Sequence[Sequence[int]]) -> Tensor:
    """Return for each utterance -log P(targets) over the number of its targets, on the CPU.

    P is summed over all alignments (Graves et al. 2006). An utterance too short for its targets counts as 0.
    On the CPU because CUDA's own kernel adds its gradients in any order, and cuDNN's wants equal lengths: the
    scores are few, and the same run gives the same bits.
    """
    sizes = torch.tensor([len(target) for target in targets])
    joined = torch.tensor([label for target in targets for label in target], dtype=torch.int64)
    losses = F.ctc_loss(
        log_probs.cpu(), joined, torch.tensor(lengths), sizes, blank=BLANK, reduction="none", zero_infinity=True
    )
    return losses / sizes.clamp(min=1)


def greedy(log_probs: Tensor, lengths: Sequence[int]) -> list[list[int]]:
    """Return the labels heard: the likeliest at each time, a run of the same as one, without the blanks."""
    best = log_probs.argmax(-1).T.cpu()
    heard = []
    for row, length in zip(best, lengths, strict=True):
        labels = torch.unique_consecutive(row[:length])
        heard.append([int(label) for label in labels if label != BLANK])
    return heard
