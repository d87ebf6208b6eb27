"""What the strikes at messages share: how bytes are struck, in what forms of values, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from guarded import Bytes

from laconic.codecs import BFloat16, Binned, Exact, Linear, SignMean
from laconic.coding import Codec

CODECS: list[Codec] = [Exact(), BFloat16(), *(Linear(bits=b) for b in (2, 4, 8)), SignMean()]
CODECS += [Binned(bits=b) for b in (2, 4, 8)]
KINDS = ("bits flipped", "noise", "pieces moved", "zeros and ones", "counts at the edges")


@dataclass
class Seen:
    """What came of mutations, and whatever should not have come."""

    refused: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, kind: str, *, read: bool, fault: str) -> None:
        """Count one."""
        (self.read if read else self.refused)[kind] += 1
        if fault:
            self.wrong.append(f"{kind}: {fault}")

    def summary(self) -> dict[str, Any]:
        """Say it in numbers."""
        kinds = sorted({*self.refused, *self.read})
        each = {kind: {"refused": self.refused[kind], "read": self.read[kind]} for kind in kinds}
        refused, read = self.refused.total(), self.read.total()
        return {"mutations": refused + read, "refused": refused, "read": read, "wrong": len(self.wrong),
                "first_wrong": self.wrong[:5], "kinds": each}  # fmt: skip


def mutate_(rows: Bytes, kind: str, chance: np.random.Generator, first: int = 0) -> None:
    """Leave in each row bytes that were struck, from ``first`` on."""
    count, size = rows.shape[0], rows.shape[1] - first
    each, at = np.arange(count), rows[:, first:]
    if kind == "bits flipped":
        for _ in range(int(chance.integers(1, 8))):
            at[each, chance.integers(0, size, count)] ^= (1 << chance.integers(0, 8, count)).astype(np.uint8)
    elif kind == "noise":
        noise = chance.integers(0, 256, at.shape, np.uint8)
        for _ in range(int(chance.integers(0, 5))):
            noise &= chance.integers(0, 256, at.shape, np.uint8)
        at[:] = noise
    elif kind == "pieces moved":
        length = int(chance.integers(1, size + 1))
        to, out_of = (int(chance.integers(0, size - length + 1)) for _ in range(2))
        at[:, to : to + length] = chance.permutation(at)[:, out_of : out_of + length]
    elif kind == "zeros and ones":
        begin = chance.integers(0, size, (count, 1))
        inside = (np.arange(size) >= begin) & (np.arange(size) < begin + chance.integers(1, 9, (count, 1)))
        at[inside] = chance.choice(np.array([0, 255], np.uint8))
