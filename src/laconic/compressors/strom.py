"""A fixed threshold, and nothing but its sign sent: Strom, Interspeech 2015; written from its formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from torch import Tensor

from laconic import kernels
from laconic.arguments import check_number, check_whole
from laconic.compressors.selection import counted_plan, take_known_
from laconic.segments import Segments
from laconic.types import Fresh, Payload, Plan

_FIRST_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Strom:
    """Of every entry beyond +-``tau`` send +-tau; the rest of it stays owed.

    tau is in the units of memory: with ``memory="update"``, the change of a weight that is worth telling.
    """

    name: ClassVar[str] = "strom"
    ranks_choose: ClassVar[bool] = True
    counts_vary: ClassVar[bool] = True
    reads_before: ClassVar[bool] = False
    tau: float
    whole_below: int = 1024

    def __post_init__(self) -> None:
        check_number("tau", self.tau, 0.0, "It is a change that is worth sending, in the units of memory.")
        if self.tau == 0:
            raise ValueError(
                f"tau must be a number over 0, got {self.tau!r}. At 0 nothing but signs of zero is sent."
            )
        check_whole("whole_below", self.whole_below, 0, "To send no parameter whole write 0.")

    def plan(self, segments: Segments, *, step: int, rooms: Mapping[str, int]) -> Plan:
        """Say that small segments are sent whole, and what room the others have."""
        return counted_plan(
            segments,
            step=step,
            rooms=rooms,
            whole_below=self.whole_below,
            first=lambda size: ceil(size * _FIRST_SHARE),
        )

    def compress_(self, x: Tensor, segments: Segments, plan: Plan, fresh: Fresh) -> Payload:  # noqa: ARG002
        """Take tau out of each entry beyond it; leave the rest in x."""
        known = take_known_(x, plan)
        thresholds = x.new_full((len(plan.choosing),), self.tau)
        taken = kernels.take_above_(x, plan.choosing, thresholds, plan.rooms, turn=plan.step)
        sent = taken.values.sign() * self.tau
        x.index_add_(0, taken.positions, taken.values - sent)
        return Payload(
            known=known, positions=taken.positions, values=sent, wanted=taken.wanted, thresholds=thresholds
        )
