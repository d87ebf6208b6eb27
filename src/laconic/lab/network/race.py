"""A competitor's training up to a stated figure, on one rank. The clock stands still while the model is scored."""

from __future__ import annotations

import inspect
import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from laconic.lab.meter import Meter, Totals
from laconic.lab.network.race_work import Racing, bounded
from laconic.lab.peers import peer_of
from laconic.lab.peers.peer import Prepared
from laconic.lab.seeds import seed_for
from laconic.lab.talk import Talk
from laconic.lab.training import Course, Training
from laconic.lab.work import Metric, Place, Tally, Work
from laconic.methods import METHODS

Ended = Literal["target", "steps", "seconds", "diverged"]
# Linux delays acknowledgements by up to 0.2 s; a settled counter has all of a stretch, and nothing of the next.
_SETTLE_SECONDS = 0.25
_INTERFACES = Path("/sys/class/net")
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run: who trains what, at which rate, and what ends it. ``competitor`` is a word of ``peer_of``."""

    competitor: str
    rate: float
    task: Racing
    training: Training
    data_home: Path
    steps: int
    eval_every: int
    valid_examples: int | None = None
    target: float | None = None
    most_seconds: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One evaluation: seconds of training and steps so far, and the validation figure."""

    seconds: float
    step: int
    figure: float


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a run on one rank; the curve is the same on all of them.

    ``stretch_seconds`` is the mean time of a step in each stretch between two evaluations, ``interface_bytes``
    what the rank's own interface sent in all of them, None on loopback, where ranks share one.
    """

    curve: tuple[Seen, ...]
    ended: Ended
    metric: Metric
    stretch_seconds: tuple[float, ...]
    interface_bytes: int | None
    link_bytes: int | None

    @property
    def step_milliseconds(self) -> float:
        """The median over stretches of the mean time of a step: rounds of local steps have their sync in it."""
        return 1e3 * median(self.stretch_seconds)


class Odometer:
    """Counts what this rank's interface sends while it is let run; nothing on loopback."""

    def __init__(self, interface: str) -> None:
        counter = _INTERFACES / interface / "statistics/tx_bytes"
        self._counter = counter if interface != "lo" and counter.exists() else None
        self._total, self._since = 0, 0

    @property
    def sent_bytes(self) -> int | None:
        """What was sent so far while it ran."""
        return None if self._counter is None else self._total

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is sent inside a ``with`` block."""
        self._total += self._settled() - self._since
        yield
        self._since = self._settled()

    def start(self) -> None:
        """Count from here on."""
        self._since = self._settled()

    def _settled(self) -> int:
        if self._counter is None:
            return 0
        time.sleep(_SETTLE_SECONDS)
        return int(self._counter.read_text())


def race(entry: Entry) -> Ran:
    """Train until the target, the last step or the last second. Runs on every rank, with others or alone."""
    talk = Talk()
    if talk.rank:
        # What warns, warns on every rank; the first says it.
        warnings.simplefilter("ignore")
    return _Heat(entry, talk).run()


class _Heat:
    """One run on one rank."""

    def __init__(self, entry: Entry, talk: Talk) -> None:
        self.entry, self.talk = entry, talk
        seed, batch = entry.training.seed, entry.training.batch or 1
        place = Place(
            rank=talk.rank, ranks=talk.ranks, device=CPU, seed=seed, batch=batch, data_home=entry.data_home
        )
        torch.manual_seed(seed_for(seed, "weights"))
        self.work: Work = bounded(entry.task, place, entry.valid_examples)
        # Every competitor has a constant rate: what is compared does not depend on where a schedule would end.
        training = replace(entry.training, rate=entry.rate, schedule="constant", warmup=0, epochs=None)
        self.course = Course.of(replace(training, steps=entry.steps), self.work.steps_per_epoch)
        self.peer = peer_of(clipped_word(entry.competitor, self.course.clip))
        self.prepared = self.peer.prepare(self.work.model, self.course.make_optimizer(self.work.model))
        # Within a period ranks may have unlike models, and no figure is that of all.
        self.every, self.steps = (n + -n % self.peer.period for n in (entry.eval_every, entry.steps))
        self.clips = self.course.clip > 0 and not _clips_itself(self.prepared)
        self.meter = Meter(CPU, Totals())
        self.odometer = Odometer(os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
        self.curve: list[Seen] = []
        self.stretches: list[float] = []

    def run(self) -> Ran:
        meter = self.meter
        ended: Ended | None = None
        step = 0
        self.odometer.start()
        self.talk.wait()
        meter.start()
        while ended is None:
            self._step(step)
            step += 1
            if step % self.every and step < self.steps:
                continue
            meter.stop()
            self.stretches.append(meter.step_seconds)
            with self.odometer.paused():
                self._look(step)
                ended = self._ended()
                # Ranks go on together: none waits on the clock for one that still evaluates.
                self.talk.wait()
            meter.restart()
            meter.start()
        return self._ran(ended)

    def _step(self, step: int) -> None:
        prepared, work = self.prepared, self.work
        batch = work.batch(step)
        torch.manual_seed(seed_for(self.course.seed, "step", self.talk.rank, step))
        loss = work.loss(prepared.model, batch)
        if prepared.link is not None and prepared.link.method.needs_loss:
            prepared.link.observe(loss)
        loss.backward()
        if self.clips:
            # Of the mean where gradients were exchanged, of a rank's own where models will be.
            torch.nn.utils.clip_grad_norm_(work.model.parameters(), self.course.clip)
        prepared.optimizer.step()
        prepared.optimizer.zero_grad()
        self.meter.stepped(loss, 0.0, None)

    def _look(self, step: int) -> None:
        """Evaluate the model that all ranks agree on; each scores its share."""
        seconds = self.talk.sums([self.meter.totals.seconds])[0] / self.talk.ranks
        link = self.prepared.link
        if link is None:
            figure = self._figure()
        else:
            with link.averaged():
                figure = self._figure()
        self.curve.append(Seen(seconds=seconds, step=step, figure=figure))

    def _figure(self) -> float:
        self.talk.mean_([b for b in self.work.model.buffers() if b.is_floating_point()])
        mine = self.work.evaluate(self.work.splits[0])
        loss, examples, score, scored = self.talk.sums([mine.loss, mine.examples, mine.score, mine.scored])
        return self.work.metric.of(Tally(loss=loss, examples=examples, score=score, scored=scored))

    def _ended(self) -> Ended | None:
        """Say what ends the run, if something does: the same on every rank, since all saw the same numbers."""
        last, entry = self.curve[-1], self.entry
        if not math.isfinite(last.figure):
            return "diverged"
        if entry.target is not None and reaches(self.work.metric, last.figure, entry.target):
            return "target"
        if last.seconds >= entry.most_seconds:
            return "seconds"
        return "steps" if last.step >= self.steps else None

    def _ran(self, ended: Ended) -> Ran:
        link = self.prepared.link
        link_bytes = None if link is None else link.stats.link_bytes
        self.prepared.close()
        return Ran(
            curve=tuple(self.curve),
            ended=ended,
            metric=self.work.metric,
            stretch_seconds=tuple(self.stretches),
            interface_bytes=self.odometer.sent_bytes,
            link_bytes=link_bytes,
        )


def clipped_word(word: str, clip: float) -> str:
    """Return a competitor's word with the clip of the training where it is a method of ours that takes one.

    >>> [clipped_word(word, 0.25) for word in ("spartan", "sdagc:clip=1", "dense", "post-local:4")]
    ['spartan:clip=0.25', 'sdagc:clip=1', 'dense', 'post-local:4']
    """
    name, *settings = word.split(":")
    takes = name in METHODS and "clip" in inspect.signature(METHODS[name]).parameters
    given = any(setting.startswith("clip=") for setting in settings)
    return f"{word}:clip={clip!r}" if clip and takes and not given else word


def reaches(metric: Metric, figure: float, target: float) -> bool:
    """Whether a figure is as good as the target."""
    return not metric.better(target, figure)


def _clips_itself(prepared: Prepared) -> bool:
    """Whether the method clips by itself, or has local steps and is there to show what happens without."""
    link = prepared.link
    return link is not None and (link.method.local is not None or link.method.clips_gradients)
