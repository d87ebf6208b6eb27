"""What the steps so far have shown of each parameter: agreed rooms and counts, and this rank's own deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
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
    """What one pass over fresh gradients learnt, in memory's units: one number a segment."""

    segments: Segments
    deviation: Tensor
    largest: Tensor
    clipped: Tensor


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
        nothing = torch.zeros(len(model), dtype=dtype, device=device)
        self.running, self.deviation, self._units = nothing.clone(), nothing.clone(), nothing + 1.0
        # A threshold below zero: there is none.
        self.thresholds, self.clipped = nothing - 1.0, nothing.clone()
        self.rooms: dict[str, int] = {}
        self.shares: dict[str, float] = {}
        self.seen = Observation(step=0, entries=0, sent=0, wanted=0, skipped=False)

    def begin(self, units: Mapping[str, float]) -> None:
        """Take in what one unit of each parameter's gradient counts for in this step's memory."""
        numbers = torch.tensor([units[name] for name in self._model.names], dtype=self._units.dtype)
        self._units = numbers.to(self._units.device, non_blocking=True)

    def fresh(self, entered: Entered, before: Tensor | None, *, merged: bool) -> Fresh:
        """Return what a compressor may know of the segments that came in, or of all of them as one."""
        rows = self._rows(entered.segments.names)
        running = self.running[rows] * self._units[rows]
        overall = self._overall(self.running * self._units, self._sizes)
        deviation, largest = entered.deviation, entered.largest
        if merged:
            # In the model's order, whatever the buckets: the same bits everywhere.
            each, sizes = torch.zeros_like(self._sizes), torch.zeros_like(self._sizes)
            each[rows], sizes[rows] = deviation, self._sizes[rows]
            deviation = self._overall(each, sizes).unsqueeze(0)
            # The zero is for a step in which no gradient came at all.
            running, largest = overall.unsqueeze(0), torch.cat([largest, largest.new_zeros(1)]).max().unsqueeze(0)
        return Fresh(deviation=deviation, running=running, overall=overall, largest=largest, before=before)

    def gradient_norms(self) -> Tensor:
        """Return the norm of this rank's last fresh gradient, in memory's units, a number a parameter."""
        return self.deviation * self._sizes.sqrt()

    def commit(self, entered: Entered, mean: Mean, *, world_size: int) -> None:
        """Take over what a finite step showed."""
        rows = self._rows(entered.segments.names)
        before, fresh = self.running[rows], entered.deviation / self._units[rows]
        # Where nothing came (rate 0, no gradient) there is nothing to learn from.
        came = (entered.deviation > 0) & torch.isfinite(fresh)
        blended = torch.where(before > 0, self._weight * before + (1 - self._weight) * fresh, fresh)
        self.running[rows] = torch.where(came, blended, before)
        self.deviation[rows] = entered.deviation
        self.clipped[rows] += entered.clipped
        merged = not all(name in self._row for name in mean.rooms)
        if mean.own is not None and mean.own.thresholds is not None:
            to = rows if merged else self._rows(tuple(mean.rooms))
            self.thresholds[to] = mean.own.thresholds.expand(len(to))
        for name, counts in mean.counts.items():
            size = self._model[name].size if name in self._row else self._model.numel
            # Positions take at most a bit for each entry there is, so that the room may well be everything.
            self.rooms[name] = min(next_room(counts), size)
        self._share(entered.segments, mean, world_size)

    def _share(self, segments: Segments, mean: Mean, world_size: int) -> None:
        """Note what share of each parameter was sent; where that is not known apart, the share of all."""
        overall = mean.sent / (max(1, segments.numel) * world_size)
        # Beside what was chosen from, the rest went whole; without a choice all went alike.
        apart = bool(mean.rooms) and set(mean.rooms) <= set(self._row)
        rest = 1.0 if apart else overall
        chosen = {
            name: sum(min(n, room) for n in mean.counts.get(name, (room,) * world_size))
            for name, room in mean.rooms.items()
        }
        whole = sum(s.size for s in segments if s.name not in mean.rooms)
        # Not all that ranks chose need have arrived (sharded_mean).
        arrived = (mean.sent - whole * world_size) / max(1, sum(chosen.values())) if apart else 1.0
        for segment in segments:
            share = rest if segment.size else 0.0
            if segment.name in chosen and segment.size:
                share = arrived * chosen[segment.name] / (segment.size * world_size)
            self.shares[segment.name] = share

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
        self.rooms, self.shares = dict(state["rooms"]), dict(state["shares"])

    def _rows(self, names: tuple[str, ...]) -> Tensor:
        """The parameters' rows, on the device: made once for each bucket."""
        if names not in self._rows_of:
            rows = [self._row[name] for name in names]
            self._rows_of[names] = torch.tensor(rows, dtype=torch.int64, device=self.running.device)
        return self._rows_of[names]

    def _overall(self, deviation: Tensor, sizes: Tensor) -> Tensor:
        # Parameters that nothing has come for (frozen, unused) would lower the mean.
        sizes = torch.where(deviation > 0, sizes, 0.0)
        norm: Tensor = torch.linalg.vector_norm(deviation * sizes.sqrt())
        return norm / sizes.sum().clamp(min=1).sqrt()
