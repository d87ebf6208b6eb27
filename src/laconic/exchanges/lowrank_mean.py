"""Every matrix as two thin ones, refined from step to step; the rest whole: two all-reduces (PowerSGD)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_number, check_whole
from laconic.collectives import AllReduce
from laconic.exchanges.reducing import added, refuse_some_senders, shown
from laconic.segments import Segment, Segments
from laconic.types import Compressor, Envelope, Mean, Steps

# A column that those before it explain but for so many roundings is noise, and no direction.
_NOISE = 64


@dataclass(frozen=True, kw_only=True)
class LowRankMean:
    """Send of the mean M of all ranks' matrices (n x m) its part in r directions, ``rank``: r (n + m) numbers.

    P = M Q, all-reduced, then orthonormalised; Q = M^T P, all-reduced. The mean is P Q^T, and each rank keeps what
    its own matrix has beyond it. That is one step of power iteration, and the next begins with its Q (Vogels et al.
    2019), kept by parameter name: buckets may be laid out anew. The first Q is drawn from ``seed`` and name.
    Vectors go whole, and so do matrices that would not become ``least_ratio`` times smaller.
    """

    name: ClassVar[str] = "lowrank_mean"
    lossless: ClassVar[bool] = False
    tells: ClassVar[bool] = False
    rank: int = 4
    seed: int = 0
    least_ratio: float = 2.0

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 1, "Write 1 for the fewest bytes, 4 to lose less.")
        check_whole("seed", self.seed, 0, "Give every rank the same one.")
        check_number("least_ratio", self.least_ratio, 1, "Write 2 to send whole what would not be halved.")

    def check(self, compressor: Compressor) -> None:
        """Refuse every compressor but Dense."""
        if compressor.name != "dense":
            raise ValueError(
                f"lowrank_mean sends what it makes of whole matrices, and {compressor.name} takes entries out of "
                f"them. Use Dense() with it, or another exchange."
            )

    def splits(self, segment: Segment) -> bool:
        """Whether the segment is a matrix that is sent as two thin ones.

        >>> LowRankMean(rank=2).splits(Segment(name="w", offset=0, size=64, rows=8))
        True
        """
        if segment.rows < 2:
            return False
        numbers = self.rank * (segment.rows + segment.size // segment.rows)
        return self.least_ratio * numbers <= segment.size

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:  # noqa: ARG002
        """Leave in x what its matrices have beyond the mean's few directions, and zero elsewhere."""
        refuse_some_senders(self.name, envelope)
        split = [s for s in segments if self.splits(s)]
        whole = [s for s in segments if not self.splits(s)]
        matrices = [_part(x, s).view(s.rows, -1) for s in split]
        begun = [self._begin(s, envelope.kept, x) for s in split]
        sent = [m @ q for m, q in zip(matrices, begun, strict=True)] + [_part(x, s) for s in whole]
        summed, notes = yield from added(shown(_flat(sent, x, envelope), envelope), envelope)
        finite, parts = kernels.all_finite(summed), _cut(summed, sent)
        lefts, rights = parts[: len(split)], begun
        # Every rank knows: a poisoned step needs no second round.
        if finite and split:
            lefts = orthonormal(lefts)
            rights = [m.T @ p for m, p in zip(matrices, lefts, strict=True)]
            total = yield AllReduce(send=_flat(rights, x, envelope))
            finite, rights = kernels.all_finite(total), _cut(total, rights)
        values = torch.zeros_like(x)
        if finite:
            for s, part in zip(whole, parts[len(split) :], strict=True):
                _part(values, s).copy_(part)
                _part(x, s).zero_()
            for s, m, p, q in zip(split, matrices, lefts, rights, strict=True):
                m -= torch.matmul(p, q.T, out=_part(values, s).view_as(m))
        numbers = sum(t.numel() for t in (*sent, *rights)) * envelope.world_size
        kept = self._again(split, rights) if finite and split else {}
        return Mean(values=values, finite=finite, sent=numbers, wanted=numbers, notes=notes, kept=kept)

    def _begin(self, segment: Segment, kept: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the Q that this step begins with: the last one's, if it has the right shape."""
        shape = (segment.size // segment.rows, self.rank)
        last = kept.get(_key(segment))
        return self._first(segment).to(x) if last is None or last.shape != shape else last.to(x)

    def _first(self, segment: Segment) -> Tensor:
        source = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{segment.name}".encode()))
        return torch.randn(segment.size // segment.rows, self.rank, generator=source)

    def _again(self, split: Sequence[Segment], rights: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return each Q for the step to come, every column scaled to a largest entry of 1.

        A column of zeros (the matrices had fewer directions) would stay so for ever: it begins anew. Where all are
        zero nothing came, and the Q before stays.
        """
        largest = torch.stack([q.abs().amax(0) for q in rights])
        scaled = [q / most for q, most in zip(rights, largest, strict=True)]
        if not bool(largest.all()):
            each = zip(split, scaled, largest, strict=True)
            scaled = [torch.where(most > 0, q, self._first(s).to(q)) for s, q, most in each]
        came = largest.any(1).tolist()
        return {_key(s): q for s, q, some in zip(split, scaled, came, strict=True) if some}


def orthonormal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return matrices whose columns are orthonormal and span the same; a column that adds nothing becomes zero.

    Gram-Schmidt, twice, in float64. Matrices of one shape go together.

    >>> orthonormal([torch.tensor([[3.0, 6.0], [0.0, 0.0]])])[0].tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    done: dict[int, Tensor] = {}
    for shape in dict.fromkeys(m.shape for m in matrices):
        places = [i for i, m in enumerate(matrices) if m.shape == shape]
        rows = torch.stack([matrices[i].T for i in places]).double()
        for k in range(rows.shape[1]):
            row, before = rows[:, k], rows[:, :k]
            size = torch.linalg.vector_norm(row, dim=-1, keepdim=True)
            for _ in range(2):
                along = (before * row.unsqueeze(1)).sum(-1, keepdim=True)
                row = row - (along * before).sum(1)
            left = torch.linalg.vector_norm(row, dim=-1, keepdim=True)
            noise = _NOISE * torch.finfo(matrices[places[0]].dtype).eps
            rows[:, k] = torch.where(left > noise * size, row / left, 0.0)
        done |= {i: row.T.to(matrices[i].dtype) for i, row in zip(places, rows, strict=True)}
    return [done[i] for i in range(len(matrices))]


def _key(segment: Segment) -> str:
    return f"lowrank.{segment.name}"


def _part(flat: Tensor, segment: Segment) -> Tensor:
    return flat[segment.offset : segment.offset + segment.size]


def _flat(tensors: Sequence[Tensor], like: Tensor, envelope: Envelope) -> Tensor:
    """Lay the tensors out one behind the other, divided by the number of ranks."""
    return torch.cat([like[:0], *(t.reshape(-1) for t in tensors)]).mul_(1.0 / envelope.world_size)


def _cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a flat tensor in the shapes of those it was laid out from."""
    return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in like]), like, strict=True)]
