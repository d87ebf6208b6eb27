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
from laconic.layout import flatten, here
from laconic.local.steps import OptimizerState
from laconic.rounds.arena import Arena
from laconic.rounds.meeting import Meeting

# Every rank names a kind by its place here: one that has skipped all steps so far has no state to read names from.
_KINDS = (
    "momentum_buffer",
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "square_avg",
    "grad_avg",
    "acc_delta",
    "sum",
    "exp_inf",
    "prev",
)


def see_to(what: OptimizerState, optimizer: torch.optim.Optimizer, arena: Arena, meeting: Meeting) -> None:
    """Do at a sync what the method says: keep the state, average it over ranks, or reset it."""
    if what == "average":
        average_(optimizer, arena, meeting)
    elif what == "reset":
        reset(optimizer, arena)


@torch.no_grad()
def average_(optimizer: torch.optim.Optimizer, arena: Arena, meeting: Meeting) -> None:
    """Replace momentum and moments by their mean over the ranks that have them; counts of steps stay.

    Ranks are counted for each parameter; one that has no state for it gets none. Raises ``LaconicError``, on
    every rank, if one of them keeps a kind of state that laconic does not know.
    """
    mine = _kinds(optimizer, arena)
    unknown = sorted(mine - set(_KINDS))
    table = meeting.table([*(float(kind in mine) for kind in _KINDS), float(bool(unknown))])
    if any(row[-1] for row in table):
        ranks = ", ".join(str(rank) for rank, row in enumerate(table) if row[-1])
        raise LaconicError(
            f"{type(optimizer).__name__} keeps {', '.join(unknown) or 'state'} (rank {ranks}), of which laconic "
            f"does not know whether a mean makes sense. Use optimizer_state='keep' or 'reset'."
        )
    for i, kind in enumerate(_KINDS):
        if any(row[i] for row in table):
            _average_kind_(kind, optimizer, arena, meeting)


def _average_kind_(kind: str, optimizer: torch.optim.Optimizer, arena: Arena, meeting: Meeting) -> None:
    """Replace one kind of state by its mean over ranks."""
    parameters = list(arena.parameters.values())
    values = [_state(optimizer, p, kind) for p in parameters]
    # Behind the sum: how many ranks have this kind for each parameter.
    mean = arena.zeros(more=len(parameters))
    have = [float(value is not None) for value in values]
    mean[arena.segments.numel :] = torch.tensor(have, dtype=mean.dtype).to(mean.device)
    for view, p, value in zip(arena.segments.views(mean), parameters, values, strict=True):
        if value is not None:
            view.copy_(flatten(value, here(p)))
    mean = meeting.sum_(mean, "the optimizer's state")
    counts = mean[arena.segments.numel :].unbind()
    for view, value, count in zip(arena.views(mean), values, counts, strict=True):
        if value is not None:
            value.copy_(view / count)


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
    return {
        kind
        for p in arena.parameters.values()
        for kind in optimizer.state.get(p, {})
        if kind != "step" and _state(optimizer, p, kind) is not None
    }


def _state(optimizer: torch.optim.Optimizer, p: Tensor, kind: str) -> Tensor | None:
    """What the optimizer keeps of this kind for a parameter on this rank, if that is a tensor of its shape."""
    value = optimizer.state.get(p, {}).get(kind)
    return here(value) if isinstance(value, Tensor) and value.shape == p.shape else None
