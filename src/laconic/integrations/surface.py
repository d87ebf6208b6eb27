"""Where a method meets a module: the protocol that each kind of module answers."""

from __future__ import annotations

from typing import Protocol


class Surface(Protocol):
    """How gradients of one kind of module reach the reducer and come back."""

    def install(self) -> None:
        """Begin to exchange."""
        ...

    def remove(self) -> None:
        """Leave the module as it was found."""
        ...

    def before_look(self) -> None:
        """See to it that the gradients are the agreed ones: a GradScaler is about to look at them."""
        ...

    def before_step(self) -> bool:
        """See to it that the gradients are those to step along; return whether the optimizer may step."""
        ...

    def after_step(self) -> None:
        """The optimizer has stepped."""
        ...

    def after_attempt(self) -> None:
        """A GradScaler has stepped, or skipped."""
        ...

    def after_update(self) -> None:
        """A GradScaler has a new scale: the loop is done with this step, whatever it did."""
        ...
