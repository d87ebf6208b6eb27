"""Whether all ranks hold the same model: digests are compared, and where they differ, parameter by parameter.

Ranks that apply the same mean to the same model stay equal to the bit. They do not if one of them rounds otherwise,
loses a bit, or is written to by hand, and nothing else would ever say so: losses look alike for a long time.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import seals
from laconic.collectives import AllGather, Reply, Request


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first parameter that differs, and the ranks that hold each version of the model, most of them first.

    ``names`` are all parameters that differ; ``majority``: more than half of all ranks hold the first version.
    """

    names: tuple[str, ...]
    versions: tuple[tuple[int, ...], ...]
    majority: bool

    def __str__(self) -> str:
        others = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        held = ", ".join(f"ranks {list(ranks)}" for ranks in self.versions)
        return f"{self.names[0]}{others} differ; alike are {held}"


def compare(parts: Mapping[str, Tensor]) -> Generator[Request, Reply, Difference | None]:
    """Return what differs between ranks, the same on each; None where all have the same bits."""
    device = next(iter(parts.values())).device
    mine = torch.tensor([_digest(part) for part in parts.values()], dtype=torch.int64)
    table = yield from seals.gathered(_in_bytes(_digest(mine), device), "digest of its model")
    if len(set(map(tuple, table.tolist()))) == 1:
        return None
    rows = yield from seals.gathered(mine.view(torch.uint8).to(device), "list of digests")
    each = rows.cpu().contiguous().view(torch.int64)
    unlike = (each != each[0]).any(0).tolist()
    names = tuple(name for name, differs in zip(parts, unlike, strict=True) if differs)
    held = Counter(map(tuple, each.tolist()))
    versions = tuple(
        tuple(rank for rank, row in enumerate(each.tolist()) if tuple(row) == version)
        for version, _ in held.most_common()
    )
    return Difference(names=names, versions=versions, majority=2 * len(versions[0]) > len(each))


def take_over(part: Tensor, *, source: int, rank: int) -> Generator[Request, Reply, None]:
    """Replace a tensor by what one rank has of it."""
    raw = part.detach().contiguous().view(-1).view(torch.uint8)
    send = raw if rank == source else raw[:0]
    rows = yield AllGather(send=send, senders=(source,), size=raw.numel())
    with torch.no_grad():
        part.copy_(rows.contiguous().view(part.dtype).view(part.shape))


def _digest(part: Tensor) -> int:
    flat = part.detach().contiguous().view(-1).view(torch.uint8).cpu()
    return zlib.crc32(flat.numpy().data)


def _in_bytes(number: int, device: torch.device) -> Tensor:
    return torch.tensor([number], dtype=torch.int64).view(torch.uint8).to(device)
