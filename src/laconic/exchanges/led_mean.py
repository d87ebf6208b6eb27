"""Ranks take turns to choose for all: one message has positions, the others values alone.

After the cyclic choice of ScaleCom (Chen et al., NeurIPS 2020), written from its formulas. A position costs ten
bits or more, a value may cost one: where N ranks choose for themselves each pays for positions at every step, here
at every Nth. What ranks owe is the sum of many steps, in which they are much alike, so that one can choose for all.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels, seals, wire
from laconic.codecs import Exact
from laconic.coding import Codec, padded
from laconic.collectives import AllGather, Reply, Request
from laconic.exchanges.lettering import (
    check_codec,
    frame_of,
    give_back_,
    header_of,
    heard,
    seed_of,
)
from laconic.exchanges.reducing import refuse_some_senders
from laconic.segments import Segments
from laconic.types import Compressor, Envelope, Gathered, Mean, Payload, Plan, Steps

_DIGEST_BYTES = 8
# In the first word the digest comes first, then what the leader has chosen, then a seal of both.
_COUNT_AT, _SEAL_AT = 20, 48
_DIGEST, _TOO_MANY = (1 << _COUNT_AT) - 1, 1 << _SEAL_AT - _COUNT_AT


@dataclass(frozen=True, kw_only=True)
class LedMean:
    """One rank, another in every step, chooses and tells its entries; the others tell what they have there.

    Three rounds: eight bytes by which ranks see that they agree on whose turn it is and hear how much one has
    chosen, its message to all, then those of all others. ``values`` says how values are written; the rank that
    rounded owes what that loses. Entries that every rank sends anyway are in every message.
    """

    name: ClassVar[str] = "led_mean"
    tells: ClassVar[bool] = True
    values: Codec = field(default_factory=Exact)

    def __post_init__(self) -> None:
        check_codec(self.values)

    @property
    def lossless(self) -> bool:
        """Whether values arrive as they are."""
        return isinstance(self.values, Exact)

    def check(self, compressor: Compressor) -> None:
        """Refuse what chooses nothing, and what does more to an entry than choose it."""
        if not compressor.ranks_choose:
            raise ValueError(
                f"led_mean saves the positions of entries that ranks choose, and {compressor.name} has none. Use "
                f"GatherMean() or ReduceMean()."
            )
        if compressor.name in ("damped", "stochastic", "adacomp", "strom"):
            raise ValueError(
                f"led_mean has one rank choose for all, and {compressor.name} also changes what each rank sends. "
                f"Use GatherMean()."
            )

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what this rank did not send; return the mean of what all ranks sent."""
        refuse_some_senders(self.name, envelope)
        self.check(compressor)
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        ranks = envelope.world_size
        leader = leader_of(envelope.step, ranks) if envelope.turn is None else envelope.turn % ranks
        leads = envelope.rank == leader
        message, own = torch.empty(0, dtype=torch.uint8, device=x.device), None
        taken, count = None, 0
        if leads:
            taken = compressor.compress_(x, segments, plan, envelope.fresh or kernels.fresh_of(x, segments))
            count = _chosen(taken, plan)
        first = frame_of(plan, self.values, x, envelope)
        header = header_of(None, first, envelope)
        count = yield from _agreed(header, count, leader, x.device)
        if _says_count(plan):
            plan = replace(plan, rooms=(min(count, plan.capacity),))
            first = frame_of(plan, self.values, x, envelope)
        if taken is not None:
            taken = replace(taken, positions=taken.positions[: plan.capacity], values=taken.values[: plan.capacity])
            header = header_of(taken, first, envelope)
            packed = self._pack(first, taken, header, envelope)
            give_back_(x, plan, taken, packed.sent)
            message, own = packed.message, packed.sent
        rows = yield AllGather(send=message, senders=(leader,), size=first.total)
        (led,) = wire.unpack(rows, first, header, (leader,))

        following = _following(plan, led)
        second = frame_of(following, self.values, x, envelope)
        others = tuple(rank for rank in range(ranks) if rank != leader)
        header = header_of(None, second, envelope)
        if not leads:
            taken = _taken_(x, following)
            header = header_of(taken, second, envelope)
            packed = self._pack(second, taken, header, envelope)
            give_back_(x, following, taken, packed.sent)
            message, own = packed.message, packed.sent
        messages = [_same_form(led)]
        if others:
            send = message[:0] if leads else message
            rows = yield AllGather(send=send, senders=others, size=second.total)
            followed = wire.unpack(rows, second, header, others)
            # A list of its own: ranks that share a process may share what was read.
            messages = [*followed[:leader], *messages, *followed[leader:]]
        assert own is not None
        mean = _mean(plan, following, led, messages)
        # In messages of those who follow, what was chosen is known.
        chosen = padded(following.known_count * second.value_bits) - padded(plan.known_count * second.value_bits)
        return replace(
            mean,
            own=_own(own, plan, led, leads=leads),
            message_bytes=_DIGEST_BYTES + (first.total + (ranks - 1) * second.total) // ranks,
            fixed_bytes=_DIGEST_BYTES + (first.fixed + (ranks - 1) * (second.fixed - chosen)) // ranks,
            value_bits=first.value_bits,
        )

    def _pack(self, frame: wire.Frame, taken: Payload, header: wire.Header, envelope: Envelope) -> wire.Packed:
        return wire.pack(
            frame,
            taken,
            header,
            self.values,
            notes=envelope.notes,
            spectrum=envelope.spectrum,
            seed=seed_of(envelope),
        )


