"""What is owed, on another number of ranks: saved states of some become those of as many as there are now.

Ranks are equal stretches of one line, and a new one takes over the mean of the old ones along its stretch. So the
mean over ranks, which is what the model is still to get, stays what it is: when ranks become fewer their memories
are merged, when they become more each is shared out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from laconic.arguments import check_whole
from laconic.shards import CUTS
from laconic.state import STATE_VERSION
from laconic.unfinished import agreed_anchors, begun_anew, is_flying, is_under_way

State = Mapping[str, Any]
_NEEDED = {"memory", "ledger", "tuner", "setting", "seen", "alarm", "kept", "node_size"}
# Of these an observation has the sum over ranks.
_SUMS = ("entries", "sent", "wanted", "qualified", "choosable")


def resharded(
    states: Sequence[State], *, ranks: int, models: Sequence[Mapping[str, Tensor]] | None = None
) -> list[dict[str, Any]]:
    """Return the states of ``ranks`` ranks that go on from what ``link.state_dict()`` gave on all of others.

    The mean over ranks of what is owed, of the method's momentum and of what thresholds follow is preserved. Counts
    of bytes and seconds are those of the nearest old rank. Within a round of local steps ``models`` are wanted,
    each rank's parameters by name at that moment: the round ends there. Load the model before the link, which
    moves it to what all ranks have agreed on.
    """
    check_whole("ranks", ranks, 1, "It is how many go on.")
    states = list(states)
    _check(states, ranks, models)
    if len(states) == ranks:
        return [dict(state) for state in states]
    ends = models is not None and any(map(is_under_way, states))
    anchors = agreed_anchors(states, models or ()) if ends else None
    # The ranks of a node have one memory, each a copy of it.
    size = states[0]["node_size"]
    nodes, before = ranks // size, states[::size]
    new = [_merged(before, stretch(len(before), nodes, node), nodes=nodes) for node in range(nodes)]
    for state in new:
        if state.get("rounds"):
            state["rounds"] = begun_anew(state["rounds"], anchors)
    return [dict(state) for state in new for _ in range(size)]


def regrouped(state: State, *, ranks: int) -> dict[str, Any]:
    """Return the state of a rank that goes on with what it owes among so many, others having come or gone."""
    return _merged([state], stretch(1, 1, 0), nodes=ranks)


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which old rank a new one takes over, and how much of the new one that makes."""

    rank: int
    weight: Fraction


def stretch(old: int, new: int, at: int) -> list[Share]:
    """Return what the rank ``at`` of ``new`` takes over of ``old`` ones.

    >>> [(share.rank, str(share.weight)) for share in stretch(2, 3, 1)]
    [(0, '1/2'), (1, '1/2')]
    >>> [(share.rank, str(share.weight)) for share in stretch(4, 2, 1)]
    [(2, '1/2'), (3, '1/2')]
    """
    begin, end = Fraction(at, new), Fraction(at + 1, new)
    covered = [min(end, Fraction(rank + 1, old)) - max(begin, Fraction(rank, old)) for rank in range(old)]
    return [Share(rank=rank, weight=length * new) for rank, length in enumerate(covered) if length > 0]


def _check(states: Sequence[State], ranks: int, models: Sequence[Mapping[str, Tensor]] | None) -> None:
    if not states or not all(isinstance(state, Mapping) for state in states):
        raise TypeError("resharded wants the states of all ranks, in their order, as link.state_dict() gave them.")
    for what in ("version", "step", "method", "node_size"):
        told = [state.get(what) for state in states]
        if len(set(told)) > 1:
            raise ValueError(f"the states are not of one moment of one run: {what} is {told}, rank by rank.")
    version = states[0].get("version")
    if version != STATE_VERSION:
        raise ValueError(f"the states have version {version}, this laconic reads {STATE_VERSION}.")
    missing = sorted({what for state in states for what in _NEEDED - set(state)})
    if missing:
        raise ValueError(f"the states lack {', '.join(missing)}: they were not saved by link.state_dict().")
    size = states[0]["node_size"]
    if len(states) % size or ranks % size:
        raise ValueError(f"nodes have {size} ranks: {len(states)} states cannot go on on {ranks} ranks.")
    if models is not None and len(models) != len(states):
        raise ValueError(f"models must be those of all ranks, got {len(models)} with {len(states)} states.")
    if len(states) != ranks and models is None and any(map(is_under_way, states)):
        raise ValueError(
            f"ranks are within a round of local steps, where each has a model of its own: {len(states)} cannot go "
            f"on as {ranks}. Give models= too, or call link.finish() on every rank before you save."
        )
    if len(states) != ranks and any(map(is_flying, states)):
        raise ValueError(
            f"an exchange was under way when ranks were saved: {len(states)} cannot go on as {ranks}. Call "
            f"link.finish() on every rank before you save."
        )


