"""A training on ranks that share this process, with one exchange a step: the library's own, on plain modules.

Messages and bytes are those of ranks with a process each. Losses and gradients of all ranks are computed at once
where there is an engine for the model: the same but for rounding, with other draws of dropout. No time is
simulated: what is counted are bytes.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from run_record import MOST_LINES, Lines, Ran

import laconic
from laconic.lab.captured import captured
from laconic.lab.folder import RunFolder
from laconic.lab.loop import Loop, Outcome, Ways
from laconic.lab.session import place_of, prepare
from laconic.lab.signals import StopWish
from laconic.lab.simulated import VirtualTalk, loaded_once
from laconic.lab.spec import Spec
from laconic.lab.together import Shared, TogetherWork, can_be_together
from laconic.lab.training import Course
from laconic.lab.work import Place, Work
from laconic.sim import Network, Pace, World
from laconic.sim.reading import read_once


def train_here(spec: Spec, method: laconic.Method, wish: StopWish) -> dict[str, Any]:
    """Train on as many ranks as the spec has workers, until the end or until it is wished; return the record."""
    torch.set_num_threads(1)
    if spec.device == "cuda":
        torch.backends.cudnn.deterministic = True
        # Products of matrices take the ten leading bits of a factor's fraction; sums and memory have them all.
        torch.set_float32_matmul_precision("high")
    # Steps that take no time are not timed either.
    world = World(Network(ranks=spec.workers), Pace(ranks=spec.workers, seconds=0.0))
    began, lines = time.perf_counter(), Lines(wish, aloud=True)
    fast = Fast(world, method)
    with tempfile.TemporaryDirectory() as scratch:
        loops: dict[int, Loop] = {}

        def work(rank: int) -> Outcome:
            place = place_of(spec, VirtualTalk(world, rank))
            ready = fast.of(prepare(spec, place), place)
            loops[rank] = loop = _loop(spec, method, world, place, ready, RunFolder(Path(scratch)))
            # A loss in a line is the mean over ranks, so that all see the same.
            return loop.run(lines if rank == 0 else Lines(wish), wish, checkpoint_every=None)

        with read_once(world.timing.charge), loaded_once(spec.task):
            outcomes = world.run(work)
    ran = Ran(loop=loops[0], lines=lines, outcome=outcomes[0], seconds=time.perf_counter() - began)
    # An engine reads the first rank's weights for all where methods keep them equal.
    return ran.record() | {"ranks_agree": len({outcome.weights_sha256 for outcome in outcomes}) == 1}


class Fast:
    """Makes of a rank's work one that launches as few kernels as can be."""

    def __init__(self, world: World, method: laconic.Method) -> None:
        local = method.local
        self._world, self._shared = world, Shared(same=local is None or local.start is None)
        # Statistics that are made anew from inputs need a forward pass of each rank's own module.
        self._engine = local is None or local.buffers != "recompute"

    def of(self, work: Work, place: Place) -> Work:
        """Return work that is computed for all ranks at once where it can be; on a GPU, other work as a graph."""
        if self._engine and can_be_together(work.model):
            return TogetherWork(work, self._world, place.rank, self._shared)
        return captured(work, place.device)


def _loop(spec: Spec, method: laconic.Method, world: World, place: Place, work: Work, folder: RunFolder) -> Loop:
    rank = place.rank
    course = Course.of(spec.settled, work.steps_per_epoch)
    # To write a line is to look at all of memory, and more of them than are kept would be for nothing.
    course = replace(course, log_every=max(course.log_every, math.ceil(course.steps / MOST_LINES)))
    # Ranks take turns, and a thread that makes batches would hold the interpreter up.
    ways = Ways(
        attach=partial(world.attach, rank), clock=world.clock(rank), saves=False, buckets=False, ahead=False
    )
    return Loop(work, course, method, place, VirtualTalk(world, rank), folder, ways=ways)
