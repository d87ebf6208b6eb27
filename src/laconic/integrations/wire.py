"""What a link talks over."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from laconic.collectives import Transport


class Wire(Transport, Protocol):
    """A transport that models can be put on: a process group's, or one of ranks in one process."""

    blocked_seconds: float

    def connect(self) -> None:
        """Make ready whom this rank will talk to, on every rank at the same point."""

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace the tensor by the first rank's."""
