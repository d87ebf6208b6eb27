"""What exchanges that add up over ranks share: values in one all-reduce, and behind them who says what."""

from __future__ import annotations

import zlib
from collections.abc import Generator

import torch
from torch import Tensor

from laconic.collectives import AllReduce, Reply, Request
from laconic.errors import GroupError
from laconic.types import Envelope

_CHECK = 32
# bfloat16 counts to 256 exactly.
_EXACT = 256


def refuse_some_senders(name: str, envelope: Envelope) -> None:
    """Raise ``ValueError`` where only some ranks are to send."""
    if envelope.senders is not None:
        raise ValueError(
            f"{name} adds up what all ranks send, got senders={envelope.senders!r}. Use GatherMean() where only "
            f"some ranks send."
        )


def shown(values: Tensor, envelope: Envelope) -> Tensor:
    """Return the values, or NaN in their stead where this rank is not finite: their sum says so to every rank."""
    return torch.where(torch.as_tensor(envelope.finite, device=values.device), values, torch.nan)


def added(
    values: Tensor, envelope: Envelope, *, bare: bool = False
) -> Generator[Request, Reply, tuple[Tensor, Tensor | None]]:
    """Add the values up over ranks; return their sum, and that of the notes.

    Behind the values travels what ranks must agree on: one that does not is refused by all. ``bare`` values travel
    alone, and may be replaced by their sum.
    """
    total = yield AllReduce(send=values if bare else torch.cat([values, _tail(envelope, values)]))
    summed, tail = total[: values.numel()], total[values.numel() :]
    _refuse_strangers(tail[:_CHECK], envelope)
    return summed, None if envelope.notes is None else tail[_CHECK:]


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
