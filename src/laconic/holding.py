"""How a replica of the model is held: whole, by one rank, or in shards, by several that must act as one worker."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Holding(Protocol):
    """What the ranks that hold one replica do together; all of them call each at the same point."""

    def whole(self, norms: Tensor) -> Tensor:
        """Return the norms of whole parameters, given those of what is here of them."""
        ...

    def sum_(self, values: Tensor) -> Tensor:
        """Return the values added up over those who hold the replica, where they were."""
        ...

    def poison_together_(self, parts: list[Tensor], device: torch.device) -> None:
        """Leave the parts as they are, or all of them NaN where the norm of any holder's is not finite."""
        ...

    def wrote(self) -> None:
        """Take note that what is here of the parameters was written to."""
        ...


class Alone:
    """One rank holds the replica whole: there is nobody to ask."""

    def whole(self, norms: Tensor) -> Tensor:
        """Return the norms as they are."""
        return norms

    def sum_(self, values: Tensor) -> Tensor:
        """Return the values as they are."""
        return values

    def poison_together_(self, parts: list[Tensor], device: torch.device) -> None:
        """Leave the parts as they are."""

    def wrote(self) -> None:
        """Nothing to do."""


ALONE = Alone()
