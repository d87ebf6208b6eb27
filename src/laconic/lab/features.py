"""What a recognizer hears: log energies in bands that are even on the mel scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BANDS = 40
WINDOW_SECONDS = 0.025
HOP_SECONDS = 0.010
# A few steps of a 16-bit sample: digital silence is no quieter than a quiet room.
FLOOR = 1e-6


def mel_of(hertz: float) -> float:
    """Return a pitch in mel: 2595 log10(1 + f/700) (O'Shaughnessy 1987, as in HTK).

    >>> round(mel_of(1000.0))
    1000
    """
    return 2595.0 * math.log10(1.0 + hertz / 700.0)


@cache
def mel_matrix(*, rate: int, points: int, bands: int = BANDS) -> Tensor:
    """Return triangles [points // 2 + 1, bands] over the bins of a Fourier transform of ``points`` samples.

    The corners are even on the mel scale from 0 to half the rate; a triangle rises to 1 at its middle corner and
    falls to 0 at the next, so that inside the outermost middles the bands of a bin add up to 1.
    """
    mels = np.linspace(0.0, mel_of(rate / 2), bands + 2)
    corners = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    bins = np.arange(points // 2 + 1) * rate / points
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rise = (bins[:, None] - left) / (middle - left)
    fall = (right - bins[:, None]) / (right - middle)
    return torch.from_numpy(np.maximum(0.0, np.minimum(rise, fall)).astype(np.float32))


def log_mel(samples: NDArray[np.int16], *, rate: int) -> Tensor:
    """Return log energies [frames, bands] of windows of 25 ms, the first around sample 0, then every 10 ms."""
    window, hop = round(rate * WINDOW_SECONDS), round(rate * HOP_SECONDS)
    # The power of two from the window on: what the transform is fastest at.
    points = 1 << (window - 1).bit_length()
    wave = torch.from_numpy(samples.astype(np.float32) / 32768.0)
    shape = torch.hann_window(window)
    waves = torch.stft(
        wave, points, hop, window, window=shape, center=True, pad_mode="constant", return_complex=True
    )
    return torch.log(waves.abs().square().T @ mel_matrix(rate=rate, points=points) + FLOOR)


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The frames of many recordings under each other, so that a batch is one look-up of rows.

    Recording i is the rows from ``starts[i]`` to ``starts[i + 1]``; ``quiet[i]`` is its quietest row.
    """

    rows: Tensor
    starts: NDArray[np.int64]
    quiet: NDArray[np.int64]

    def recording(self, which: int) -> NDArray[np.int64]:
        """Return the numbers of a recording's rows."""
        return np.arange(self.starts[which], self.starts[which + 1])

    def string(self, which: Sequence[int], gaps: Iterable[int]) -> NDArray[np.int64]:
        """Return row numbers of recordings one after the other.

        Behind each but the last comes silence: its own quietest frame, as often as ``gaps`` says.
        """
        pieces = [self.recording(which[0])]
        for before, gap, after in zip(which, gaps, which[1:], strict=False):
            pieces += [np.full(gap, self.quiet[before]), self.recording(after)]
        return np.concatenate(pieces)

    def batch(self, strings: Sequence[NDArray[np.int64]]) -> Tensor:
        """Return frames [strings, longest, bands] by their row numbers.

        Each band of a string has mean 0 and variance 1. Behind its end are zeros, which count for nothing.
        """
        lengths = np.array([len(string) for string in strings])
        inside = np.arange(lengths.max()) < lengths[:, None]
        numbers = np.zeros(inside.shape, dtype=np.int64)
        numbers[inside] = np.concatenate(strings)
        device = self.rows.device
        mask = torch.from_numpy(inside).to(device)[:, :, None]
        count = torch.from_numpy(lengths).to(device)[:, None, None]
        frames = self.rows[torch.from_numpy(numbers).to(device)]
        frames = (frames - (frames * mask).sum(1, keepdim=True) / count) * mask
        # A band that never changes stays at 0.
        return frames * torch.rsqrt(frames.square().sum(1, keepdim=True) / count + 1e-5)


def frames_of(recordings: Sequence[NDArray[np.int16]], *, rate: int, device: torch.device) -> Frames:
    """Return the frames of recordings, on a device; of none where there are none."""
    frames = [log_mel(samples, rate=rate) for samples in recordings]
    starts = np.cumsum([0, *(len(one) for one in frames)], dtype=np.int64)
    quietest = np.array([int(one.mean(1).argmin()) for one in frames], dtype=np.int64)
    return Frames(
        rows=torch.cat([torch.zeros(0, BANDS), *frames]).to(device), starts=starts, quiet=starts[:-1] + quietest
    )