def _merged(states: Sequence[State], shares: Sequence[Share], *, nodes: int) -> dict[str, Any]:
    """Return the state of a rank that takes over these shares; what ranks agree on is the first one's."""
    first, taken = states[0], [states[share.rank] for share in shares]
    near = dict(max(zip(shares, taken, strict=True), key=lambda both: both[0].weight)[1])
    weights = [float(share.weight) for share in shares]
    near["memory"] = _memory([state["memory"] for state in taken], weights)
    near["ledger"] = _ledger([state["ledger"] for state in taken], weights)
    near |= {what: first[what] for what in ("tuner", "setting")}
    near["seen"] = _seen(first["seen"], nodes)
    near["alarm"] = near["alarm"] | {"raised": any(state["alarm"]["raised"] for state in taken)}
    # What a rank sent last, it alone; and ranges are cut for a number of ranks.
    near["gauge"] = {}
    near["kept"] = {name: value for name, value in first["kept"].items() if not name.startswith(CUTS)}
    if near.get("rounds"):
        gradients = [state["rounds"]["gradients"]["vectors"] for state in taken]
        own = near["rounds"]["gradients"] | {"vectors": {k: _means(gradients, k, weights) for k in gradients[0]}}
        near["rounds"] = near["rounds"] | {"gradients": own}
    return near


def _memory(memories: Sequence[State], weights: Sequence[float]) -> dict[str, Any]:
    merged: dict[str, Any] = {kind: _means(memories, kind, weights) for kind in memories[0] if kind != "sent_at"}
    if "sent_at" in memories[0]:
        # What waits longest is what ages are looked at for.
        merged["sent_at"] = {
            name: torch.stack([memory["sent_at"][name].cpu() for memory in memories]).amin(0)
            for name in memories[0]["sent_at"]
        }
    return merged


def _means(each: Sequence[State], kind: str, weights: Sequence[float]) -> dict[str, Tensor]:
    return {name: mean_of([one[kind][name] for one in each], weights) for name in each[0][kind]}


def mean_of(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the mean with these weights; of one value, its copy."""
    if len(values) == 1:
        return values[0].clone()
    # Each rank may have saved from a device of its own.
    total = torch.zeros_like(values[0], dtype=torch.float64, device="cpu")
    for value, weight in zip(values, weights, strict=True):
        total.add_(value.cpu().double(), alpha=weight)
    return total.to(values[0].dtype)


def _ledger(ledgers: Sequence[State], weights: Sequence[float]) -> dict[str, Any]:
    """Return mean numbers; rooms and shares are agreed on."""
    merged = dict(ledgers[0])
    for kind in merged:
        if kind not in ("rooms", "shares"):
            pairs = [(ledger[kind], weight) for ledger, weight in zip(ledgers, weights, strict=True)]
            merged[kind] = {name: sum(w * numbers[name] for numbers, w in pairs) for name in merged[kind]}
    return merged


def _seen(seen: State, nodes: int) -> dict[str, Any]:
    """Return what a step has shown, as if so many had been there, a rank of each node."""
    senders = max(1, seen["ranks"] * nodes // seen["world_size"])
    sums = {what: seen[what] * senders // seen["ranks"] for what in _SUMS}
    return {**seen, **sums, "ranks": senders, "world_size": nodes}
