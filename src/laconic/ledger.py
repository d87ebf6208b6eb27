"""What the steps so far have shown of each parameter: agreed rooms and counts, and this rank's own deviations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from laconic.pace import UNKNOWN_PACE
from laconic.segments import Segments
from laconic.spectrum import Spectrum
from laconic.types import Fresh, Mean, Observation

# A message has room for this many times the entries that qualified in the step before.
SLACK = 1.1
_KINDS = ("running", "deviation", "clipped", "thresholds")


@dataclass(frozen=True, kw_only=True)
class Entered:
    """What one pass over fresh gradients learnt, in memory's units: one number a segment.

    ``clipped`` is 1 where a gradient was clipped; None where none can be.
    """

    segments: Segments
    deviation: Tensor
    largest: Tensor
    clipped: Tensor | None


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """What a step has shown of the shares that were sent."""

    segments: Segments
    sent: int
    rooms: Mapping[str, int]
    counts: Mapping[str, tuple[int, ...]]
    world_size: int

    def shares(self, *, apart: bool) -> dict[str, float]:
        """Return the share of each parameter; ``apart`` says that each was chosen from by itself."""
        overall = self.sent / (max(1, self.segments.numel) * self.world_size)
        # Beside what was chosen from, the rest went whole; without a choice all went alike.
        rest = 1.0 if apart else overall
        chosen = {
            name: sum(min(n, room) for n in self.counts.get(name, (room,) * self.world_size))
            for name, room in self.rooms.items()
        }
        whole = sum(s.size for s in self.segments if s.name not in self.rooms)
        # Not all that ranks chose need have arrived (sharded_mean).
        arrived = (self.sent - whole * self.world_size) / max(1, sum(chosen.values())) if apart else 1.0
        found = {}
        for segment in self.segments:
            share = rest if segment.size else 0.0
            if segment.name in chosen and segment.size:
                share = arrived * chosen[segment.name] / (segment.size * self.world_size)
            found[segment.name] = share
        return found


def next_room(counts: tuple[int, ...]) -> int:
    """Return the room for a segment in which these numbers of entries qualified, rank by rank.

    The mean, not the largest: what does not fit on a busy rank stays owed and counts again in the next
    step, while room for the busiest rank would be sent empty by all others (docs/decisions/0008).

    >>> next_room((100, 80)), next_room((1, 1)), next_room((0, 0))
    (99, 1, 1)
    """
    return max(1, int(sum(counts) / len(counts) * SLACK))


def observed(
    means: Sequence[Mean], *, step: int, numel: int, ranks: int, world_size: int, skipped: bool
) -> Observation:
    """Return what all ranks agree on of a step, from what its exchanges returned."""
    told = [mean.spectrum for mean in means if mean.spectrum is not None]
    return Observation(
        step=step,
        entries=numel * ranks,
        sent=sum(mean.sent for mean in means),
        wanted=sum(mean.wanted for mean in means),
        skipped=skipped,
        qualified=sum(mean.qualified for mean in means),
        choosable=sum(mean.choosable for mean in means),
        loss=means[0].loss if means else nan,
        alarmed=any(mean.alarmed for mean in means),
        spectrum=Spectrum.total(told) if told else None,
        fixed_bytes=sum(mean.fixed_bytes for mean in means),
        message_bytes=sum(mean.message_bytes for mean in means),
        value_bits=max((mean.value_bits for mean in means), default=0),
        room=sum(sum(mean.rooms.values()) for mean in means),
        ranks=ranks,
        world_size=world_size,
        change=means[0].change if means else nan,
        pace=means[0].pace if means else UNKNOWN_PACE,
    )


class Ledger:
    """One number a parameter of each kind, in the model's order; rooms by the name of what is chosen from.

    ``weight`` is that of the past in the running deviation; 0 keeps none. That deviation is kept in gradient
    units, so that it does not lag behind a learning rate that jumps.
    """

    def __init__(self, model: Segments, *, weight: float, dtype: torch.dtype, device: torch.device) -> None:
        self._model, self._weight = model, weight
        self._row = {name: i for i, name in enumerate(model.names)}
        self._rows_of: dict[tuple[str, ...], Tensor] = {}
        self._sizes = torch.tensor([s.size for s in model], dtype=dtype, device=device)
        self._roots = self._sizes.sqrt()
        nothing = torch.zeros(len(model), dtype=dtype, device=device)
        self.running, self.deviation, self._units = nothing.clone(), nothing.clone(), nothing + 1.0
        self._nothing = torch.zeros(max(1, len(model)), dtype=dtype, device=device)
        # A threshold below zero: there is none.
        self.thresholds, self.clipped = nothing - 1.0, nothing.clone()
        # What units are by name, and whether all are 1.
        self._units_of: Mapping[str, float] = {}
        self._plain = True
        self.rooms: dict[str, int] = {}
        self._shares: dict[str, float] = {}
        # What the last steps have shown of shares, by the names it was shown of: it waits until somebody asks.
        self._shown: dict[tuple[str, ...], _Shown] = {}
        self.seen = Observation(step=0, entries=0, sent=0, wanted=0, skipped=False)

    def begin(self, units: Mapping[str, float]) -> None:
        """Take in what one unit of each parameter's gradient counts for in this step's memory."""
        if units == self._units_of:
            return
        numbers = torch.tensor([units[name] for name in self._model.names], dtype=self._units.dtype)
        self._units = numbers.to(self._units.device, non_blocking=True)
        self._units_of, self._plain = dict(units), all(unit == 1.0 for unit in units.values())

    def fresh(self, entered: Entered, before: Tensor | None, *, merged: bool, past: bool = True) -> Fresh:
        """Return what a compressor may know of the segments that came in, or of all of them as one.

        Without ``past`` nothing is said of the steps before: for compressors that do not look there.
        """
        names, deviation, largest = entered.segments.names, entered.deviation, entered.largest
        if past:
            each = self.running * self._units
            running, overall = self._of(each, names), self._overall(each)
        else:
            running, overall = self._nothing[: len(names)], self._nothing[0]
        if merged:
            each = deviation
            if names != self._model.names:
                # In the model's order, whatever the buckets: the same bits everywhere.
                each = torch.zeros_like(self._sizes)
                each[self._rows(names)] = deviation
            deviation, running = self._overall(each).unsqueeze(0), overall.unsqueeze(0)
            # In a step in which no gradient came at all, zero is the largest.
            largest = (largest if len(largest) else largest.new_zeros(1)).max().unsqueeze(0)
        return Fresh(deviation=deviation, running=running, overall=overall, largest=largest, before=before)

    def gradient_norms(self) -> Tensor:
        """Return the norm of this rank's last fresh gradient, in memory's units, a number a parameter."""
        return self.deviation * self._roots

    def commit(self, entered: Entered, mean: Mean, *, world_size: int) -> None:
        """Take over what a finite step showed."""
        names, deviation = entered.segments.names, entered.deviation
        before = self._of(self.running, names)
        fresh = deviation if self._plain else deviation / self._of(self._units, names)
        # Where nothing came (rate 0, no gradient) there is nothing to learn from; a deviation is never below zero.
        came, blended = (deviation > 0) & (fresh < inf), fresh
        if self._weight:
            blended = torch.where(before > 0, self._weight * before + (1 - self._weight) * fresh, fresh)
        learnt = torch.where(came, blended, before)
        if names == self._model.names:
            self.running = learnt
        else:
            self._put_(self.running, names, learnt)
        self._put_(self.deviation, names, deviation)
        if entered.clipped is not None:
            self._put_(self.clipped, names, self._of(self.clipped, names) + entered.clipped)
        if mean.own is not None and mean.own.thresholds is not None:
            chosen = tuple(mean.rooms)
            self._put_(self.thresholds, chosen if self._names_all(chosen) else names, mean.own.thresholds)
        for name, counts in mean.counts.items():
            size = self._model[name].size if name in self._row else self._model.numel
            # Positions take at most a bit for each entry there is, so that the room may well be everything.
            self.rooms[name] = min(next_room(counts), size)
        shown = _Shown(
            segments=entered.segments, sent=mean.sent, rooms=mean.rooms, counts=mean.counts, world_size=world_size
        )
        # Behind what other names were shown before: where they overlap the last word holds.
        self._shown.pop(names, None)
        self._shown[names] = shown

    @property
    def shares(self) -> dict[str, float]:
        """What share of each parameter was sent last; where that is not known apart, the share of all."""
        shown, self._shown = self._shown, {}
        for each in shown.values():
            self._shares |= each.shares(apart=bool(each.rooms) and self._names_all(each.rooms))
        return self._shares

    def state_dict(self) -> dict[str, Any]:
        """Return what must outlive a restart, as plain containers of numbers."""
        numbers = {k: dict(zip(self._model.names, getattr(self, k).tolist(), strict=True)) for k in _KINDS}
        return numbers | {"rooms": dict(self.rooms), "shares": dict(self.shares)}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if a saved state is not one of this model's."""
        missing = sorted({*_KINDS, "rooms", "shares"} - set(state))
        foreign = [kind for kind in _KINDS if kind in state and set(state[kind]) != set(self._model.names)]
        if missing or foreign:
            raise ValueError(
                f"the saved ledger lacks {missing}, and has other parameters in {foreign}. Load the state that "
                f"link.state_dict() gave for the same model."
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        for kind in _KINDS:
            saved = [float(state[kind][name]) for name in self._model.names]
            getattr(self, kind).copy_(torch.tensor(saved, dtype=torch.float64))
        self.rooms, self._shares, self._shown = dict(state["rooms"]), dict(state["shares"]), {}

    def _names_all(self, names: Iterable[str]) -> bool:
        """Whether these are parameters of the model, each by itself."""
        return all(name in self._row for name in names)

    def _of(self, numbers: Tensor, names: tuple[str, ...]) -> Tensor:
        """The numbers of these parameters: mostly all of them, as they are."""
        return numbers if names == self._model.names else numbers[self._rows(names)]

    def _put_(self, numbers: Tensor, names: tuple[str, ...], new: Tensor) -> None:
        """Replace the numbers of these parameters; one that is given may stand for all of them."""
        if names == self._model.names:
            numbers.copy_(new)
        else:
            numbers[self._rows(names)] = new.expand(len(names))

    def _rows(self, names: tuple[str, ...]) -> Tensor:
        """The parameters' rows, on the device: made once for each bucket."""
        if names not in self._rows_of:
            rows = [self._row[name] for name in names]
            self._rows_of[names] = torch.tensor(rows, dtype=torch.int64, device=self.running.device)
        return self._rows_of[names]

    def _overall(self, deviation: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(deviation * self._roots)
        # Parameters that nothing has come for (frozen, unused) would lower the mean.
        return norm / (self._sizes * (deviation > 0)).sum().clamp(min=1).sqrt()