def leader_of(step: int, ranks: int) -> int:
    """Return whose turn it is: each rank's once in as many steps, in an order that moves.

    Whoever comes only at every second step (one fragment of two) then meets every rank too.

    >>> [leader_of(step, 4) for step in range(8)]
    [1, 2, 3, 0, 3, 0, 1, 2]
    """
    return (step + zlib.crc32(str(step // ranks).encode())) % ranks


def _says_count(plan: Plan) -> bool:
    """Whether the leader says beforehand how many entries it chose, so that no room travels empty."""
    return plan.counted and len(plan.rooms) == 1 and plan.capacity < _TOO_MANY


def _chosen(taken: Payload, plan: Plan) -> int:
    """Return how many entries were chosen of the one segment there is; of several nobody is told beforehand."""
    return min(int(taken.wanted), plan.capacity) if _says_count(plan) else 0


def _agreed(own: wire.Header, count: int, leader: int, device: torch.device) -> Generator[Request, Reply, int]:
    """Return the leader's count; raise on every rank if one is elsewhere.

    It would wait for what nobody sends, and others for its message.
    """
    said = (wire.VERSION, own.fingerprint, own.step, own.rates, own.value_bytes, own.written)
    rows = yield AllGather(send=_first_word(zlib.crc32(repr(said).encode()) & _DIGEST, count).to(device))
    heard = rows.cpu()
    words: list[int] = heard.contiguous().view(torch.int64).flatten().tolist()
    counts = [word >> _COUNT_AT & (_TOO_MANY - 1) for word in words]
    for rank, (word, theirs, row) in enumerate(zip(words, counts, heard, strict=True)):
        if not torch.equal(row, _first_word(word & _DIGEST, theirs)):
            raise seals.damage(rank, "first word")
    if len({word & _DIGEST for word in words}) > 1:
        rows = yield AllGather(send=wire.seal_(own.words(device).view(torch.uint8)))
        nothing = Plan(known=slice(0, 0), known_sizes=())
        none = torch.empty(len(rows), 0, dtype=torch.int64)
        wire.read_headers(rows.cpu(), own, nothing, none, seals.sums(rows.cpu()))
    return counts[leader]


def _first_word(digest: int, count: int) -> Tensor:
    """Return the eight bytes of the first round."""
    plain = torch.tensor([digest | count << _COUNT_AT], dtype=torch.int64)
    return (plain | seals.short_of(plain, 64 - _SEAL_AT) << _SEAL_AT).view(torch.uint8)


def _following(plan: Plan, led: wire.Message) -> Plan:
    """Return the plan of those who follow: what was chosen for them is known to all."""
    known = plan.known
    if isinstance(known, slice):
        known = torch.arange(known.start or 0, known.stop)[: plan.known_count]
    at = led.payload.positions
    known = torch.cat([known.to(at.device, non_blocking=True), at])
    return Plan(known=known, known_sizes=(*plan.known_sizes, *led.header.chosen), step=plan.step)


def _taken_(x: Tensor, following: Plan) -> Payload:
    """Take out of x what was chosen."""
    assert isinstance(following.known, Tensor)
    values = x.index_select(0, following.known)
    x.index_fill_(0, following.known, 0)
    nothing = torch.empty(0, dtype=torch.int64, device=x.device)
    return Payload(known=values, positions=nothing, values=x[:0], wanted=nothing)


def _same_form(led: wire.Message) -> wire.Message:
    """Return the leader's message as if it had followed."""
    payload = led.payload
    known = torch.cat([payload.known, payload.values])
    return replace(led, payload=replace(payload, known=known, positions=payload.positions[:0], values=known[:0]))


def _own(sent: Payload, plan: Plan, led: wire.Message, *, leads: bool) -> Payload:
    """Return what this rank sent, with positions."""
    at = led.payload.positions
    if leads:
        # Behind the last entry there may be room that stands for nothing.
        return replace(sent, positions=sent.positions[: at.numel()], values=sent.values[: at.numel()])
    return replace(sent, known=sent.known[: plan.known_count], positions=at, values=sent.known[plan.known_count :])


def _mean(plan: Plan, following: Plan, led: wire.Message, messages: list[wire.Message]) -> Mean:
    """Return what all ranks have learnt: the leader's counts are everyone's."""
    ranks, counts = len(messages), led.header.counts if plan.counted else ()
    return Mean(
        values=Gathered(known=following.known, payloads=tuple(m.payload for m in messages)),
        sent=(led.header.count + plan.known_count) * ranks,
        wanted=(led.header.wanted + plan.known_count) * ranks,
        qualified=led.header.wanted * ranks,
        choosable=plan.choosing.numel * ranks,
        counts={name: (n,) * ranks for name, n in zip(plan.choosing.names, counts, strict=False)},
        rooms=dict(zip(plan.choosing.names, plan.rooms, strict=True)),
        **heard(messages),
    )
