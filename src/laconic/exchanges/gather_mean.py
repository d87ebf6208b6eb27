"""Every rank gathers every rank's message and adds them up in rank order: any compressor, one collective."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, get_args

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.arguments import check_choice
from laconic.codecs import Exact
from laconic.coding import Codec
from laconic.collectives import AllGather
from laconic.exchanges.lettering import (
    check_codec,
    frame_of,
    give_back_,
    header_of,
    heard,
    seed_of,
)
from laconic.segments import Segments
from laconic.types import Compressor, Envelope, Gathered, Mean, Over, Plan, Steps


@dataclass(frozen=True, kw_only=True)
class GatherMean:
    """One all-gather of messages whose size follows from the plan; volume received grows with the ranks.

    ``values`` says how values are written; what that loses stays in x. A chosen entry is divided ``over`` all
    ``ranks`` that send, or over its ``senders`` alone: those that sent a value other than zero for it, so that a
    rarely sent entry moves by up to the number of ranks more (SparseLoCo).
    """

    name: ClassVar[str] = "gather_mean"
    tells: ClassVar[bool] = True
    over: Over = "ranks"
    values: Codec = field(default_factory=Exact)

    def __post_init__(self) -> None:
        check_codec(self.values)
        check_choice("over", self.over, get_args(Over))

    @property
    def lossless(self) -> bool:
        """Whether values arrive as they are."""
        return isinstance(self.values, Exact)

    def check(self, compressor: Compressor) -> None:
        """Accept every compressor."""

    def received_bytes(self, plan: Plan, x: Tensor, envelope: Envelope) -> int:
        """Return how many bytes a rank receives, its own among them."""
        return envelope.world_size * frame_of(plan, self.values, x, envelope).total

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; return the mean of what all ranks sent.

        With ``envelope.senders`` it is the mean over these; a rank that is not among them keeps x as it is. Only
        senders are heard: their notes, losses and alarms, and whether what they have is finite.
        """
        senders = _checked(envelope)
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        frame = frame_of(plan, self.values, x, envelope)
        if senders is None or envelope.rank in senders:
            fresh = envelope.fresh or kernels.fresh_of(x, segments)
            own = compressor.compress_(x, segments, plan, fresh)
            header = header_of(own, frame, envelope)
            packed = wire.pack(
                frame, own, header, self.values, notes=envelope.notes, spectrum=envelope.spectrum,
                seed=seed_of(envelope),
            )  # fmt: skip
            give_back_(x, plan, own, packed.sent)
            own, message = packed.sent, packed.message
        else:
            own, message = None, torch.empty(0, dtype=torch.uint8, device=x.device)
            header = header_of(None, frame, envelope)
        rows = yield AllGather(send=message, senders=senders, size=frame.total)
        messages = wire.unpack(rows, frame, header, senders)
        headers = [m.header for m in messages]
        if own is not None:
            # Behind the last entry there may be room that stands for nothing.
            place = envelope.rank if senders is None else senders.index(envelope.rank)
            count = headers[place].count
            if count < own.values.numel():
                own = replace(own, positions=own.positions[:count], values=own.values[:count])
        counts = zip(*(h.counts for h in headers), strict=True) if plan.counted else []
        return Mean(
            values=Gathered(known=plan.known, payloads=tuple(m.payload for m in messages), over=self.over),
            sent=sum(h.count for h in headers) + plan.known_count * len(headers),
            wanted=sum(h.wanted for h in headers) + plan.known_count * len(headers),
            qualified=sum(h.wanted for h in headers),
            choosable=plan.choosing.numel * len(headers),
            counts=dict(zip(plan.choosing.names, counts, strict=False)),
            rooms=dict(zip(plan.choosing.names, plan.rooms, strict=True)),
            message_bytes=frame.total,
            fixed_bytes=frame.fixed,
            value_bits=frame.value_bits,
            own=own,
            senders=senders,
            **heard(messages),
        )


def _checked(envelope: Envelope) -> tuple[int, ...] | None:
    senders, ranks = envelope.senders, envelope.world_size
    if senders is not None and (not senders or list(senders) != sorted(set(senders) & set(range(ranks)))):
        raise ValueError(
            f"senders must be one or more of the ranks 0 to {ranks - 1}, ascending, got {senders!r}. Give every "
            f"rank the same ones, or None for all."
        )
    return senders
