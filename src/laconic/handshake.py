"""Before the first exchange: all ranks must have the same method and the same model.

Ranks compare digests. Only if these differ do they look for what differs, in rounds that every rank takes
part in, so that each can name both sides and none waits for a partner that will never come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from laconic import seals
from laconic.collectives import Reply, Request
from laconic.errors import GroupError

_TEXT_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What ranks must have in common; ``model`` has one line a tensor."""

    method: str
    model: tuple[str, ...]

    def fingerprint(self) -> int:
        """Digest method and model."""
        return _digest([self.method, *self.model])


def handshake(own: Identity, *, rank: int, device: torch.device) -> Generator[Request, Reply, None]:
    """Raise ``GroupError`` on every rank if any two ranks differ."""
    mine = [own.fingerprint(), _digest([own.method]), len(own.model)]
    table = yield from _gather_numbers(mine, device)
    other = next((r for r, row in enumerate(table) if row != table[0]), None)
    if other is None:
        return
    first, second = table[0], table[other]
    if first[1] != second[1]:
        texts = yield from _gather_texts(own.method, device)
        found = f"rank 0 runs {texts[0]}, rank {other} runs {texts[other]}. Give every rank the same."
    else:
        line = yield from _first_difference(own.model, other, max(row[2] for row in table), device)
        texts = yield from _gather_texts(own.model[line] if line < len(own.model) else "nothing", device)
        found = (
            f"rank 0's model has {first[2]} tensors, rank {other}'s {second[2]}; at number {line + 1} rank 0 has "
            f"{texts[0]} where rank {other} has {texts[other]}. Build the same model and optimizer on every rank."
        )
    raise GroupError(f"ranks disagree (seen from rank {rank}): {found}")


def _first_difference(
    lines: tuple[str, ...], other: int, most: int, device: torch.device
) -> Generator[Request, Reply, int]:
    """Find the first line in which rank 0 and the other rank differ, by halving."""
    low, high = 0, most - 1
    while low < high:
        middle = (low + high) // 2
        table = yield from _gather_numbers([_digest(lines[: middle + 1])], device)
        if table[0] == table[other]:
            low = middle + 1
        else:
            high = middle
    return low


def _gather_numbers(numbers: list[int], device: torch.device) -> Generator[Request, Reply, list[list[int]]]:
    mine = torch.tensor(numbers, dtype=torch.int64).view(torch.uint8).to(device)
    rows = yield from seals.gathered(mine, "part in the handshake")
    table: list[list[int]] = rows.cpu().contiguous().view(torch.int64).tolist()
    return table


def _gather_texts(text: str, device: torch.device) -> Generator[Request, Reply, list[str]]:
    raw = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
    mine = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device)
    rows = yield from seals.gathered(mine, "part in the handshake")
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows.cpu()]


def _digest(lines: Sequence[str]) -> int:
    text = "\n".join([str(len(lines)), *lines])
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=8).digest(), "little", signed=True)
