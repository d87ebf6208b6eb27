"""Momentum compensation: the optimizer's momentum is applied before the exchange, to local gradients.

Momentum after a sparse exchange multiplies values that gathered many steps of gradients. So a method that owns
momentum takes it out of ``torch.optim.SGD``: velocity is built from each rank's own gradients, and the optimizer
applies what arrives as it is. Weight decay does not travel: the weights are equal on every rank, so its share of
the velocity is kept here, and decay acts exactly as it does in SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from laconic.layout import as_lies, here
from laconic.types import Momentum

_MOVED = ("momentum", "nesterov", "weight_decay")
# A zero of our own: any other object in its place was put there by the user, a schedule or a loaded state.
_TAKEN = float("0")


def movable(optimizer: torch.optim.Optimizer, *, scaled: bool) -> bool:
    """Whether there is momentum that a method can take over; refuse a form of it that cannot be.

    ``scaled`` says that a GradScaler is at work.
    """
    groups = optimizer.param_groups
    if type(optimizer) is not torch.optim.SGD or not any(group["momentum"] for group in groups):
        return False
    if scaled and any(group["fused"] for group in groups):
        raise ValueError(
            "a fused SGD undoes the loss scale inside its step, where weight decay can no longer be added. "
            "Use fused=False, or leave momentum in the optimizer: sdagc(momentum=False)."
        )
    if any(group["dampening"] for group in groups):
        raise ValueError(
            "momentum with dampening cannot be moved into the method. Set dampening=0, or leave momentum in the "
            "optimizer: sdagc(momentum=False)."
        )
    return True


class MovedMomentum:
    """Stands in for an SGD's momentum until it is given back."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[int, str],
        deliver: Callable[[dict[str, Tensor]], None],
    ) -> None:
        self._optimizer, self._names, self._deliver = optimizer, names, deliver
        self._settings: list[dict[str, Any]] = []
        self._decay: dict[Tensor, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def take(self) -> None:
        """Empty the optimizer's momentum, now and whenever a state is loaded into it.

        Saved states of the optimizer keep showing the momentum that the user set.
        """
        self._take_buffers()
        self._handles = [
            self._optimizer.register_state_dict_post_hook(self._show),
            self._optimizer.register_load_state_dict_post_hook(lambda _: self._take_buffers()),
        ]

    def _take_buffers(self) -> None:
        """Take the settings, and deliver the velocity that the optimizer had, by name, in the parameters' shape."""
        self.refresh()
        buffers = {}
        for group in self._groups:
            for p in group["params"]:
                kept = dict(self._optimizer.state[p]) if p in self._optimizer.state else {}
                buffer = kept.pop("momentum_buffer", None)
                if buffer is None:
                    continue
                # A new dict: a state dict that the user still holds keeps its buffers.
                self._optimizer.state[p] = kept
                if id(p) in self._names:
                    buffers[self._names[id(p)]] = here(buffer)
        self._deliver(buffers)

    def give_back(self) -> None:
        """Leave the optimizer with the settings it had; its velocity starts anew."""
        self.refresh()
        for handle in self._handles:
            handle.remove()
        for group, settings in zip(self._groups, self._settings, strict=True):
            group.update(settings)

    def refresh(self) -> None:
        """Take over what was set anew in the optimizer (a cycled momentum, a loaded state, a new group)."""
        for i, group in enumerate(self._groups):
            if i == len(self._settings):
                self._settings.append({key: group[key] for key in _MOVED})
            for key in ("momentum", "weight_decay"):
                if group[key] is not _TAKEN:
                    self._settings[i][key] = group[key]
                    group[key] = _TAKEN
            self._settings[i]["nesterov"] |= group["nesterov"]
            group["nesterov"] = False

    def momenta(self) -> dict[str, Momentum]:
        """Return what the method applies now, by parameter name."""
        self.refresh()
        return {
            self._names[id(p)]: Momentum(factor=settings["momentum"], nesterov=settings["nesterov"])
            for group, settings in zip(self._groups, self._settings, strict=True)
            for p in group["params"]
            if id(p) in self._names
        }

    @torch.no_grad()
    def decay_(self) -> None:
        """Add to every gradient what weight decay, with momentum of its own, makes of this step."""
        for group, settings in zip(self._groups, self._settings, strict=True):
            # SGD with maximize ascends along the gradient, and still decays.
            rate = -settings["weight_decay"] if group["maximize"] else settings["weight_decay"]
            for p in group["params"]:
                velocity = self._decay.get(p)
                # Decay that was set to zero has velocity left.
                if p.grad is None or (velocity is None and not rate):
                    continue
                velocity = rate * p if velocity is None else velocity.mul_(settings["momentum"]).add_(p, alpha=rate)
                self._decay[p] = velocity
                if settings["nesterov"]:
                    p.grad.add_(p, alpha=rate).add_(velocity, alpha=settings["momentum"])
                else:
                    p.grad.add_(velocity)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the decay's velocities by name, copied."""
        return {self._names[id(p)]: here(v).clone() for p, v in self._decay.items() if id(p) in self._names}

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise ``ValueError`` if saved velocities are not those of this model's parameters."""
        sizes = {name: here(p).numel() for name, p in self._parameters().items()}
        wrong = [name for name, velocity in state.items() if sizes.get(name) != velocity.numel()]
        if wrong:
            raise ValueError(f"the saved decay does not fit {wrong[:5]}. Load the state of the same model.")

    def _parameters(self) -> dict[str, Tensor]:
        return {self._names[id(p)]: p for g in self._groups for p in g["params"] if id(p) in self._names}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from saved velocities."""
        parameters, self._decay = self._parameters(), {}
        for name, velocity in state.items():
            p = parameters[name]
            part = here(p)
            self._decay[p] = as_lies(velocity.to(part, copy=True).view_as(part), p)

    def _show(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self.refresh()
        shown = [group | settings for group, settings in zip(state["param_groups"], self._settings, strict=True)]
        return state | {"param_groups": shown}
