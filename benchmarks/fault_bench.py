"""Where scenarios take place: small trainings, what they come to undisturbed, and what must hold of others."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from fault_points import FIRST_RANK_POINTS, SAVE_POINTS, STEP_POINTS, Fault
from fault_ranks import CLEAR, Ended, Job, Running, done, kept

from laconic.lab.folder import RunFolder
from laconic.lab.network.hosts import Hosts
from laconic.lab.session import Trial
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

# A method's word, ranks, a seed.
Key = tuple[str, int, int]
STEPS, SAVE_EVERY = 48, 8
SEEDS, WORLDS = (0, 1, 2, 3), (2, 3, 4)
WORDS = (
    "dense",
    "topk:density=0.1:memory=update",
    "topk:density=0.1:exchange=sharded",
    "topk:density=0.1:scope=model:values=sign:exchange=led",
    "dgc:density=0.1",
    "sdagc:c=3:whole_below=0",
    "powersgd:rank=2",
    "cat:cost=bits",
    "celgc:every=4",
    "episode:every=4",
    "diloco:every=6:fragments=2",
    "spartan:every=4:density=0.1",
)
# These own the momentum of the optimizer, and are tried with some.
_MOVES_MOMENTUM = ("dgc", "sdagc")
# What a run may take, whatever happens to it, beyond the time that an exchange waits.
LIMIT_SECONDS = 40.0


class FaultError(Exception):
    """A scenario that did not end well: the first word of the message says how."""


def spec_of(word: str, ranks: int, seed: int) -> Spec:
    """Return a small training: text, character by character."""
    training = Training(
        steps=STEPS, batch=16, rate=2.0, momentum=0.0, clip=1.0, log_every=4, eval_every=STEPS // 2, seed=seed
    )
    if word.split(":")[0] in _MOVES_MOMENTUM:
        training = replace(training, rate=0.4, momentum=0.9)
    return Spec(
        task=Lm(hidden=8, length=24), training=training, method=word, workers=ranks, device="cpu",
        data_home="nowhere", checkpoint_every=SAVE_EVERY,
    )  # fmt: skip


class Bench:
    """Where scenarios take place: a folder, undisturbed trainings to compare with, perhaps hosts."""

    def __init__(self, scratch: Path, hosts: Hosts | None) -> None:
        self.scratch, self.hosts, self.at_the_hosts = scratch, hosts, Lock()
        self._undisturbed: dict[Key, list[dict[str, Any]]] = {}
        self._stopped: dict[Key, Path] = {}
        self._numbers = count()
        # What several scenarios have need of at the same time is made once.
        self._making: defaultdict[Key, Lock] = defaultdict(Lock)

    def folder(self) -> Path:
        """Return a place for a run that was not there before."""
        return self.scratch / f"run-{next(self._numbers)}"

    def undisturbed(self, word: str, ranks: int, seed: int) -> list[dict[str, Any]]:
        """Return what a training that nothing happens to comes to on each rank."""
        key = (word, ranks, seed)
        with self._making[key]:
            if key not in self._undisturbed:
                self._undisturbed[key] = self._made(key)
        return self._undisturbed[key]

    def _made(self, key: Key) -> list[dict[str, Any]]:
        folder = self.folder()
        ends = done(Job(trial=Trial(spec=spec_of(*key), folder=folder)), LIMIT_SECONDS)
        shutil.rmtree(folder)
        results = kept(ends)
        if len(results) < len(ends) or len({result["weights_sha256"] for result in results}) > 1:
            raise FaultError(f"UNDISTURBED: {key} did not end well: {[ended.in_words for ended in ends]}")
        return results

    def band(self, word: str) -> tuple[float, float]:
        """Return the least and the largest loss of undisturbed trainings: four seeds on two to four ranks."""
        losses = [self.undisturbed(word, ranks, seed)[0]["final_loss"] for ranks in WORLDS for seed in SEEDS]
        return min(losses), max(losses)

    def stopped(self, word: str, ranks: int, seed: int) -> Path:
        """Return a copy of a run that was killed a while after its last checkpoint but one."""
        key = (word, ranks, seed)
        with self._making[key]:
            if key not in self._stopped:
                self._stopped[key] = self._killed(key)
        copy = self.folder()
        shutil.copytree(self._stopped[key], copy)
        return copy

    def _killed(self, key: Key) -> Path:
        folder, fault = self.folder(), Fault(what="kill", rank=0, step=STEPS - 2)
        ends = done(Job(trial=Trial(spec=spec_of(*key), folder=folder), faults=(fault,)), LIMIT_SECONDS)
        if ends[0].exitcode != -signal.SIGKILL:
            raise FaultError(f"UNDISTURBED: {key} was not killed: {[ended.in_words for ended in ends]}")
        return folder


def saved_before(step: int) -> int:
    """Return the last step before this one of which there must be a checkpoint."""
    return max(0, step - 1) // SAVE_EVERY * SAVE_EVERY


class Scenario:
    """One scenario: what is drawn by its seed, what happens, and how it ended."""

    def __init__(self, bench: Bench, seed: str) -> None:
        self.bench, self.chance = bench, random.Random(seed)
        self.word = self.chance.choice(WORDS)
        self.ranks = self.chance.choice(WORLDS)
        self.seed = self.chance.choice(SEEDS)
        self.victim = self.chance.randrange(self.ranks)
        self.folder = bench.folder()
        self.what = ""
        # From the fault to the end of the last rank.
        self.error_seconds: float | None = None
        # Where its loss lies between the least, 0, and the largest, 1, of undisturbed trainings.
        self.in_the_band: float | None = None

    @cached_property
    def straight(self) -> list[dict[str, Any]]:
        """What an undisturbed run comes to on each rank."""
        return self.bench.undisturbed(self.word, self.ranks, self.seed)

    def job(self, *faults: Fault, resume: bool = False, ranks: int | None = None, **more: Any) -> Job:
        """Return the run of this scenario, with faults."""
        spec = spec_of(self.word, ranks or self.ranks, self.seed)
        return Job(trial=Trial(spec=spec, folder=self.folder, resume=resume), faults=faults, **more)

    def draw_point(self, *, step: int = 1) -> Fault:
        """Draw a moment: a point of a step, of an exchange or of a checkpoint."""
        point = self.chance.choice((*STEP_POINTS, *SAVE_POINTS))
        rank = 0 if point in FIRST_RANK_POINTS else self.victim
        at = self.chance.randint(step, STEPS - SAVE_EVERY)
        return Fault(what="kill", rank=rank, step=at, point=point, seed=self.chance.randrange(2**30))

    def all_said(self, ends: Sequence[Ended], *, killed: int | None = None) -> None:
        """Raise unless every rank ended by itself with a clear error, but for one that was killed."""
        for rank, ended in enumerate(ends):
            if ended.hung:
                raise FaultError(f"HUNG: rank {rank} of {len(ends)}; the others: {[e.in_words[:80] for e in ends]}")
            if rank == killed and ended.exitcode == -signal.SIGKILL:
                continue
            if not ended.result and ended.error not in CLEAR:
                raise FaultError(f"UNCLEAR: rank {rank} of {len(ends)}: {ended.in_words[:300]}")

    def resumed(self, *, least: int) -> None:
        """Go on from the last checkpoint, and raise unless the run comes to the same bits and bytes.

        ``least``: that checkpoint must be of this step or a later one, and all ranks must have gone on from it.
        """
        step = RunFolder(self.folder).latest()
        if step < least:
            raise FaultError(f"LOST: the last checkpoint is of step {step}, and must be of {least} or later")
        with Running(self.job(resume=True)) as running:
            ends = running.wait(LIMIT_SECONDS)
            went_on = len(running.owed())
        if went_on != (self.ranks if step else 0):
            raise FaultError(f"LOST: {went_on} of {self.ranks} ranks went on from the checkpoint of step {step}")
        self.same(ends)

    def same(self, ends: Sequence[Ended]) -> None:
        """Raise unless all ranks finished with the bits, and sent the bytes, of the undisturbed run."""
        self.finished(ends)
        for rank, (ended, straight) in enumerate(zip(ends, self.straight, strict=True)):
            for what in ("weights_sha256", "wire_bytes_sent_per_rank", "final_loss"):
                if ended.result[what] != straight[what]:
                    raise FaultError(
                        f"LOST: {what} of rank {rank} is {ended.result[what]}, undisturbed {straight[what]}"
                    )

    def finished(self, ends: Sequence[Ended]) -> None:
        """Raise unless all ranks finished, with equal models."""
        self.all_said(ends)
        if len(kept(ends)) < len(ends):
            raise FaultError(f"LOST: the run did not finish: {[e.in_words[:300] for e in ends]}")
        if len({ended.result["weights_sha256"] for ended in ends}) > 1:
            raise FaultError("LOST: models differ between ranks")

    def in_band(self, loss: float) -> None:
        """Raise unless a loss lies in the band of undisturbed trainings, or a quarter of its width above it."""
        least, most = self.bench.band(self.word)
        self.in_the_band = (loss - least) / (most - least)
        if not self.in_the_band <= 1.25:
            raise FaultError(
                f"LOST: the loss is {loss:.4f}; undisturbed trainings end between {least:.4f} and {most:.4f}"
            )

    def struck(self, job: Job, then: Callable[[Running], None] = lambda _: None) -> list[Ended]:
        """Make a run with a fault, do something once it strikes, and return how ranks ended."""
        fault = job.faults[0]
        with Running(job) as running:
            struck = running.await_strike(fault.rank, LIMIT_SECONDS)
            began = time.monotonic()
            if struck:
                then(running)
            ends = running.wait(LIMIT_SECONDS + job.timeout_seconds)
            self.error_seconds = time.monotonic() - began
        if not struck:
            raise FaultError(f"NOT STRUCK: {fault}; {[e.in_words[:200] for e in ends]}")
        return ends
