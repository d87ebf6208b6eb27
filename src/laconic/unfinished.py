"""A round of local steps that other ranks cannot finish: what its ranks have walked goes into the model, at once.

Within a round each rank has a model of its own. On another number of ranks there is no place for these models, so
the agreed model takes the mean of their walks, as a sync of whole drifts would; what is owed stays owed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

State = Mapping[str, Any]


def is_under_way(state: State) -> bool:
    """Whether a rank has taken steps that no sync has carried to the others."""
    rounds = state.get("rounds")
    if not rounds:
        return False
    # Whether a rank holds something back, has stepped, was mixed with the anchor, and how far it walked.
    stepped = any(worked or mixed for _, worked, mixed, _ in rounds["sync"]["marks"])
    return bool(rounds["progress"]["in_round"] > 0 or stepped)


def is_flying(state: State) -> bool:
    """Whether an exchange has ended whose mean the rank has not yet taken over."""
    rounds = state.get("rounds") or {"sync": {"fragments": ()}}
    return any("drift" in part for part in rounds["sync"]["fragments"])


def agreed_anchors(states: Sequence[State], models: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return what all ranks agree on when the round ends here, fragment by fragment."""
    first = states[0]
    sync, layouts = first["rounds"]["sync"], first.get("layouts", {})
    # A rank that took no part in the round stands where it began, and does not hold the others back.
    took_part = [pair for pair in zip(states, models, strict=True) if pair[0]["rounds"]["sync"]["sends"]]
    anchors = []
    for i, fragment in enumerate(sync["fragments"]):
        walks = [_walk(state, model, i, layouts) for state, model in took_part]
        means = {name: torch.stack([walk[name] for walk in walks]).mean(0) for name in fragment["anchor"]}
        if not all(bool(mean.isfinite().all()) for mean in means.values()):
            # As in a sync: where one rank walked to where numbers end, all drop the round.
            means = {name: torch.zeros_like(mean) for name, mean in means.items()}
        anchors.append({name: (v.cpu() - means[name]).to(v.dtype) for name, v in fragment["anchor"].items()})
    return anchors


def begun_anew(rounds: State, anchors: Sequence[Mapping[str, Tensor]] | None) -> dict[str, Any]:
    """Return the state of rounds whose next one begins, from these anchors; None: from those of the state."""
    sync, gradients, progress = rounds["sync"], rounds["gradients"], rounds["progress"]
    fragments = list(sync["fragments"])
    if anchors is not None:
        fragments = [part | {"anchor": dict(new)} for part, new in zip(fragments, anchors, strict=True)]
    marks = [[False, False, False, 0.0] for _ in fragments]
    # Where gradients are averaged in every step, models are equal and anchors old.
    local = progress["step"] > progress["averaged_steps"]
    progress = progress | {"in_round": 0, "worked": False, "told": False, "loss_sum": 0.0, "loss_count": 0}
    progress |= {"reach": 0.0, "could_reach": 0.0}
    if "sum" not in gradients["vectors"]:
        gradients = gradients | {"measured": 0}
    elif gradients["begun"]:
        sums = {name: torch.zeros_like(part) for name, part in gradients["vectors"]["sum"].items()}
        gradients = gradients | {"summed": 0, "vectors": gradients["vectors"] | {"sum": sums}}
    sync = sync | {"fragments": fragments, "marks": marks, "to_anchor": local}
    return {**rounds, "sync": sync, "gradients": gradients, "progress": progress}


def _walk(state: State, model: Mapping[str, Tensor], index: int, layouts: Mapping[str, Sequence[int]]) -> State:
    """Return how far a rank has walked in its round, from where it began, in the order that entries lie in."""
    sync, owed = state["rounds"]["sync"], state["memory"].get("owed", {})
    share = sync["share"] if sync["marks"][index][0] else 0.0
    walk = {}
    for name, anchor in sync["fragments"][index]["anchor"].items():
        here = _flat(model, name, layouts).to(torch.float64)
        begin = anchor.cpu().double().flatten()
        if share and name not in sync["frozen"]:
            begin = begin - share * owed[name].cpu().double().flatten()
        if begin.numel() != here.numel():
            wrong = f"{name} has {here.numel()} entries, not {begin.numel()}"
            raise ValueError(f"models must be those of the states: {wrong}.")
        # What a narrow type rounds away was not walked.
        begin = begin.to(model[name].dtype).double()
        walk[name] = begin - here
    return walk


def _flat(model: Mapping[str, Tensor], name: str, layouts: Mapping[str, Sequence[int]]) -> Tensor:
    if name not in model:
        raise ValueError(f"models must be those of the states, with every parameter: {name} is missing.")
    value = model[name].detach().cpu()
    return value.permute(*layouts[name]).reshape(-1) if name in layouts else value.reshape(-1)
