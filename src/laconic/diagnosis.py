"""What each parameter looks like after a step: how much of it is sent, how much waits, for how long."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from laconic import kernels
from laconic.state import State
from laconic.stats import Layer, Stats
from laconic.types import Thresholder


def summary(state: State) -> Stats:
    """Return the numbers so far; the norms of what is owed cost a pass over memory."""
    owed, seen = owed_norms(state), state.ledger.seen
    density = seen.sent / seen.entries if seen.entries else 0.0
    return Stats(
        steps=state.step,
        syncs=state.step,
        density=density,
        owed_norm=norm(owed),
        **asdict(state.counters),
        history=tuple(state.probe.history) if state.probe else (),
        layers=layers(state, owed, overall=density),
    )


def norm(parts: Tensor) -> float:
    """Return the norm of a vector whose parts have these norms."""
    return float(torch.linalg.vector_norm(parts))


def owed_norms(state: State) -> Tensor:
    """Return the norm of what this rank owes, a number a parameter."""
    owed = state.memory.get("owed")
    return torch.zeros(len(state.model)) if owed is None else kernels.segment_norms(owed, state.model)


def layers(state: State, owed: Tensor, *, overall: float) -> tuple[Layer, ...]:
    """Return one entry a parameter, of the last step that was not skipped; ``overall`` is the whole density."""
    ledger, steps = state.ledger, max(1, state.step - state.counters.skipped_steps)
    gradients = ledger.gradient_norms().tolist()
    thresholds, clipped, ages = ledger.thresholds.tolist(), ledger.clipped.tolist(), _oldest(state)
    c = state.setting.c if isinstance(state.setting, Thresholder) else None
    return tuple(
        Layer(
            name=segment.name,
            entries=segment.size,
            density=ledger.shares.get(segment.name, overall),
            threshold=thresholds[i] if thresholds[i] >= 0 else None,
            c=c,
            owed_gradients=norm / gradients[i] if gradients[i] else 0.0,
            oldest=ages[i],
            clipped_share=clipped[i] / steps,
        )
        for i, (segment, norm) in enumerate(zip(state.model, owed.tolist(), strict=True))
    )


def _oldest(state: State) -> list[int | None]:
    sent_at, owed = state.memory.get("sent_at"), state.memory.get("owed")
    if sent_at is None or owed is None:
        return [None] * len(state.model)
    # An entry that owes nothing waits for nothing.
    last = torch.where(owed != 0, sent_at, state.step)
    return [state.step - int(view.min()) if view.numel() else 0 for view in state.model.views(last)]
