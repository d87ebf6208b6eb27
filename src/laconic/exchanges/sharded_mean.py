"""A sparse all-reduce in two rounds, whose volume a rank does not grow with the ranks.

After Ok-Topk (Li and Hoefler, PPoPP 2022), written from its formulas: every rank adds up a range of the entries and
tells all the largest sums. In the place of thresholds that ranks must agree on there are quotas, which need none: a
range has room for so many sums, shared out over its parameters, so sizes are exact and no parameter is starved.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.codecs import Exact
from laconic.coding import Codec, best_width, position_bits
from laconic.collectives import AllGather, AllToAll
from laconic.exchanges.adding import fitting_, found, owe_, summed
from laconic.exchanges.lettering import (
    all_read_finite,
    check_codec,
    frame_of,
    header_of,
    mean_told,
    seed_of,
    share_told,
)
from laconic.exchanges.reducing import refuse_some_senders
from laconic.pace import Pace
from laconic.segments import Segments
from laconic.shards import CUTS, Cut, first_cut, next_cut, shards_of
from laconic.types import Compressor, Envelope, Gathered, Mean, Payload, Plan, Steps

# What is added up is rounded by other chances than what was sent.
_SECOND = 0x5BD1E995


@dataclass(frozen=True, kw_only=True)
class ShardedMean:
    """One all-to-all of entries, one all-gather of sums; a rank receives about twice what one rank chooses.

    ``values`` says how values are written, in both rounds; the rank that rounded owes what that loses. Of the sums
    as many are told as one rank chooses, the largest of each parameter: what a rank sent for others it still owes.
    Ranges are cut such that each takes equally many bytes, by the plan, and then by what ranks did choose.
    """

    name: ClassVar[str] = "sharded_mean"
    tells: ClassVar[bool] = True
    values: Codec = field(default_factory=Exact)

    def __post_init__(self) -> None:
        check_codec(self.values)

    @property
    def lossless(self) -> bool:
        """Whether values arrive as they are."""
        return isinstance(self.values, Exact)

    def check(self, compressor: Compressor) -> None:
        """Refuse what damps values: of an entry that is not told, all must stay owed. Refuse draws by chance."""
        if compressor.name == "damped":
            raise ValueError(
                "sharded_mean gives back what was not told, and damping has cut it by then. Use GatherMean()."
            )
        if compressor.name == "stochastic":
            raise ValueError(
                "sharded_mean gives part of what was drawn back, and stochastic is unbiased only where all of it "
                "arrives. Use GatherMean()."
            )

    def received_bytes(self, plan: Plan, x: Tensor, envelope: Envelope) -> int:
        """Return how many bytes a rank receives in both rounds, its own among them, while ranges are as planned."""
        frame = frame_of(plan, self.values, x, envelope)
        cut = first_cut(plan, ranks=envelope.world_size, numel=_extent(plan), value_bits=frame.value_bits)
        return wire.Deal(frame=frame, shards=shards_of(plan, cut), rank=0).received_bytes

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what is not in the mean for this rank's part; return the mean of what was told."""
        refuse_some_senders(self.name, envelope)
        self.check(compressor)
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        frame = frame_of(plan, self.values, x, envelope)
        cut = _cut_of(frame, x.numel(), segments, envelope)
        deal = wire.Deal(frame=frame, shards=shards_of(plan, cut), rank=envelope.rank)
        seed = seed_of(envelope)

        taken = compressor.compress_(x, segments, plan, envelope.fresh or kernels.fresh_of(x, segments))
        header = header_of(taken, frame, envelope)
        fit, had = fitting_(x, taken, plan, deal.shards, turn=envelope.step)
        bodies = wire.write_parts(deal.given, fit, self.values, seed=seed)
        if not self.lossless:
            owe_(x, plan, fit, bodies.sent, known=slice(None))
        reply = yield AllToAll(
            send=deal.give(bodies, had, taken.wanted, header),
            given=deal.given_bytes,
            heard=(deal.given_bytes[deal.rank],) * deal.ranks,
        )

        heard = deal.hear(reply, header)
        shard = deal.shards[deal.rank]
        mine, survived = summed(heard, shard.result, deal.ranks, turn=envelope.step)
        told = wire.write_parts(deal.own, mine, self.values, seed=seed ^ _SECOND)
        if not self.lossless:
            # A mean counts for every rank.
            owe_(x, plan, mine, told.sent, known=shard.known, times=deal.ranks)
        # What is not finite would not be among the largest, and only its rank would have it.
        fine = kernels.all_finite(heard.entries.known) and kernels.all_finite(heard.entries.values)
        header = replace(header, count=mine.positions.numel(), finite=header.finite if fine else False)
        numbers = wire.Numbers(demand=heard.demand, survived=survived, wanted=heard.wanted)
        rows = yield AllGather(send=deal.tell(header, told, numbers, envelope.spectrum, envelope.notes))

        learnt = deal.learn(rows, header)
        own = _taken_back_(x, taken, bodies.sent, learnt.entries)
        return replace(_mean(deal, learnt), own=own, kept=_kept(cut, deal, learnt, segments))


