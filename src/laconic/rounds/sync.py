"""A sync: ranks agree on where they stand, exchange their drifts, and go on from a new anchor."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite, nan, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from laconic.coding import Codec
from laconic.errors import GroupError
from laconic.exchanges import GatherMean
from laconic.holding import Holding
from laconic.local import LocalSteps
from laconic.local.periods import RoundSeen
from laconic.reducer import Reducer
from laconic.rounds.arena import Arena
from laconic.rounds.fragment import Fragment, in_turn
from laconic.rounds.meeting import Meeting

# In the place of a round's number: this rank is at no sync, but looks at the model.
_LOOKS = -1.0


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a rank tells the others before a sync: one row of the table; ``ends`` is 0 before its end."""

    number: float
    step: float
    in_round: float
    ends: float
    loss_sum: float
    loss_count: float
    rate: float
    reach: float

    def row(self, walked: float) -> list[float]:
        """Return the numbers in the order of the table."""
        return [self.number, self.step, self.in_round, self.ends, self.loss_sum, self.loss_count, self.rate,
                self.reach, walked]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What the table says to all of a round.

    How it went, whether all ranks are at their end, how far the furthest can have walked, and by fragment how many
    of those that send have worked.
    """

    seen: RoundSeen
    all_end: bool
    reach: float
    worked: tuple[int, ...]


class Sync:
    """The fragments of a model, and the exchange that is under way for some of them."""

    def __init__(
        self,
        local: LocalSteps,
        parameters: Mapping[str, nn.Parameter],
        reducer: Reducer,
        meeting: Meeting,
        ranks: int,
        holding: Holding,
    ) -> None:
        self._local, self._reducer, self._meeting, self._ranks = local, reducer, meeting, ranks
        self._holding = holding
        self.fragments = [
            Fragment(Arena(part, holding), local.outer) for part in in_turn(parameters, local.fragments)
        ]
        self.flying: list[Fragment] = []
        self._poisoned = False
        # With which share this rank began its round: what was loaded may be of other ranks, or of another method.
        self._began = self._share

    def take_anchors(self) -> None:
        """Agree on what the parameters are now."""
        for fragment in self.fragments:
            fragment.take_anchor()

    def start(self, index: int, standing: Standing, senders: tuple[int, ...] | None) -> Agreed:
        """Start the exchange of a fragment's drift; where all ranks are at their end, of all fragments'."""
        for fragment in self.fragments if standing.ends else [self.fragments[index]]:
            if fragment.holds and not fragment.knows_begin:
                self._begin(fragment, self._began)
            fragment.measure()
        agreed = self._agree(standing, self.fragments[index], senders)
        if agreed.all_end and not any(agreed.worked):
            # Nobody has taken a step since the last sync.
            return agreed
        self._reducer.begin_step(rates=self._still(), senders=senders)
        talking = self._ranks if senders is None else len(senders)
        for i in range(len(self.fragments)) if agreed.all_end else [index]:
            fragment, worked = self.fragments[i], agreed.worked[i]
            # A rank that has gone stands still: the mean is that of those who worked.
            if 0 < worked < talking:
                fragment.drift.mul_(talking / worked)
            self._reducer.begin(fragment.drift, fragment.arena.segments)
            fragment.flying, fragment.worked = True, False
            self.flying.append(fragment)
        return agreed

    def end_with(self, settle: Codec | None) -> float:
        """Return the number by which a rank tells that it is at its end, and how it settles there.

        Raises ``GroupError`` where those who hold a replica with it end in another way: it would wait for them.
        """
        # Sums of squares of it are exact.
        ends = 1 if settle is None else 2 + (zlib.crc32(repr(settle).encode()) & 0xFFFF)
        told = torch.tensor([1, ends, ends**2], device=self.fragments[0].anchor.device)
        count, total, squares = self._holding.sum_(told).tolist()
        if count * squares != total**2:
            raise GroupError(
                "the shards of a replica settle what they owe at the end in unlike ways. Call link.finish() with "
                "the same settle= on every rank."
            )
        return float(ends)

    def settle(self, values: Codec | None) -> None:
        """Have all that ranks owe sent at once, after the last sync, and let the anchors take it; all begin there.

        What values lose by being rounded stays owed; None: all of it does.
        """
        if values is None:
            return
        # Where a replica is held in shards, each of them settles or none does.
        norms = self._meeting.table([float(self._holding.sum_(self._can_be_paid()))], "what ranks owe")
        if not any(norm for (norm,) in norms):
            return
        self._reducer.begin_step(rates=self._still(), whole=GatherMean(values=values))
        for fragment in self.fragments:
            self._reducer.begin(fragment.drift.zero_(), fragment.arena.segments)
        self.arrive()
        poisoned, self._poisoned = self._poisoned, False
        for fragment in self.fragments:
            if not poisoned:
                # Without momentum: this is the end of a walk, not a direction to gather speed in.
                fragment.step(fragment.drift, gathers=False)
            fragment.holds = fragment.knows_begin = False
            fragment.restart(mix=0.0)

    def _can_be_paid(self) -> Tensor:
        """Return the norm of what this rank owes of parameters that train; 0 only where it is nothing."""
        total = torch.zeros((), dtype=torch.float64, device=self.fragments[0].anchor.device)
        for f in self.fragments:
            owed, frozen = self._reducer.owed(f.arena.segments, out=f.begin), f.frozen()
            live = f.arena.segments.among(tuple(name for name in f.arena.segments.names if name not in frozen))
            for view in live.views(owed):
                total += torch.linalg.vector_norm(view)
        return total

    def _still(self) -> dict[str, float]:
        """What was frozen since must not move: what it owes waits, as at rate 0."""
        return {name: 0.0 for f in self.fragments for name in f.frozen()}

    def work(self) -> None:
        """Note that this rank has attempted a step."""
        for fragment in self.fragments:
            fragment.worked = True

    def arrive(self) -> None:
        """Wait until the mean has come; it is applied when its time comes."""
        if self._reducer.open:
            self._reducer.end_step()
            self._poisoned = self._reducer.take_outcome().skipped

    def look(self, numbers: list[float]) -> list[list[float]]:
        """Return what every rank tells when all of them look at the model, a row a rank.

        Raises ``GroupError``, on every rank, if one of them is at a sync.
        """
        # As wide as a sync's table: backends may end the process over unlike sizes before a row is read.
        row = [_LOOKS, *numbers, *[0.0] * (len(fields(Standing)) + 1 + len(self.fragments) - len(numbers))]
        table = self._meeting.table(row)
        _refuse_looks_at_syncs([told[0] for told in table])
        return [told[1 : 1 + len(numbers)] for told in table]

    def land(self, *, last: bool = False) -> float:
        """Wait for the mean, and let anchors and parameters take their steps; ``last``: exactly to the anchor.

        Return how far this rank was from the mean of all. A drift that was not finite on any rank is dropped by
        all.
        """
        self.arrive()
        apart = 0.0
        for fragment in self.flying:
            if not self._poisoned:
                apart += fragment.apart() ** 2
                fragment.step(fragment.drift)
            self._begin(fragment, self._share)
            fragment.restart(mix=0.0 if self._poisoned else self._local.mix)
            fragment.flying = False
        for fragment in self.fragments if last else ():
            fragment.holds = False
            fragment.restart(mix=0.0)
        poisoned, self._poisoned, self.flying = self._poisoned, False, []
        return nan if poisoned else sqrt(apart)

    @property
    def poisoned_here(self) -> bool:
        """Whether this rank walked to where numbers end."""
        return not all(isfinite(fragment.walked) for fragment in self.flying)

    def state_dict(self) -> dict[str, Any]:
        """Return copies; what is under way is waited for, not applied."""
        self.arrive()
        parts = [fragment.state_dict() for fragment in self.fragments]
        marks = [[part.holds, part.worked, part.mixed, part.walked] for part in self.fragments]
        # With these another number of ranks knows where each began.
        frozen = [name for fragment in self.fragments for name in fragment.frozen()]
        begin = {"share": self._began, "frozen": frozen}
        return {"fragments": parts, "marks": marks, "poisoned": self._poisoned} | begin

    def check(self, state: Mapping[str, Any]) -> None:
        """Wait for what is under way, and raise ``ValueError`` if a saved state does not fit."""
        # Before anything is loaded: its end is written into the reducer's memory and counts.
        self.arrive()
        parts = len(self.fragments)
        if "poisoned" not in state or not len(state.get("fragments", ())) == len(state.get("marks", ())) == parts:
            raise ValueError("the saved rounds have other fragments. Attach the method that saved them.")
        for fragment, saved in zip(self.fragments, state["fragments"], strict=True):
            fragment.check(saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, checked before; what was under way here is forgotten."""
        for fragment, saved in zip(self.fragments, state["fragments"], strict=True):
            fragment.load_state_dict(saved)
        for fragment, marks in zip(self.fragments, state["marks"], strict=True):
            fragment.holds, fragment.worked, fragment.mixed, fragment.walked = marks
        if state.get("to_anchor"):
            # On another number of ranks: all begin from what was agreed on.
            for fragment in self.fragments:
                fragment.restart(mix=0.0)
        self.flying, self._poisoned = [f for f in self.fragments if f.flying], state["poisoned"]
        self._began = state.get("share", self._share)

    def _agree(self, standing: Standing, fragment: Fragment, senders: tuple[int, ...] | None) -> Agreed:
        # Names too: another link may have a sync of its own in this group.
        shape = zlib.crc32(f"{self._reducer.agreement()} {fragment.arena.segments.names}".encode())
        # One that has ended and was mixed with the anchor does not work any more, and is still elsewhere.
        moved = [float(part.worked or part.walked > 0) for part in self.fragments]
        table = self._meeting.table([*standing.row(fragment.walked**2), shape, *moved])
        numbers, steps, in_round, ends, losses, counts, rates, reach, walked, shapes, *worked = zip(
            *table, strict=True
        )
        _refuse_looks_at_syncs(list(numbers))
        if len(set(numbers)) > 1 or len(set(shapes)) > 1:
            raise GroupError(
                f"ranks are in unlike rounds: {[int(n) for n in numbers]}, rank by rank, or have loaded unlike "
                f"states, or are at the syncs of unlike links. Load the checkpoint of the same step on every rank, "
                f"call link.finish() on all of them or on none, and with several links train equally many batches."
            )
        if all(ends) and len(set(ends)) > 1:
            unlike = [rank for rank, end in enumerate(ends) if end != ends[0]]
            raise GroupError(
                f"ranks {unlike} settle what they owe at the end in another way than rank 0, or not at all. Call "
                f"link.finish() with the same settle= on every rank."
            )
        norm = float(torch.linalg.vector_norm(fragment.anchor)) or 1.0
        seen = RoundSeen(
            step=int(max(steps)),
            every=max(1, int(max(in_round))),
            loss=sum(losses) / sum(counts) if sum(counts) else nan,
            rate=sum(rates) / len(rates),
            drift=sqrt(sum(walked) / len(walked)) / norm,
        )
        telling = range(len(table)) if senders is None else senders
        counted = tuple(int(sum(column[rank] for rank in telling)) for column in worked)
        return Agreed(seen=seen, all_end=all(ends), reach=max(reach), worked=counted)

    @property
    def _share(self) -> float:
        """How much of what it owes a rank holds back."""
        sending = min(self._local.participants or self._ranks, self._ranks)
        return 1 / sending if self._local.restart is None else self._local.restart

    def _begin(self, fragment: Fragment, share: float) -> None:
        """Say where this rank begins: at the anchor, or there minus this share of what it owes."""
        fragment.holds, self._began = False, share
        if share:
            fragment.hold_back(self._reducer.owed(fragment.arena.segments, out=fragment.begin), share)


def _refuse_looks_at_syncs(numbers: list[float]) -> None:
    """Raise ``GroupError`` if some ranks look at the model and others are at a sync."""
    looking = [rank for rank, number in enumerate(numbers) if number == _LOOKS]
    if 0 < len(looking) < len(numbers):
        raise GroupError(
            f"ranks {looking} are in link.averaged() and the others at a sync: they attempted unlike numbers of "
            f"steps. Enter it on every rank after equally many, or call link.finish() before, on all of them."
        )
