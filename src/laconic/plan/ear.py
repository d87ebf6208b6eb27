"""A transport that notes what is asked through it, and the seconds of work in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch.futures import Future

from laconic.collectives import Reply, Request
from laconic.plan.bucketed import now
from laconic.sim.network import Call, Network
from laconic.transports.lockstep import Port

T = TypeVar("T")


@dataclass
class Noted:
    """An exchange as it was heard: what it asked for, and the work up to each of its requests and to its end."""

    calls: list[Call] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    behind: int = -1


class Clock:
    """The clock of a rehearsal: what it takes here, and what the link would have taken."""

    def __init__(self, network: Network | None) -> None:
        self._network, self._wired = network, 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() + self._wired

    def hear(self, call: Call) -> None:
        """Let pass what a collective would have taken."""
        if self._network is not None:
            self._wired += self._network.seconds(call)


class Ear:
    """One rank's port in a threaded world, in which only the one whose turn it is works.

    ``jobs`` are the exchanges since the last ``clear``; ``chain`` is the same as one sequence: seconds of work, and
    the calls between. ``drained_at`` is when the rank began to wait.
    """

    def __init__(self, port: Port, turn: threading.Lock, clock: Clock, device: torch.device) -> None:
        self._port, self._turn, self._clock, self._device = port, turn, clock, device
        self.rank, self.world_size, self.node_size = port.rank, port.world_size, port.node_size
        self.clear()

    def clear(self) -> None:
        """Forget what was heard."""
        self.jobs: list[Noted] = []
        self.chain: list[float | Call] = []
        self.drained_at = 0.0
        self._inside: list[int] = []
        self._draining, self._mark = False, now(self._device)

    @property
    def wire_bytes(self) -> int:
        """What the port has counted."""
        return self._port.wire_bytes

    @property
    def link_bytes(self) -> int:
        """What the port has counted."""
        return self._port.link_bytes

    @property
    def node_bytes(self) -> int:
        """What the port has counted."""
        return self._port.node_bytes

    @property
    def collectives(self) -> int:
        """What the port has counted."""
        return self._port.collectives

    def start(self, steps: Generator[Request, Reply, T], *, label: str) -> Future[T]:
        """Start an exchange, and note what it does."""
        noted = Noted(behind=self._inside[-1] if self._inside and self._draining else -1)
        self.jobs.append(noted)
        return self._port.start(self._heard(steps, noted, len(self.jobs) - 1), label=label)

    def drain(self) -> None:
        """Wait for the others, who have their turns meanwhile."""
        self._lap()
        self.drained_at, self._draining = now(self._device), True
        self._turn.release()
        try:
            self._port.drain()
        finally:
            self._turn.acquire()
            self._draining, self._mark = False, now(self._device)

    def end(self) -> list[float | Call]:
        """Return the sequence up to now."""
        self._lap()
        return self.chain

    def _lap(self) -> None:
        moment = now(self._device)
        self.chain.append(moment - self._mark)
        self._mark = moment

    def _heard(self, steps: Generator[Request, Reply, T], noted: Noted, index: int) -> Generator[Request, Reply, T]:
        reply: Reply | None = None
        while True:
            began, alone = now(self._device), self._draining
            self._inside.append(index)
            try:
                request = next(steps) if reply is None else steps.send(reply)
            except StopIteration as end:
                self._note(noted, now(self._device) - began, None, alone=alone)
                result: T = end.value
                return result
            finally:
                self._inside.pop()
            call = Call.of([request])
            self._note(noted, now(self._device) - began, call, alone=alone)
            reply = yield request
            # By now every rank waits: the time on the link is waiting to all of them.
            if self.rank == 0:
                self._clock.hear(call)

    def _note(self, noted: Noted, seconds: float, call: Call | None, *, alone: bool) -> None:
        """Note a piece of work; ``alone``: it was done while this rank's own loop waited."""
        noted.work.append(seconds)
        if alone:
            self.chain.append(seconds)
        else:
            self._lap()
        if call is not None:
            noted.calls.append(call)
            self.chain.append(call)
