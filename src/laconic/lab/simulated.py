"""Runs of the laboratory on ranks that share this process, over a network that is not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from math import inf
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from laconic.errors import LaconicError
from laconic.lab.loop import Ways
from laconic.lab.method_words import make
from laconic.lab.session import Ending, Seat, Trial, one_by_one, run_trial
from laconic.lab.show import Show
from laconic.lab.signals import StopWish, noted_wishes
from laconic.lab.talk import AgreedError, first_of, in_one, spread_
from laconic.lab.tasks import Task
from laconic.lab.work import Work
from laconic.sim import Network, Pace, World, group_of_one
from laconic.sim.batched import Made, Verdict, batched, handed_out, tried
from laconic.sim.reading import read_once
from laconic.transports.lockstep import ring_sum

T = TypeVar("T")
Batched = Literal["auto", "yes", "no"]
# With fewer ranks there is little to gain.
_BATCHED_FROM = 16


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a simulation takes place on: a network, and how fast ranks work."""

    network: Network
    pace: Pace
    batched: Batched = "auto"

    @property
    def batches(self) -> bool:
        """Whether all ranks are to compute in one call."""
        return self.batched == "yes" or (self.batched == "auto" and self.network.ranks >= _BATCHED_FROM)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; a rate without a limit is null."""
        network = asdict(self.network)
        for cable in (*network["cables"], network["inside"]):
            cable["bits_per_second"] = None if cable["bits_per_second"] == inf else cable["bits_per_second"]
        network["cables"] = list(network["cables"])
        network["changes"] = list(network["changes"])
        pace = asdict(self.pace)
        return {"network": network, "pace": pace | {"outages": list(pace["outages"])}}


def run_simulated(trials: Sequence[Trial], scene: Scene, environment: Mapping[str, Any], *, quiet: bool) -> Ending:
    """Make runs one after the other, each on the network's ranks; one that cannot be made is passed over."""
    with group_of_one(), noted_wishes() as wish, Show(hidden=quiet, boards=True) as show:
        return one_by_one(trials, lambda trial: _simulate(trial, scene, wish, show, environment))


def _simulate(
    trial: Trial, scene: Scene, wish: StopWish, show: Show, environment: Mapping[str, Any]
) -> dict[str, Any]:
    world, silent = World(scene.network, scene.pace), Show(hidden=True, boards=False)
    alike, said = make(trial.spec.method).local is None, list[str]()

    def wrapped(rank: int, work: Work) -> Work:
        return BatchedWork(work, world, rank, alike=alike, said=said) if scene.batches else work

    def work(rank: int) -> dict[str, Any]:
        seat = Seat(
            talk=VirtualTalk(world, rank),
            wish=wish,
            show=silent if rank else show,
            ways=Ways(attach=partial(world.attach, rank), clock=world.clock(rank), saves=False),
            work=partial(wrapped, rank),
            about={"simulated": scene.as_dict()},
            told=lambda: {"simulated": _told(world, said)},
            backend="lockstep",
        )
        return run_trial(replace(trial, resume=False), seat, environment)

    try:
        with read_once(world.timing.charge), loaded_once(trial.spec.task):
            return world.run(work)[0]
    except LaconicError as error:
        # All ranks have ended by it, and other methods may do better.
        raise AgreedError(str(error)) from error


@contextmanager
def loaded_once(task: Task) -> Iterator[None]:
    """Have all ranks share the data, which a rank with a process of its own loads for itself."""
    names = vars(sys.modules[type(task).__module__])
    loaders: dict[str, Any] = {name: names[name] for name in ("load", "load_folder_text", "coded") if name in names}
    names |= {name: cache(load) for name, load in loaders.items()}
    try:
        yield
    finally:
        names |= loaders


def _told(world: World, said: Sequence[str]) -> dict[str, Any]:
    """Return what the first rank's seconds were, and whether ranks computed in one call."""
    clock = world.clock(0)
    return {
        "seconds": clock.now(),
        "step_seconds": clock.now() / max(1, clock.steps),
        "waited_seconds": clock.waited,
        "wire_seconds": world.timing.wire_seconds,
        "batched": list(said) == [""],
        "unbatched_why": "".join(said),
    }


