"""All-reduce of entries whose positions every rank knows: dense vectors, random-k."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.collectives import AllReduce
from laconic.errors import GroupError
from laconic.segments import Segments
from laconic.types import Compressor, Envelope, Mean, Plan, Steps

_CHECK = 32
# bfloat16 counts to 256 exactly.
_EXACT = 256


@dataclass(frozen=True, kw_only=True)
class ReduceMean:
    """One all-reduce; volume does not grow with the ranks. Each rank divides before the sum, as DDP does."""

    name: ClassVar[str] = "reduce_mean"
    lossless: ClassVar[bool] = True

    def check(self, compressor: Compressor) -> None:
        """Refuse compressors whose ranks choose their own entries."""
        if compressor.ranks_choose:
            raise ValueError(
                f"reduce_mean adds entries that all ranks send; with {compressor.name} each rank chooses its "
                f"own. Use GatherMean() with it."
            )

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; where everything is sent, x itself becomes the mean."""
        if envelope.senders is not None:
            raise ValueError(
                f"reduce_mean adds up what all ranks send, got senders={envelope.senders!r}. Use GatherMean() "
                f"where only some ranks send."
            )
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        everything = isinstance(plan.known, slice)
        # Dense must cost what plain DDP costs: no copy of the vector.
        sent = x if everything else _known(x, segments, compressor, plan, envelope)
        sent.mul_(1.0 / envelope.world_size)
        bare = everything and envelope.notes is None
        total = yield AllReduce(send=sent if bare else torch.cat([sent, _tail(envelope, sent)]))
        summed, tail = total[: sent.numel()], total[sent.numel() :]
        _refuse_strangers(tail[:_CHECK], envelope)
        values = summed
        if not everything:
            values = torch.zeros_like(x)
            values[plan.known] = summed
        return Mean(
            values=values,
            finite=kernels.all_finite(summed),
            sent=sent.numel() * envelope.world_size,
            wanted=sent.numel() * envelope.world_size,
            notes=None if envelope.notes is None else tail[_CHECK:],
        )


def _known(x: Tensor, segments: Segments, compressor: Compressor, plan: Plan, envelope: Envelope) -> Tensor:
    fresh = envelope.fresh or kernels.fresh_of(x, segments)
    values = compressor.compress_(x, segments, plan, fresh).known
    finite = torch.as_tensor(envelope.finite, device=x.device)
    # What is not finite may lie outside the entries sent: the values say it to every rank.
    return torch.where(finite, values, torch.nan)


def _tail(envelope: Envelope, like: Tensor) -> Tensor:
    """What travels behind the values: the bits of a digest of what ranks must agree on, then the notes.

    Bits, because their sum over ranks is exact in any float dtype, and between 0 and the number of ranks
    just when two ranks differ: every rank sees it.
    """
    digest = zlib.crc32(f"{envelope.fingerprint} {envelope.step} {envelope.rates}".encode())
    bits = torch.tensor([digest >> i & 1 for i in range(_CHECK)], dtype=like.dtype, device=like.device)
    return bits if envelope.notes is None else torch.cat([bits, envelope.notes.to(like.dtype)])


def _refuse_strangers(bits: Tensor, envelope: Envelope) -> None:
    if bool(((bits > 0) & (bits < min(envelope.world_size, _EXACT))).any()):
        raise GroupError(
            f"this rank is at step {envelope.step}, and other ranks are at another, or have other learning rates. "
            f"Run the same loop, schedule and checkpoint on every rank."
        )
