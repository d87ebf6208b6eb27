"""Rounds of local steps, as data: how long, how a gradient becomes a step, and what a sync does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from laconic.arguments import check_choice, check_number, check_whole
from laconic.clipping import LocalClip
from laconic.local.outer import OuterStep
from laconic.local.periods import Every, Period

NormOf = Literal["gradient", "update"]
NormBy = Literal["local", "global_average", "max"]
Correction = Literal["none", "resampled", "stored"]
OptimizerState = Literal["keep", "average", "reset"]
Buffers = Literal["keep", "average", "recompute"]


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """Every rank steps by itself for a round; then what it has walked, its drift from the anchor, is exchanged.

    ``period`` says how many steps a round has. ``clip`` clips each step by its norm (scope "model"): of the
    ``gradient``, before the optimizer's step, or of the whole ``update`` (momentum, decay and all), after it.
    ``norm_by`` says whose norm: this rank's, that of the mean gradient at the round's first step
    (``global_average``), or the larger of both (``max``). With ``correction`` a step follows the gradient minus
    this rank's share plus the mean of all (EPISODE): ``resampled`` by a batch at the start of each round, which
    only measures, or ``stored`` from the last round a rank took part in (EPISODE++); the whole round then clips or
    does not.

    Of all ranks ``participants`` take part in a round, a sample drawn from ``seed``; None: all. Before step
    ``start`` gradients are averaged in every step (post-local SGD); None: always. ``outer`` is the step that the
    anchor takes. A rank restarts from the anchor minus the share ``restart`` of what it owes; None: 1/N, its part
    in what the mean of N ranks that send will once have of it.

    At a sync the inner optimizer's state is kept, averaged over ranks, or reset; the running statistics among the
    ``buffers`` (BatchNorm's) are kept, averaged, or made anew from the round's last inputs (``recompute``).
    ``fragments`` parts of the model are synchronised in turn, ``delay`` steps after their exchange began, and then
    mixed: (1 - mix) * anchor + mix * local (Streaming DiLoCo).
    """

    period: Period = field(default_factory=Every)
    clip: LocalClip | None = None
    norm_of: NormOf = "gradient"
    norm_by: NormBy = "local"
    correction: Correction = "none"
    participants: int | None = None
    seed: int = 0
    start: int | None = 0
    outer: OuterStep = field(default_factory=OuterStep)
    restart: float | None = 0.0
    optimizer_state: OptimizerState = "keep"
    buffers: Buffers = "keep"
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.period, type) or not isinstance(self.period, Period):
            raise TypeError(f"period must be of the kind Period, such as Every(steps=16), got {self.period!r}.")
        if not isinstance(self.outer, OuterStep):
            raise TypeError(f"outer must be an OuterStep, such as OuterStep(rate=0.7), got {self.outer!r}.")
        if self.clip is not None and (not isinstance(self.clip, LocalClip) or self.clip.scope != "model"):
            raise ValueError(f"clip must be LocalClip(norm=..., scope='model') or None, got {self.clip!r}.")
        check_choice("norm_of", self.norm_of, get_args(NormOf))
        check_choice("norm_by", self.norm_by, get_args(NormBy))
        check_choice("correction", self.correction, get_args(Correction))
        check_choice("optimizer_state", self.optimizer_state, get_args(OptimizerState))
        check_choice("buffers", self.buffers, get_args(Buffers))
        check_whole("seed", self.seed, 0, "It seeds the sample of participants.")
        check_whole("fragments", self.fragments, 1, "For the model as a whole write 1.")
        check_whole("delay", self.delay, 0, "It counts local steps; for none write 0.")
        if self.participants is not None:
            check_whole("participants", self.participants, 1, "For all ranks write None.")
        if self.start is not None:
            check_whole("start", self.start, 0, "It counts steps; local from the first one on is 0, never None.")
        for name in ("restart", "mix"):
            share = getattr(self, name)
            if name == "restart" and share is None:
                continue
            check_number(name, share, 0.0, "It is a share in [0, 1].")
            if share > 1:
                raise ValueError(f"{name} must be a share in [0, 1], got {share}. Write 0 for none of it.")
        self._check_rules()
        self._check_fragments()

    def _check_rules(self) -> None:
        plain = self.norm_of == "gradient" and self.norm_by == "local"
        if self.clip is None and not plain:
            raise ValueError(
                "norm_of and norm_by say how to clip, and clip is None: give clip=LocalClip(norm=...)."
            )
        if self.norm_of == "update" and self.norm_by != "local":
            raise ValueError("the norm of the whole update is each rank's own: leave norm_by='local'.")
        if self.correction != "none" and not (plain and self.start == 0):
            raise ValueError(
                "EPISODE clips by the norm of the mean gradient, from the first step on: leave norm_of, norm_by "
                "and start as they are."
            )
        if self.participants is not None and self.correction == "resampled":
            raise ValueError("EPISODE hears every rank in every round. For a sample of them use episode_pp().")

    def _check_fragments(self) -> None:
        if self.fragments == 1 and self.delay == 0:
            return
        every = self.period.first
        if not isinstance(self.period, Every) or every % self.fragments or self.delay >= every // self.fragments:
            raise ValueError(
                f"fragments are synchronised in turn within a fixed period: {self.fragments} fragments with delay "
                f"{self.delay} need Every(steps=n), n a multiple of {self.fragments} and over "
                f"{self.fragments * self.delay}; got {self.period}."
            )
        if self.correction != "none" or self.participants is not None or self.norm_by != "local":
            raise ValueError(
                "fragments and delay have no common start of a round, which corrections, participants and the norm "
                "of the mean gradient need. Leave those out."
            )


def participants_of(local: LocalSteps, number: int, world_size: int) -> tuple[int, ...] | None:
    """Return the ranks that take part in a round, the same on every rank; None: all.

    >>> participants_of(LocalSteps(participants=2), 0, 4) == participants_of(LocalSteps(participants=2), 0, 4)
    True
    """
    if local.participants is None or local.participants >= world_size:
        return None
    draw = torch.Generator().manual_seed((local.seed * 1_000_003 + number) % (1 << 63))
    return tuple(sorted(torch.randperm(world_size, generator=draw)[: local.participants].tolist()))
