"""Who keeps the time of ranks that share a process, and how their threads wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

from laconic.collectives import Request


class Turn(Protocol):
    """How threads wait for their turn, as ``threading.Condition`` has it."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...

    def wait_for(self, predicate: Callable[[], bool]) -> bool:
        """Let others go on until it holds."""
        ...

    def notify_all(self) -> None:
        """Have those that wait look again."""
        ...


class Watch(Protocol):
    """Who keeps the ranks' time: told when each works, asks and is answered."""

    def now(self, rank: int) -> float:
        """Return a rank's time."""
        ...

    def waits(self, rank: int) -> None:
        """The rank works no more."""
        ...

    def goes_on(self, rank: int) -> None:
        """The rank works again."""
        ...

    def asks(self, rank: int) -> float:
        """Return when a rank that asks now can have asked: not before it heard what came before."""
        ...

    def counts(self, rank: int) -> bool:
        """Whether what a rank starts now takes time."""
        ...

    def answered(self, requests: Sequence[Request], asked: Sequence[float], circles: Sequence[range]) -> None:
        """Every rank has asked, each at its time, and those of a circle have their answer, which took time."""
        ...

    def spread(self, size: int) -> None:
        """The first rank's bytes, so many, have come to all."""
        ...


class Unwatched:
    """Nobody keeps the ranks' time."""

    def now(self, rank: int) -> float:  # noqa: ARG002
        """It is always the same moment."""
        return 0.0

    def waits(self, rank: int) -> None:
        """It is no matter."""

    def goes_on(self, rank: int) -> None:
        """It is no matter."""

    def asks(self, rank: int) -> float:  # noqa: ARG002
        """It is always the same moment."""
        return 0.0

    def counts(self, rank: int) -> bool:  # noqa: ARG002
        """Nothing takes time."""
        return False

    def answered(self, requests: Sequence[Request], asked: Sequence[float], circles: Sequence[range]) -> None:
        """It took no time."""

    def spread(self, size: int) -> None:
        """It took no time."""
