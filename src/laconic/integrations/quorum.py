"""Local steps with workers that come and go, without a restart, over torchft.

Each round ends with a meeting: those who are here make a group, exchange, and vote. Who has heard every vote keeps
the round; who has not is back where it was before the meeting, and meets again, without whoever was lost. There it
learns whether another has kept the round, and then keeps it too: all who are left have one past.
"""

from __future__ import annotations

import copy
import logging
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from laconic.errors import ExchangeError, GroupError, WireError
from laconic.integrations.attach import Making, attach_over
from laconic.integrations.checks import check_quorum
from laconic.integrations.compiled import named_tensors, uncompiled
from laconic.integrations.kinds import device_of, is_another
from laconic.integrations.link import Link
from laconic.integrations.local import LocalSurface
from laconic.integrations.members import Members
from laconic.layout import unflatten
from laconic.method import Method
from laconic.resharding import regrouped
from laconic.rounds import Rounds
from laconic.transports import ProcessGroupTransport
from laconic.unfinished import begun_anew

_log = logging.getLogger("laconic")


@dataclass(frozen=True, kw_only=True)
class _Held:
    """Where a worker stood when it came to a meeting; ``memory`` is what it owes, None: nothing yet."""

    tensors: dict[str, Tensor]
    optimizer: dict[str, Any]
    link: dict[str, Any]
    memory: dict[str, Any] | None


