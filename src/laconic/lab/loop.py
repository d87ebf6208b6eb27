"""The training loop: an ordinary one, with one line of laconic's."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.integrations.checks import settling
from laconic.lab import checkpoint
from laconic.lab.ahead import Ahead
from laconic.lab.folder import RunFolder
from laconic.lab.meter import Clock, Meter, Totals, WallClock
from laconic.lab.seeds import seed_draws, seed_for
from laconic.lab.signals import StopWish
from laconic.lab.talk import AgreedError, Talking
from laconic.lab.training import Course
from laconic.lab.tuning import told
from laconic.lab.waits import told as waits_told
from laconic.lab.work import Place, Tally, Work
from laconic.lab.wrapping import in_buckets, settle_buckets

# Lines with the density of every layer, and with what each amount would be worth.
_LAYER_LINES = 60


class Watcher(Protocol):
    """Who follows a run while it goes."""

    def line(self, line: dict[str, Any]) -> None:
        """A line of steps.jsonl was written."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to: its scores, the truth about its bytes, whether it was stopped before its end."""

    totals: Totals
    stats: laconic.Stats
    last: dict[str, Any]
    scores: dict[str, float]
    steps: int
    stopped: bool
    clipped_share: float
    weights_sha256: str
    waits: laconic.Waits | None


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What a rank of its own process does in one way, and one that shares a process in another.

    With ``buckets`` the model is DDP's; without it is a plain module, with one exchange a step. ``ahead``: on a GPU
    the next batch is made by a thread of its own.
    """

    attach: Callable[[torch.nn.Module, torch.optim.Optimizer, laconic.Method], laconic.Link] = laconic.attach
    clock: Clock = field(default_factory=WallClock)
    saves: bool = True
    buckets: bool = True
    ahead: bool = True


class Loop:
    """One training on one rank."""

    def __init__(
        self,
        work: Work,
        course: Course,
        method: laconic.Method,
        place: Place,
        talk: Talking,
        folder: RunFolder,
        *,
        resumes: bool = False,
        ways: Ways | None = None,
    ) -> None:
        self.work, self.course, self.method, self.place = work, course, method, place
        self.talk, self.folder, self.ways = talk, folder, ways or Ways()
        self._talk_before = talk.wire_bytes
        self.module = in_buckets(work.model, place.device) if self.ways.buckets else work.model
        if resumes and isinstance(self.module, DistributedDataParallel):
            settle_buckets(self.module, work)
        self.optimizer = course.make_optimizer(work.model)
        self.link = self.ways.attach(self.module, self.optimizer, method)
        # Local methods clip by themselves, or are there to show what happens without.
        self._clips = bool(course.clip) and method.local is None and not method.clips_gradients
        self._clipped: torch.Tensor | None = None
        self._parameters = list(work.model.parameters())
        if self._clips and not self.ways.buckets:
            # A plain module's gradients are the mean once the link's hook has run, which is before this one; the
            # weight decay of a method that owns momentum is in them by then, and clipped with them.
            self.optimizer.register_step_pre_hook(lambda *_: self._clip())
        self._settle = None if course.settle == "none" else course.settle
        # Refused before the training, not at its end.
        settling(method, self._settle)
        self.step, self.totals = 0, Totals()
        self.meter = Meter(place.device, self.totals, self.ways.clock)
        self._look_every = 1
        self.waits: laconic.Waits | None = None
        # Why a line of steps.jsonl could not be written.
        self.unwritten: str | None = None
        self.last: dict[str, Any] = {}
        self.scores: dict[str, float] = {}

    def run(self, watcher: Watcher, wish: StopWish, *, checkpoint_every: int | None) -> Outcome:
        """Train to the last step, or until all ranks agree to stop; every rank returns the same scores."""
        threaded = self.ways.ahead and self.place.device.type == "cuda"
        with Ahead(self.work.batch, threaded=threaded) as ahead:
            stopped = self._train(ahead, watcher, wish, save_every=checkpoint_every or self.course.eval_every)
        return self._outcome(stopped=stopped)

    def _train(self, ahead: Ahead, watcher: Watcher, wish: StopWish, *, save_every: int) -> bool:
        """Train, and return whether it was stopped before the last step."""
        meter, course, stopped, looked = self.meter, self.course, False, self.step
        since = time.perf_counter()
        meter.start()
        while self.step < course.steps and not stopped:
            self._train_step(meter, ahead)
            if self.step == course.steps:
                # Rounds of local steps end with the run: all ranks have one model then.
                self.link.finish(settle=self._settle)
            at_end, log = self.step == course.steps, self.step % course.log_every == 0
            evaluate = at_end or self.step % course.eval_every == 0
            look = evaluate or log or self.step - looked >= self._look_every
            save = self.ways.saves and (at_end or self.step % save_every == 0)
            if not look and not save:
                continue
            meter.stop()
            if look:
                each = (time.perf_counter() - since) / (self.step - looked)
                looked, stopped = self.step, self._agree_to_stop(wish, each) and not at_end
            if evaluate or log:
                self._write_line(meter, watcher, evaluate=evaluate)
                meter.restart()
            if save or (stopped and self.ways.saves):
                self._count_talk()
                checkpoint.save(self)
            if look:
                since = time.perf_counter()
            meter.start()
        return stopped

    def _agree_to_stop(self, wish: StopWish, step_seconds: float) -> bool:
        wishes, seconds, lost = self.talk.sums([float(wish.wanted), step_seconds, self.unwritten is not None])
        if lost:
            raise AgreedError(self.talk.first_error(self.unwritten))
        # Often enough to stop within about a second of those who wait, never more rarely than lines are written.
        self._look_every = max(1, min(self.course.log_every, int(self.talk.ranks / max(seconds, 1e-9))))
        return wishes > 0

    def _train_step(self, meter: Meter, ahead: Ahead) -> None:
        course, work, clock = self.course, self.work, self.ways.clock
        clock.step(self.step)
        began = clock.now()
        batch = ahead.take(self.step)
        waited = clock.now() - began
        seed_draws(self.place.device, seed_for(course.seed, "step", self.place.rank, self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = course.rate_at(self.step)
        loss = work.loss(self.module, batch)
        if self.method.needs_loss:
            self.link.observe(loss)
        loss.backward()
        if self._clips and self.ways.buckets:
            self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        meter.stepped(loss, waited, self._clipped)
        self.step += 1

    def _clip(self) -> None:
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.course.clip)
        self._clipped = norm > self.course.clip

    def _write_line(self, meter: Meter, watcher: Watcher, *, evaluate: bool) -> None:
        stats, totals = self.link.stats, self.totals
        loss, steps = self.talk.sums([float(meter.loss), float(meter.steps)])
        if stats.syncs:
            totals.density_sum, totals.density_lines = totals.density_sum + stats.density, totals.density_lines + 1
        line: dict[str, Any] = {
            "step": self.step,
            "epoch": round(totals.epochs_at(self.step, self.work.steps_per_epoch), 4),
            "loss": loss / max(1.0, steps),
            "rate": self.course.rate_at(self.step - 1),
            "seconds": totals.seconds,
            "step_seconds": meter.step_seconds,
            "data_share": meter.data_share,
            "wire_bytes": stats.wire_bytes,
            "dense_bytes": stats.dense_bytes,
            "density": stats.density,
            "owed_norm": stats.owed_norm,
            "clipped_share": self._clipped_share(stats),
            "skipped_steps": stats.skipped_steps,
        }
        if self.method.local is not None:
            line |= {"syncs": stats.syncs, "every": stats.every, "drift": stats.drift}
        every = max(1, self.course.steps // (self.course.log_every * _LAYER_LINES))
        in_full = evaluate or self.step // self.course.log_every % every == 0
        if stats.tuning is not None:
            line |= told(stats.tuning, curve=in_full)
        if in_full:
            line["layers"] = {layer.name: layer.density for layer in stats.layers}
        if evaluate:
            line["waits"] = self._ask_waits()
            with self.link.averaged():
                line |= self._evaluate()
        self.last = line
        if self.place.rank == 0:
            try:
                self.folder.add(line)
            except OSError as error:
                # The others do not know yet: all stop when they next agree on whether to.
                self.unwritten = f"{self.folder.path / 'steps.jsonl'}: {error.strerror or error}"
        watcher.line(line)

    def _ask_waits(self) -> dict[str, Any]:
        """Hear how long ranks have waited since the last evaluation, and add it up over the run."""
        before = self.link.transport.wire_bytes
        waits = self.link.waits()
        self.totals.waits_bytes += self.link.transport.wire_bytes - before
        self.waits = waits if self.waits is None else self.waits + waits
        return waits_told(waits)

    def _clipped_share(self, stats: laconic.Stats) -> float:
        if self.method.local is not None:
            return stats.clipped_share
        if not self.method.clips_gradients:
            return self.totals.clipped_steps / max(1, self.step)
        return sum(layer.clipped_share for layer in stats.layers) / max(1, len(stats.layers))

    def _evaluate(self) -> dict[str, float]:
        """Score the model: on the first split while training, on all of them at the end."""
        metric, splits = self.work.metric, self.work.splits
        self.talk.mean_([b for b in self.work.model.buffers() if b.is_floating_point()])
        values: dict[str, float] = {}
        for split in splits if self.step == self.course.steps else splits[:1]:
            mine = self.work.evaluate(split)
            loss, examples, score, scored = self.talk.sums([mine.loss, mine.examples, mine.score, mine.scored])
            tally = Tally(loss=loss, examples=examples, score=score, scored=scored)
            self.scores[split] = metric.of(tally)
            values.setdefault("metric", self.scores[split])
            values.setdefault("eval_loss", loss / max(1.0, examples))
        best = self.totals.best
        if best is None or metric.better(values["metric"], best):
            self.totals.best = values["metric"]
        return values

    def _count_talk(self) -> None:
        self.totals.lab_bytes += self.talk.wire_bytes - self._talk_before
        self._talk_before = self.talk.wire_bytes

    def _outcome(self, *, stopped: bool) -> Outcome:
        stats = self.link.stats
        self._count_talk()
        self.link.detach()
        return Outcome(
            totals=self.totals,
            stats=stats,
            last=self.last,
            scores=self.scores,
            steps=self.step,
            stopped=stopped,
            clipped_share=self._clipped_share(stats),
            weights_sha256=digest(self.work.model),
            waits=self.waits,
        )


def digest(model: torch.nn.Module) -> str:
    """Return the SHA-256 of the parameters: equal for equal bits."""
    summed = hashlib.sha256()
    for parameter in model.parameters():
        summed.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return summed.hexdigest()
