"""N ranks that train in one process, each in a thread of its own, over a network that is not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.utils.hooks import RemovableHandle

from laconic.errors import LaconicError
from laconic.integrations.attach import attach_over
from laconic.integrations.link import Link
from laconic.integrations.nodes import on_nodes
from laconic.method import Method
from laconic.sim.baton import Baton
from laconic.sim.clock import RankClock
from laconic.sim.network import Network
from laconic.sim.pace import Pace
from laconic.sim.timing import Timing
from laconic.transports import Lockstep
from laconic.transports.lockstep import Port

T = TypeVar("T")
R = TypeVar("R")
# What ranks that were told to end may take until they hear of it.
_END_SECONDS = 10.0
_GLANCE_SECONDS = 0.2


class World:
    """Ranks with a clock each: ``run`` calls a function for every rank, once, one at a time between exchanges.

    What they do is the real thing: ``attach`` puts a method on a rank's own model, and only the transport is not
    the one of a process group. ``together`` is how ranks tell each other what is no exchange of the method's.
    """

    def __init__(self, network: Network, pace: Pace) -> None:
        if pace.ranks != network.ranks:
            raise ValueError(f"the network has {network.ranks} ranks, the pace is that of {pace.ranks}.")
        self.ranks, self.timing, self._baton = network.ranks, Timing(network, pace), Baton(network.ranks)
        self.lockstep = Lockstep(
            network.ranks, threaded=True, node_size=network.node_size, turn=self._baton, watch=self.timing
        )
        self._given: list[Any] = [None] * network.ranks
        self._made: Any = None
        self._unread, self._ran = 0, False
        self._hooks: list[list[RemovableHandle]] = [[] for _ in range(network.ranks)]

    def clock(self, rank: int) -> RankClock:
        """Return a rank's clock."""
        return self.timing.clocks[rank]

    def attach(self, rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, method: Method) -> Link:
        """Do for a rank what ``laconic.attach`` does, on the network's nodes; its clock sees gradients come."""
        network, port, clock = self.timing.network, self.lockstep.ports[rank], self.clock(rank)
        method = on_nodes(method, range(network.ranks), {"LOCAL_WORLD_SIZE": str(network.node_size)})
        link = attach_over(port, model, optimizer, method, clock=clock.now)
        parameters = [p for p in model.parameters() if p.requires_grad]
        clock.entries = sum(p.numel() for p in parameters)
        for hook in self._hooks[rank]:
            hook.remove()
        # Where steps take no time it is all the same when a gradient comes, and a hook a gradient is not cheap.
        heard = parameters if self.timing.pace.seconds != 0.0 else []
        # Before DDP, which hears of a gradient when it is in its place.
        self._hooks[rank] = [p.register_hook(partial(_made, clock, p.numel())) for p in heard]
        return link

    def together(self, rank: int, what: str, given: T, make: Callable[[list[T]], R]) -> R:
        """Return what ``make`` makes of what every rank has given, made once."""

        def act() -> None:
            # Others read what was made before they come here again.
            self._made, self._unread = make(list(self._given)), self.ranks
            self._given = [None] * self.ranks

        self._given[rank] = given
        self.lockstep.meet(self.lockstep.ports[rank], what, act)
        made: R = self._made
        self._unread -= 1
        if not self._unread:
            # It may be the gradients of all ranks.
            self._made = None
        return made

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Call ``work(rank)`` for every rank; return what they return, or raise what the first to fail raised."""
        if self._ran:
            raise LaconicError("this world has run, and its ranks have left it. Make a new World for another run.")
        self._ran = True
        results: dict[int, T] = {}
        errors: list[BaseException] = []
        # Not by join: one that Ctrl-C breaks off may take its thread for ended.
        ended = [threading.Event() for _ in self.lockstep.ports]

        def serve(port: Port) -> None:
            self._baton.take(port.rank)
            try:
                results[port.rank] = work(port.rank)
            except BaseException as error:
                errors.append(error)
                self.lockstep.abort(error)
            finally:
                port.leave()
                self._baton.drop(port.rank)
                ended[port.rank].set()

        threads = [threading.Thread(target=serve, args=(port,), daemon=True) for port in self.lockstep.ports]
        try:
            for thread in threads:
                thread.start()
            for end in ended:
                # A signal that comes just before a wait is noticed after it.
                while not end.wait(_GLANCE_SECONDS):
                    pass
        except BaseException as error:
            # Ctrl-C, say: whoever comes to an exchange ends by it.
            self.lockstep.abort(error)
            _wait_for([end for thread, end in zip(threads, ended, strict=True) if thread.ident is not None])
            raise
        # What others raise because of an error may come before the error itself.
        for first in [e for e in errors if e.__cause__ not in errors] or errors:
            raise first
        return [results[rank] for rank in range(self.ranks)]


def _made(clock: RankClock, entries: int, grad: Tensor) -> None:  # noqa: ARG001
    clock.made(entries)


def _wait_for(ended: Sequence[threading.Event]) -> None:
    """Wait a while for threads to end: a process that ends while one is inside torch is aborted."""
    until = time.monotonic() + _END_SECONDS
    for end in ended:
        end.wait(max(0.0, until - time.monotonic()))


@contextmanager
def group_of_one() -> Iterator[None]:
    """Have a process group of this process alone, for DDP, which wants one."""
    if dist.is_initialized():
        raise ValueError("ranks are simulated in one process, and this one is in a group already. Start it alone.")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
