"""Rounds of local steps on one rank: the counting, the syncs, and the end of ranks that have fewer batches.

Attempts are counted, not steps: one that a loss scaler skips makes no rank come later to a sync. Every sync begins
with a table that all ranks see, so that a rank at the end of its batches can go on taking part until all are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from laconic.coding import Codec
from laconic.collectives import Traffic, Transport
from laconic.errors import loss_untold
from laconic.holding import ALONE, Holding
from laconic.local.steps import participants_of
from laconic.method import Method
from laconic.reducer import Reducer
from laconic.rounds import optimizer_state
from laconic.rounds.arena import Arena
from laconic.rounds.averaging import Averaging
from laconic.rounds.buffers import BufferCare
from laconic.rounds.gradients import Gradients
from laconic.rounds.look import agreed_model
from laconic.rounds.meeting import Meeting
from laconic.rounds.optimizer_state import rates_of
from laconic.rounds.pace import Pace
from laconic.rounds.progress import Progress, with_rounds
from laconic.rounds.sync import Agreed, Sync
from laconic.stats import Stats


class Rounds:
    """What a local method does between ``backward`` and the next batch.

    ``before_step`` when the optimizer is about to step, ``after_attempt`` when the attempt is over, ``finish`` when
    this rank has no more batches. Every rank must come to them in the same order.
    """

    def __init__(
        self,
        method: Method,
        module: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        reducer: Reducer,
        transport: Transport,
        holding: Holding = ALONE,
    ) -> None:
        assert method.local is not None
        self.method, self.local, self.holding = method, method.local, holding
        self._reducer, self._optimizer = reducer, optimizer
        self._ranks, self._rank = transport.world_size, transport.rank
        self._arena = Arena(parameters, holding)
        self.meeting = Meeting(transport, next(iter(parameters.values())).device)
        self._gradients = Gradients(self.local, self._arena, self.meeting, world_size=self._ranks, holding=holding)
        self._averaging = Averaging(self._arena, self.meeting, clip=self.local.clip, holding=holding)
        self._sync = Sync(self.local, parameters, reducer, self.meeting, self._ranks, holding)
        self._care = BufferCare(module, self.meeting, ranks=self._ranks, how=self.local.buffers, holding=holding)
        self._pace = Pace(self.local.period)
        self._names = {id(p): name for name, p in parameters.items()}
        self._now, self._ends = Progress(), 0.0
        self._began = self._takes_step = self._measured = False
        self._before: Tensor | None = None
        self._agreed: Agreed | None = None
        self.after_round: Callable[[], None] = lambda: None
        self.on_tick: Callable[[], None] | None = None  # In the place of ``tick``: who decides with whom to talk.

    def begin(self) -> None:
        """Take the parameters as they now are, equal on all ranks, for the anchor."""
        self._sync.take_anchors()
        self._care.begin()

    def remove(self) -> None:
        """Leave the module as it was found."""
        self._care.remove()

    @property
    def every(self) -> int:
        """The steps of this round."""
        return self._pace.every

    @property
    def due(self) -> bool:
        """Whether this round's steps are done, and its sync is not."""
        return self._now.in_round >= self.every

    @property
    def every_step(self) -> bool:
        """Whether gradients are still averaged in every step."""
        return self.local.start is None or self._now.step < self.local.start

    def agreed(self) -> dict[str, Tensor]:
        """Return what all ranks have agreed on at the last sync, by parameter name."""
        return {name: part for f in self._sync.fragments for name, part in f.arena.by_name(f.anchor).items()}

    @property
    def senders(self) -> tuple[int, ...] | None:
        """The ranks that take part in this round; None: all."""
        return participants_of(self.local, self._now.number, self._ranks)

    def observe(self, loss: float) -> None:
        """Take in this rank's loss of the step under way; one that is not finite counts for nothing."""
        self._now.observe(loss)

    def before_look(self, scale: float = 1.0) -> None:
        """A loss scaler is about to look at gradients that it has scaled: where they are averaged, at the mean."""
        if self.every_step and not self._averaging.done:
            self._averaging.exchange(rates_of(self._optimizer, self._names), scale=scale)

    def forget_look(self) -> None:
        """The step that was looked at is over, or was given up."""
        self._averaging.done = False

    def before_step(self) -> bool:
        """Make the gradients what the optimizer is to step along; return whether it may step."""
        self._began = True
        self._takes_step = self._prepare(missed=False)
        if self._takes_step and self.local.norm_of == "update" and not self.every_step:
            self._before = self._arena.values()
        return self._takes_step

    def after_attempt(self) -> None:
        """Count the step, whether it was taken or not; sync if one is due."""
        now, averages = self._now, self.every_step
        if not self._began:
            # A loss scaler saw an infinity on this rank and skipped: the others may be waiting for its gradient.
            self._takes_step = False
            self._prepare(missed=True)
        self._began = self._averaging.done = False
        now.step += 1
        now.taken += self._takes_step
        if self._before is not None:
            self._gradients.clip_update_(self._before, rates_of(self._optimizer, self._names))
            self._before = None
        if averages:
            now.averaged_steps += 1
            now.clipped += self._takes_step and self._averaging.clipped
            if not self.every_step:
                self._catch_up()
        elif not self._measured:
            now.in_round, now.worked = now.in_round + 1, True
            self._sync.work()
            length = self._gradients.reach(rates_of(self._optimizer, self._names))
            now.could_reach += length
            if self._takes_step:
                now.clipped += self._gradients.clipped
                now.reach += length
            (self.on_tick or self.tick)()

    def finish(self, settle: Codec | None = None) -> None:
        """Complete the round together: return when every rank has come here, with all models equal.

        Who comes first takes part in others' syncs, standing still. All then ``settle`` what they owe, in a codec.
        """
        self._ends, averaged = self._sync.end_with(settle), self.every_step
        try:
            while self.every_step and self._averaging.attend():
                self._now.step += 1
            if averaged:
                self._catch_up()
            # Where local steps have begun meanwhile, the others go on to a sync, and buffers are seen to there.
            if self.every_step:
                self._care.see_to()
            else:
                self._finish_rounds()
                self._sync.settle(settle)
        finally:
            self._ends = 0.0

    def _catch_up(self) -> None:
        """Agree on the model that averaged gradients have led to."""
        taken = self._averaging.catch_up(self._now.averaged_steps, rank=self._rank)
        if min(taken) < max(taken):
            # Some have the momentum of an older model, and further steps must be the same.
            optimizer_state.reset(self._optimizer, self._arena)
        self._now.averaged_steps = max(taken)
        self._sync.take_anchors()

    def _finish_rounds(self) -> None:
        now, all_end = self._now, False
        while not all_end:
            if now.in_round == 0:
                self._gradients.pass_by()
            if not self._sync.flying:
                all_end = self._start(now.in_round // self._stride)
            now.in_round = (now.in_round // self._stride + 1) * self._stride
            self._land(last=all_end)
            if all_end or now.in_round >= self._stride * len(self._sync.fragments):
                self._end_round()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the model that all ranks agree on, or within a round the mean of theirs. Every rank must enter."""
        with agreed_model(
            self._arena, self._sync, self.meeting, ranks=self._ranks, in_round=self._now.in_round,
            every_step=self.every_step,
        ) as sent:  # fmt: skip
            self._now.look(sent)
            yield

    def stats(self, reduced: Stats) -> Stats:
        """Return the reducer's numbers with those of the rounds in their places."""
        every, dense_bytes = 1 if self.every_step else self.every, self._now.step * self._arena.bytes
        return with_rounds(reduced, self._now, self.meeting, every=every, dense_bytes=dense_bytes)

    def state_dict(self) -> dict[str, Any]:
        """Return where this rank stands, in the middle of a round too; its model is to be saved beside it."""
        sync = self._sync.state_dict() | {"sends": self.senders is None or self._rank in self.senders}
        state = {"progress": asdict(self._now), "pace": self._pace.state_dict(), "sync": sync}
        return state | {"gradients": self._gradients.state_dict(), "meeting": asdict(self.meeting.traffic)}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if a saved state is not one of such rounds."""
        missing = sorted({"progress", "pace", "gradients", "sync", "meeting"} - set(state))
        if missing or set(state["progress"]) != set(asdict(Progress())):
            raise ValueError(f"the saved rounds lack {missing}, or are of another laconic. Load what it saved.")
        self._gradients.check(state["gradients"])
        self._sync.check(state["sync"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, checked before; the model's own parameters are loaded by the caller."""
        self._now = Progress(**state["progress"])
        self._pace.load_state_dict(state["pace"])
        self._gradients.load_state_dict(state["gradients"])
        self._sync.load_state_dict(state["sync"])
        self.meeting.traffic = Traffic(**state["meeting"])

    @property
    def _stride(self) -> int:
        """The steps from one fragment's sync to the next one's."""
        return max(1, self.every // len(self._sync.fragments))

    def _prepare(self, *, missed: bool) -> bool:
        self._measured, now = False, self._now
        if now.step == 0:
            # Weights may have been loaded since attach.
            self._sync.take_anchors()
        if self.every_step:
            self.before_look()
            finite = self._averaging.finish_() and not missed
            now.skipped += not finite
            return finite
        senders = self.senders
        if senders is not None and self._rank not in senders and not self._gradients.begins:
            if now.in_round == 0:
                self._gradients.pass_by()
            return False
        verdict = self._gradients.prepare_(first=now.in_round == 0, every=self.every, missed=missed)
        self._measured = verdict == "measured"
        now.skipped += verdict == "skip" or (missed and self._measured)
        return verdict == "step"

    def tick(self) -> None:
        """Start and end the exchanges that are due after this step."""
        turn, within = divmod(self._now.in_round + self.local.delay, self._stride)
        if within == 0 and turn <= len(self._sync.fragments):
            self._start(turn - 1)
        if self._sync.flying and self._now.in_round % self._stride == 0:
            self._land()
        if self.due:
            self._end_round()

    def _start(self, index: int) -> bool:
        """Start an exchange; return whether every rank is at its end."""
        self.holding.poison_together_(self._arena.tensors, self._arena.device)
        now, rates = self._now, rates_of(self._optimizer, self._names).values()
        if now.loss_count:
            self._reducer.loss = now.loss_sum / now.loss_count
        elif self.method.needs_loss and now.worked and not now.told:
            raise loss_untold(self.method.name)
        standing = now.standing(rate=sum(rates) / max(1, len(rates)), ends=self._ends)
        self._agreed = self._sync.start(index, standing, self.senders)
        now.loss_sum, now.loss_count, now.worked, now.told = 0.0, 0, False, False
        return self._agreed.all_end

    def _land(self, *, last: bool = False) -> None:
        lost, flew = self._sync.poisoned_here, bool(self._sync.flying)
        apart = self._sync.land(last=last)
        # Where a run ends with a full round, nothing flies any more: the numbers of that sync stand.
        self._now.drift = apart if flew else self._now.drift
        if isnan(self._now.drift) and lost:
            # What brought this rank there is still in its momentum.
            optimizer_state.reset(self._optimizer, self._arena)

    def _end_round(self) -> None:
        now = self._now
        self._gradients.end_round(self.senders, rank=self._rank)
        self._care.see_to()
        optimizer_state.see_to(self.local.optimizer_state, self._optimizer, self._arena, self.meeting)
        self._pace.end_round(self._agreed)
        now.end_round(self._agreed)
        self.after_round()