class Quorum:
    """A method of local steps on this worker, with as many others as there are at each round's end.

    Every worker makes one, at any time, with the same model, optimizer and method; the loop stays as it is. Those
    who come later go on from the model that the others have agreed on. ``lighthouse`` is the address of torchft's,
    ``least`` how many workers there must be for a round to count, ``host`` a name of this machine that the others
    know. An exchange waits for ``timeout`` seconds, a meeting for ``patience``.

        with Quorum(model, optimizer, laconic.celgc(16), lighthouse="http://first-host:29510") as quorum:
            while quorum.round < 1000:
                loss(model, next(batches)).backward()
                optimizer.step()
                optimizer.zero_grad()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Method,
        *,
        lighthouse: str,
        name: str = "",
        host: str = "",
        least: int = 1,
        timeout: float = 60.0,
        patience: float = 600.0,
    ) -> None:
        model = uncompiled(model)
        check_quorum(model, method)
        self._model, self._optimizer, self._method = model, optimizer, method
        self._held: _Held | None = None
        # Rounds that were exchanged here, and whose vote was not heard: what is owed if another has kept them.
        self._doubts: dict[tuple[int, str], dict[str, Any]] = {}
        # This worker's rank at the last meeting that ended well (-1: at none), and what each owed when it was over.
        self._rank, self._owed = -1, [0.0]
        self._link: Link | None = None
        # Whether this worker cannot go on with the others.
        self._out = False
        # The meeting whose group the link talks over; empty: it is to be made anew.
        self._meeting = ""
        # At which rounds the group became another, and which: what two workers who agree have alike.
        self._past: dict[int, str] = {}
        self._members = Members(
            lighthouse=lighthouse, name=name, host=host, least=least, timeout=timeout, patience=patience,
            give=self._give, take=self._take,
        )  # fmt: skip
        try:
            self._meet()
        except BaseException:
            self.close()
            raise

    @property
    def link(self) -> Link:
        """The handle on the method: its numbers, and ``observe``. What it says to other ranks, this object does."""
        assert self._link is not None
        return self._link

    @property
    def round(self) -> int:
        """How many rounds the workers have agreed on, since the first of them began."""
        return self._members.step - 1

    @property
    def workers(self) -> int:
        """How many there were at the last meeting."""
        return self.link.transport.world_size

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Have the model of the last meeting inside a ``with`` block, to evaluate or save it; nobody is asked."""
        mine = {name: p.detach().clone() for name, p in self.link.parameters.items()}
        self._to_agreed()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in mine.items():
                    self.link.parameters[name].copy_(value)

    def close(self) -> None:
        """Leave the others, with the model of the last meeting; steps since then are dropped."""
        if self._link is not None and self._link.attached:
            self._to_agreed()
            self._link.detach()
        self._members.close()

    def __enter__(self) -> Quorum:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _after_step(self) -> None:
        assert self.link.rounds is not None
        if self.link.rounds.due:
            tensors = {name: t.detach().clone() for name, t in named_tensors(self._model).items()}
            state = self.link.state_dict()
            memory = state.pop("memory")
            optimizer = copy.deepcopy(self._optimizer.state_dict())
            self._held = _Held(tensors=tensors, optimizer=optimizer, link=state, memory=memory)
            self._meet()

    def _meet(self) -> None:
        """Meet until a round's end is agreed on; whoever is here at that time takes part."""
        while not self._ends_well():
            # Whatever was begun is forgotten with the group that it was begun in.
            self._meeting = ""
        step = self._members.step - 1
        if self._of(step) != self._meeting:
            self._past[step] = self._meeting
        self._held = None
        self._doubts.clear()

    def _ends_well(self) -> bool:
        done, step, votes = False, self._members.step, [[0.0]]
        try:
            self._members.meet()
            # One who has been brought up to the others is where they are.
            step = self._members.step
            if self._members.meeting != self._meeting:
                self._regroup()
            rounds = self.link.rounds
            assert rounds is not None
            if rounds.due:
                rounds.tick()
            done = True
            votes = rounds.meeting.table([self.link.reducer.stats().owed_norm], "the vote that ends a round")
        except (ExchangeError, GroupError, WireError) as error:
            model, group = self._model, self._members.group
            disagree = isinstance(error, GroupError)
            if self._out or (disagree and is_another(model, self._method, group, self._rank)):
                raise
            _log.warning("round %d did not come to its end, and is met for again: %s", step, error)
            self._members.fail(error)
            if done:
                self._doubts[step, self._meeting] = self.link.reducer.state_dict()["memory"]
        good = self._members.commit()
        if good:
            self._rank, self._owed = self.link.transport.rank, [row[0] for row in votes]
        return good

    def _regroup(self) -> None:
        """Talk over the group of those who are here now, from where this worker stands."""
        transport = ProcessGroupTransport(self._members.group, device_of(self._model))
        link = self._link
        if link is None:
            link = attach_over(transport, self._model, self._optimizer, self._method, clock=time.perf_counter)
            self._link = link
        else:
            making = Making(transport, scaler=None, measure_every=0, track_age=False, clock=time.perf_counter)
            reducer = making.reducer(self._method, link.parameters, link.identity, velocity=False)
            rounds = Rounds(self._method, self._model, link.parameters, self._optimizer, reducer, transport)
            link.regroup(transport, reducer, rounds, LocalSurface(self._model, rounds, transport, None))
        assert link.rounds is not None
        link.rounds.on_tick = self._after_step
        self._restore(link)
        self._meeting = self._members.meeting
        self._compare(link.rounds)

    def _restore(self, link: Link) -> None:
        """Bring this worker to where it stood when it came; one who has none begins with the first one's model."""
        held = self._held
        if held is None:
            return
        with torch.no_grad():
            for name, t in named_tensors(self._model).items():
                t.copy_(held.tensors[name])
        self._optimizer.load_state_dict(copy.deepcopy(held.optimizer))
        memory = held.memory
        if memory is None:
            memory = link.reducer.state_dict()["memory"]
            for waits in memory.get("sent_at", {}).values():
                waits.fill_(held.link["step"])
        link.load_state_dict(regrouped(held.link | {"memory": memory}, ranks=link.transport.world_size))

    def _give(self) -> dict[str, Any]:
        """Return what a worker that comes needs: all but what this one owes."""
        held = self._held
        assert held is not None
        return {"tensors": held.tensors, "optimizer": held.optimizer, "link": held.link, "past": self._past}

    def _take(self, state: dict[str, Any]) -> None:
        """Stand where the others stand at the end of their round, not having walked; what was owed here stays."""
        held, self._past = self._held, dict(state["past"])
        memory = None if held is None else held.memory
        # Another has heard the vote: what this worker sent then is in the model.
        kept = [owed for (step, meeting), owed in self._doubts.items() if self._of(step) == meeting]
        if kept:
            memory = kept[0]
        elif held is not None:
            _log.warning("the others went on without this worker: its steps since the last meeting are dropped.")
        told = state["link"]["rounds"]
        rounds = begun_anew(told, None)
        rounds["progress"] = rounds["progress"] | {"in_round": told["progress"]["in_round"]}
        link = state["link"] | {"rounds": rounds}
        self._held = _Held(tensors=state["tensors"], optimizer=state["optimizer"], link=link, memory=memory)
        self._doubts.clear()

    def _of(self, step: int) -> str:
        """Return at which meeting a round was agreed on."""
        return self._past[max(when for when in self._past if when <= step)] if self._past else ""

    def _compare(self, rounds: Rounds) -> None:
        """Raise ``GroupError`` if some have another past than most; those are out."""
        mine = float(zlib.crc32(repr(sorted(self._past.items())).encode()))
        told, ranks = zip(*rounds.meeting.table([mine, float(self._rank)]), strict=True)
        usual, _ = Counter(told).most_common(1)[0]
        unlike = [rank for rank, one in enumerate(told) if one != usual]
        if mine != usual:
            self._out = True
            raise GroupError(
                f"this worker kept a round that most of the {len(told)} here did not, and its model is another. "
                f"Start it anew: it will go on from theirs."
            )
        if unlike:
            # They leave; the others meet again without them.
            raise ExchangeError(f"workers {unlike} of {len(told)} have another past, and must be started anew.")
        lost = sorted(set(range(len(self._owed))) - set(ranks)) if self._rank >= 0 else []
        for rank in lost:
            _log.warning(
                "round %d goes on with %d workers. Worker %d of %d is not here. If it is lost, so is what it owed: "
                "of norm %g, where a worker owed %g on average.",
                self._members.step, len(told), rank, len(self._owed), self._owed[rank],
                sum(self._owed) / len(self._owed),
            )  # fmt: skip

    def _to_agreed(self) -> None:
        rounds, held = self.link.rounds, self._held
        assert rounds is not None
        agreed = rounds.agreed()
        if held is not None:
            # A meeting broke off, and may have left anything there.
            agreed = {
                n: part
                for fragment in held.link["rounds"]["sync"]["fragments"]
                for n, part in fragment["anchor"].items()
            }
        with torch.no_grad():
            for name, flat in agreed.items():
                p = self.link.parameters[name]
                p.copy_(unflatten(flat, p))
