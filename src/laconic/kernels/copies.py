"""Small numbers on a device: made once, and found again by whoever needs the same ones.

What is returned is shared, and must not be written to.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# More zeros than this are made anew: a large vector would be kept for nothing.
_FEW = 1 << 12
# Copies by tensor, device and state of the tensor; they go when it goes.
_copies = WeakIdKeyDictionary()


# Few are kept: counts and rooms that change at every step are never asked for again.
@lru_cache(maxsize=64)
def numbers_on(device: torch.device, numbers: tuple[int, ...]) -> Tensor:
    """Return whole numbers there, without waiting for it."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


@lru_cache(maxsize=16)
def ends_on(device: torch.device, sizes: tuple[int, ...]) -> Tensor:
    """Return where spans of these sizes end, one behind the other."""
    return torch.tensor(sizes, dtype=torch.int64).cumsum(0).to(device, non_blocking=True)


@lru_cache(maxsize=64)
def shifts_on(device: torch.device, bits: int) -> Tensor:
    """Return by how much codes of so many bits are shifted in a byte."""
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def zeros_on(device: torch.device, count: int) -> Tensor:
    """Return so many bytes of zero."""
    if count > _FEW:
        return torch.zeros(count, dtype=torch.uint8, device=device)
    return _few_zeros(device)[:count]


@lru_cache(maxsize=64)
def _few_zeros(device: torch.device) -> Tensor:
    return torch.zeros(_FEW, dtype=torch.uint8, device=device)


def copy_on(device: torch.device, numbers: Tensor) -> Tensor:
    """Return a tensor as it lies there: itself, or the copy that was made when it was last asked for."""
    if numbers.device == device:
        return numbers
    copies = _copies.setdefault(numbers, {})
    # A tensor that was written to since counts as another one.
    version = 0 if numbers.is_inference() else numbers._version
    made: tuple[int, Tensor] | None = copies.get(device)
    if made is None or made[0] != version:
        made = copies[device] = (version, numbers.to(device, non_blocking=True))
    return made[1]
