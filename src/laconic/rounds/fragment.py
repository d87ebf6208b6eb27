"""A part of the model that is synchronised at once: its anchor, its drift, its outer velocity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from laconic.local import OuterStep
from laconic.rounds.arena import Arena


class Fragment:
    """The model that all ranks agree on, as far as these parameters go, and what this rank has walked since.

    The vectors are plain data; nothing here talks.
    """

    def __init__(self, arena: Arena, outer: OuterStep) -> None:
        self.arena, self._outer = arena, outer
        self.anchor = arena.values()
        self.velocity = arena.zeros() if outer.momentum else None
        self.drift = arena.zeros()
        # Where this rank began, if not from the anchor, until its walk is measured; then room for a sync's sums: a
        # new vector a sync costs more, in pages, than what is done with it.
        self.begin = arena.zeros()
        # While its exchange is under way the drift becomes the mean of all.
        self.flying = False
        self.walked = 0.0
        # Whether this rank has taken steps since the last exchange began.
        self.worked = False
        # Whether this rank began from the anchor minus what it holds back, or from the anchor itself; and whether
        # ``begin`` is where that was, or is to be worked out anew.
        self.holds = self.knows_begin = False
        # Whether it has gone on from somewhere between there and where it was.
        self.mixed = False

    def take_anchor(self) -> None:
        """Agree on what the parameters are now."""
        self.arena.values(out=self.anchor)
        self.holds = self.mixed = False

    def hold_back(self, owed: Tensor, share: float) -> None:
        """Begin from the anchor minus this share of what is owed, but for what is frozen."""
        torch.sub(self.anchor, owed, alpha=share, out=self.begin)
        still = self.arena.segments.among(self.frozen())
        for view, there in zip(still.views(self.begin), still.views(self.anchor), strict=True):
            view.copy_(there)
        self.holds = self.knows_begin = True

    def measure(self) -> None:
        """Set the drift: what this rank walked since it began."""
        begin = self.begin if self.holds else self.anchor
        self.arena.from_values(self.arena.rounded(begin), out=self.drift)
        self.walked = float(torch.linalg.vector_norm(self.drift))

    def apart(self) -> float:
        """Return how far this rank is from the anchor minus the mean drift, which has come."""
        self.knows_begin = False
        away = self.arena.from_values(self.anchor, out=self.begin)
        return float(torch.linalg.vector_norm(away.sub_(self.drift)))

    def frozen(self) -> tuple[str, ...]:
        """The parameters that do not train any more."""
        return tuple(name for name, p in self.arena.parameters.items() if not p.requires_grad)

    def step(self, mean: Tensor, *, gathers: bool = True) -> None:
        """Let the anchor take the outer step along the mean drift, but for what is frozen.

        Where it does not ``gather`` speed, velocity is neither used nor changed.
        """
        still = self.arena.segments.among(self.frozen()).views(self.anchor)
        before = [view.clone() for view in still]
        self._step(mean, self.velocity if gathers else None)
        for view, was in zip(still, before, strict=True):
            view.copy_(was)

    def _step(self, mean: Tensor, velocity: Tensor | None) -> None:
        outer = self._outer
        if velocity is None:
            self.anchor.sub_(mean, alpha=outer.rate)
            return
        velocity.mul_(outer.momentum).add_(mean)
        if outer.nesterov:
            self.anchor.sub_(mean, alpha=outer.rate)
            self.anchor.sub_(velocity, alpha=outer.rate * outer.momentum)
        else:
            self.anchor.sub_(velocity, alpha=outer.rate)

    def restart(self, *, mix: float) -> None:
        """Move the parameters to where this rank begins, or a part of the way."""
        # What came after the exchange began is dropped, or mixed in.
        self.worked, self.mixed = self.worked and mix > 0, mix > 0
        begin = self.begin if self.holds else self.anchor
        self.arena.set_values(torch.lerp(begin, self.arena.values(), mix) if mix else begin)

    def state_dict(self) -> dict[str, Any]:
        """Return copies by parameter name."""
        state = {"anchor": self.arena.by_name(self.anchor)}
        if self.velocity is not None:
            state["velocity"] = self.arena.by_name(self.velocity)
        if self.flying:
            state["drift"] = self.arena.by_name(self.drift)
        return state

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if a saved state does not fit."""
        if "anchor" not in state or ("velocity" in state) != (self.velocity is not None):
            raise ValueError("the saved rounds have another outer step. Attach the method that saved them.")
        for what, saved in state.items():
            self.arena.check(what, saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; a drift in it is one whose exchange was over and not yet applied."""
        self.arena.load_(self.anchor, state["anchor"])
        if self.velocity is not None:
            self.arena.load_(self.velocity, state["velocity"])
        self.flying, self.knows_begin = "drift" in state, False
        if self.flying:
            self.arena.load_(self.drift, state["drift"])


def in_turn(parameters: Mapping[str, torch.nn.Parameter], number: int) -> list[dict[str, torch.nn.Parameter]]:
    """Deal the parameters' layers out to fragments in turn, so that each has early and late layers.

    >>> p = {f"{i}.{kind}": None for i in range(4) for kind in ("weight", "bias")}
    >>> [sorted(part) for part in in_turn(p, 2)]
    [['0.bias', '0.weight', '2.bias', '2.weight'], ['1.bias', '1.weight', '3.bias', '3.weight']]
    """
    layers: dict[str, list[str]] = {}
    for name in parameters:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    if len(layers) < number:
        # Fewer layers than fragments: deal the parameters themselves.
        layers = {name: [name] for name in parameters}
    parts: list[dict[str, torch.nn.Parameter]] = [{} for _ in range(number)]
    for i, names in enumerate(layers.values()):
        parts[i % number].update({name: parameters[name] for name in names})
    if not all(parts):
        raise ValueError(f"{len(parameters)} parameters cannot be dealt out to {number} fragments. Use fewer.")
    return parts