def _mean(deal: wire.Deal, learnt: wire.Learnt) -> Mean:
    """Return what all ranks have learnt."""
    plan, headers, entries = deal.frame.plan, learnt.headers, learnt.entries
    known, qualified = plan.known_count * deal.ranks, sum(h.wanted for h in headers)
    total = Payload(
        known=entries.known,
        positions=entries.positions,
        values=entries.values,
        wanted=torch.tensor([h.count for h in headers], dtype=torch.int64),
    )
    return Mean(
        values=Gathered(known=plan.known, payloads=(total,)),
        finite=all(h.finite for h in headers) and all_read_finite((total,)),
        sent=sum(learnt.survived) + known,
        wanted=qualified + known,
        notes=learnt.notes,
        qualified=qualified,
        choosable=plan.choosing.numel * deal.ranks,
        counts={n: _even(c, deal.ranks) for n, c in zip(plan.choosing.names, learnt.wanted, strict=False)},
        rooms=dict(zip(plan.choosing.names, plan.rooms, strict=True)),
        loss=mean_told([h.loss for h in headers]),
        alarmed=any(h.alarmed for h in headers),
        pace=Pace.of_group([h.pace for h in headers]),
        spectrum=learnt.spectrum,
        change=share_told([h.change for h in headers]),
        message_bytes=deal.sent_bytes,
        fixed_bytes=deal.fixed_bytes,
        value_bits=_entry_bits(deal),
    )


def _taken_back_(x: Tensor, taken: Payload, sent: wire.Entries, told: wire.Entries) -> Payload:
    """Give back to x what was sent and is not in the mean; return what is."""
    there = sent.positions < x.numel()
    arrived = found(sent.positions, told.positions)
    back = there & ~arrived
    x.index_add_(0, sent.positions[back], sent.values[back])
    return replace(taken, known=sent.known, positions=sent.positions[arrived], values=sent.values[arrived])


def _even(total: int, ranks: int) -> tuple[int, ...]:
    """Return a whole number for each rank; what they have together is all that is known."""
    return tuple((total + rank) // ranks for rank in range(ranks))


def _entry_bits(deal: wire.Deal) -> int:
    """Return what an entry takes in both rounds, less one coding of its position."""
    plan = deal.frame.plan
    if not plan.capacity:
        return deal.frame.value_bits
    once = position_bits(plan.choosing.numel, plan.capacity, best_width(plan.choosing.numel, plan.capacity))
    bits = 8 * (deal.sent_bytes - deal.fixed_bytes) - once
    return max(deal.frame.value_bits, bits // plan.capacity)


def _cut_of(frame: wire.Frame, numel: int, segments: Segments, envelope: Envelope) -> Cut:
    """Return the ranges: those that were kept, or by the plan."""
    plan, ranks = frame.plan, envelope.world_size
    kept = Cut.read(envelope.kept.get(_key(segments, ranks)), ranks, numel) if plan.capacity else None
    return kept or first_cut(plan, ranks=ranks, numel=numel, value_bits=frame.value_bits)


def _kept(cut: Cut, deal: wire.Deal, learnt: wire.Learnt, segments: Segments) -> dict[str, Tensor]:
    """Return the ranges for the steps to come: others only where what ranks had for one did not fit."""
    plan = deal.frame.plan
    if not plan.capacity:
        return {}
    if not cut.holds(learnt.demand, plan.capacity):
        cut = next_cut(cut, plan, learnt.demand, value_bits=deal.frame.value_bits)
    return {_key(segments, deal.ranks): cut.kept()}


def _key(segments: Segments, ranks: int) -> str:
    """Name what is cut: buckets may be laid out anew."""
    names = segments.names or ("",)
    return f"{CUTS}{ranks}.{names[0]}.{names[-1]}.{segments.numel}"


def _extent(plan: Plan) -> int:
    """Return how many entries a vector has at least of which this is the plan."""
    ends = [segment.offset + segment.size for segment in plan.choosing]
    if plan.known_count:
        ends.append(plan.known.stop if isinstance(plan.known, slice) else int(plan.known[-1]) + 1)
    return max(ends, default=0)