class BatchedWork:
    """A task on one rank, whose losses and gradients are computed for all ranks at once from the second step on.

    The first is an ordinary one, by which DDP orders its buckets, and in which it is tried whether that can be
    done; ``said`` gets why not. If it fails later, ranks compute one after the other from there on.
    """

    def __init__(self, work: Work, world: World, rank: int, *, alike: bool, said: list[str]) -> None:
        self._work, self._world, self._rank, self._alike, self._said = work, world, rank, alike, said
        self.model, self.metric, self.splits = work.model, work.metric, work.splits
        self.steps_per_epoch = work.steps_per_epoch
        self.batch, self.evaluate = work.batch, work.evaluate
        self.state_dict, self.load_state_dict = work.state_dict, work.load_state_dict
        self._tested = False
        self._order: list[str] = []
        self._hooks: list[RemovableHandle] = []

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch."""
        made: Made | None = None
        if not self._tested:
            self._test(batch)
        elif self._said == [""]:
            made = self._batched(batch)
        return self._work.loss(model, batch) if made is None else self._handed(model, made)

    def _test(self, batch: Any) -> None:
        verdict = self._world.together(self._rank, "trying to batch", (self._work, batch), self._tried)
        self._tested, self._alike = True, verdict.alike
        if not verdict.reason:
            self._world.clock(self._rank).suppose(verdict.seconds)
            named = self.model.named_parameters()
            self._hooks = [p.register_hook(partial(self._arrived, name)) for name, p in named]

    def _tried(self, given: list[tuple[Work, Any]]) -> Verdict:
        works, batches = zip(*given, strict=True)
        verdict = tried(works, batches, alike=self._alike)
        self._said[:] = [verdict.reason]
        return verdict

    def _arrived(self, name: str, grad: Tensor) -> None:  # noqa: ARG002
        self._order.append(name)

    def _batched(self, batch: Any) -> Made | None:
        """Return this rank's loss and gradients; None on every rank if they cannot be had."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        made = self._world.together(self._rank, "gradients", (self._work, batch), self._all_made)
        if made is None:
            self._world.clock(self._rank).suppose(None)
            return None
        return made[self._rank]

    def _all_made(self, given: list[tuple[Work, Any]]) -> list[Made] | None:
        works, batches = zip(*given, strict=True)
        state = works[0].state_dict()
        try:
            return batched(works, batches, alike=self._alike)
        # Whatever it is that cannot be batched: the message is told.
        except Exception as error:
            works[0].load_state_dict(state)
            step = self._world.clock(self._rank).steps
            self._said[:] = [f"step {step} could not be batched: {error}".splitlines()[0]]
            return None

    def _handed(self, model: nn.Module, made: Made) -> Tensor:
        self._work.load_state_dict(made.state)
        # DDP must see a forward pass of its module, whatever that computes.
        self.model.forward = partial(handed_out, made, dict(self.model.named_parameters()), self._order)
        try:
            loss: Tensor = model()
        finally:
            del self.model.forward
        return loss


class VirtualTalk:
    """What ``Talk`` is to ranks with a process each."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self.rank, self.ranks, self.wire_bytes = world, rank, world.ranks, 0

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, the same on each."""
        told = torch.tensor(numbers, dtype=torch.float64)
        self.wire_bytes += told.nbytes
        return [float(number) for number in self._world.together(self.rank, "sums", told, ring_sum)]

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Leave in each tensor its mean over all ranks."""
        if not tensors:
            return
        told = in_one(tensors)
        self.wire_bytes += told.nbytes
        spread_(tensors, self._world.together(self.rank, "mean_", told, ring_sum) / self.ranks)

    def wait(self) -> None:
        """Wait until every rank is here."""
        self._world.together(self.rank, "wait", None, len)

    def first_error(self, error: str | None) -> str | None:
        """Tell this rank's error, if it has one, and return the first that any rank has, with its rank."""
        return self._world.together(self.rank, "first_error", error, first_of)

    def of_first(self, value: T) -> T:
        """Return the first rank's value on every rank."""
        return self._world.together(self.rank, "of_first", value, lambda values: values[0])
