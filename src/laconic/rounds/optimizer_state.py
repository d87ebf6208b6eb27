"""The inner optimizer's state at a sync: kept, averaged over ranks, or reset.

For SGD with momentum: kept, each rank goes on with the velocity of its own gradients; averaged, all go on with the
mean, which is the velocity of the mean gradient; reset, a round begins at rest (AdaComm's block momentum). For
Adam: kept is DiLoCo's choice; averaged moments belong to the averaged model; reset also restarts the bias
correction, so that the first steps of a round are as large as those of a run.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from laconic.errors import LaconicError
from laconic.layout import flatten
from laconic.local.steps import OptimizerState
from laconic.rounds.arena import Arena
from laconic.rounds.meeting import Meeting

# Every rank names a kind by its place here: one that has skipped all steps so far has no state to read names from.
_KINDS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "grad_avg", "acc_delta",
"sum",
          "exp_inf", "prev")  # fmt: skip


def see_to(what: OptimizerState, optimizer: torch.optim.Optimizer, arena: Arena, meeting: Meeting) -> None:
    """Do at a sync what the method says: keep the state, average it over ranks, or reset it."""
    if what == "average":
        average_(optimizer, arena, meeting)
    elif what == "reset":
        reset(optimizer, arena)


@torch.no_grad()
def average_(optimizer: torch.optim.Optimizer, arena: Arena, meeting: Meeting) -> None:
    """Replace momentum and moments by their mean over the ranks that have them; counts of steps stay."""
    mine = _kinds(optimizer, arena)
    table = meeting.table([float(kind in mine) for kind in _KINDS])
    for i, kind in enumerate(_KINDS):
        ranks = sum(row[i] for row in table)
        if not ranks:
            continue
        mean = arena.zeros()
        for view, p in zip(arena.segments.views(mean), arena.parameters.values(), strict=True):
            value = optimizer.state.get(p, {}).get(kind)
            if isinstance(value, Tensor):
                view.copy_(flatten(value, p))
        meeting.sum_(mean, "the optimizer's state").div_(ranks)
        for view, p in zip(arena.views(mean), arena.parameters.values(), strict=True):
            value = optimizer.state.get(p, {}).get(kind)
            if isinstance(value, Tensor):
                value.copy_(view)


def rates_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, float]:
    """Return the learning rates of the named parameters; names are by the parameters' ids."""
    return {
        names[id(p)]: float(group.get("lr", 1.0))
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) in names
    }


def reset(optimizer: torch.optim.Optimizer, arena: Arena) -> None:
    """Forget momentum, moments and counts: the next step is as the first one."""
    for p in arena.parameters.values():
        optimizer.state.pop(p, None)


def _kinds(optimizer: torch.optim.Optimizer, arena: Arena) -> set[str]:
    """The kinds of tensors of a parameter's shape that the optimizer keeps."""
    found = {
        kind
        for p in arena.parameters.values()
        for kind, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor) and value.shape == p.shape and kind != "step"
    }
    if not found <= set(_KINDS):
        raise LaconicError(
            f"{type(optimizer).__name__} keeps {', '.join(sorted(found - set(_KINDS)))}, of which laconic does not "
            f"know whether a mean makes sense. Use optimizer_state='keep' or 'reset'."
        )
    return found
