"""A look at all ranks' models every so many steps: raise where they differ, or go on from the majority's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import Literal, TypeVar, get_args

from torch import Tensor

from laconic.arguments import check_choice, check_whole
from laconic.collectives import Reply, Request, Traffic, Transport
from laconic.errors import GroupError
from laconic.local import LocalSteps
from laconic.replicas import Difference, compare, take_over

OnDifference = Literal["raise", "heal"]
T = TypeVar("T")
_log = logging.getLogger("laconic")


def check_settings(every: int, then: OnDifference, local: LocalSteps | None) -> None:
    """Refuse wrong settings before any rank talks."""
    check_whole("check_every", every, 0, "Write 0 for never, 100 for every hundredth step.")
    check_choice("on_difference", then, get_args(OnDifference))
    if every and local is not None and local.start is None:
        raise ValueError(
            "check_every compares what ranks agree on when a round ends, and this method has no rounds: gradients "
            "are averaged in every step, and ranks may end after unlike numbers of them. Leave it at 0."
        )
    if local is not None and then == "heal":
        raise ValueError(
            "on_difference='heal' wants models that are equal after every step; in rounds of local steps they are "
            "not, and what ranks agree on is only looked at. Write on_difference='raise'."
        )


class ReplicaCheck:
    """Compares what all ranks should hold alike, at every so many calls, which all of them make alike."""

    def __init__(
        self, parts: Callable[[], Mapping[str, Tensor]], transport: Transport, *, every: int, then: OnDifference
    ) -> None:
        self._parts, self._transport, self._every, self._then = parts, transport, every, then
        self._calls = 0
        self.traffic = Traffic()

    def __call__(self) -> None:
        """Count a call, and compare if it is time."""
        self._calls += 1
        if self._calls % self._every == 0:
            before = Traffic.of(self._transport)
            self._compare()
            self.traffic += Traffic.of(self._transport) - before

    def _compare(self) -> None:
        parts = self._parts()
        found = self._run(compare(parts))
        if found is None:
            return
        if self._then == "raise" or not found.majority:
            raise GroupError(self._said(found))
        source = found.versions[0][0]
        for name in found.names:
            self._run(take_over(parts[name], source=source, rank=self._transport.rank))
        if self._transport.rank == source:
            _log.warning(
                "after %d steps %s: all go on with rank %d's. What their optimizers remember was not compared.",
                self._calls, found, source,
            )  # fmt: skip

    def _run(self, steps: Generator[Request, Reply, T]) -> T:
        future = self._transport.start(steps, label="the comparison of models")
        self._transport.drain()
        return future.value()

    def _said(self, found: Difference) -> str:
        advice = "Load the last checkpoint on every rank, and look for what one of them does otherwise"
        if self._then == "heal":
            advice = f"No version is held by more than half of the ranks, so none is taken over. {advice}"
        return f"models of ranks differ after {self._calls} steps or syncs: {found}. {advice}."
