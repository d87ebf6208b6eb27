"""What each parameter looks like after a step: how much of it is sent, how much waits, for how long."""

from __future__ import annotations

from dataclasses import asdict
from math import inf, nan

import torch
from torch import Tensor

from laconic import kernels
from laconic.linkfit import known
from laconic.state import State
from laconic.stats import Layer, Stats, Tuning
from laconic.tuners import Budget, Cat, Relief
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
        tuning=tuning(state),
    )


def tuning(state: State) -> Tuning | None:
    """Return what was weighed for the next step; None for a tuner that does not, or not yet."""
    tuner, chosen = state.method.tuner, state.tuner
    if isinstance(tuner, Relief):
        tuner = tuner.inner
        chosen = {key.removeprefix("inner."): value for key, value in chosen.items() if key.startswith("inner.")}
    if not isinstance(tuner, Cat | Budget) or "count" not in chosen:
        return None
    link, curve = known(chosen), tuner.curve(chosen, state.ledger.seen) if isinstance(tuner, Cat) else None
    return Tuning(
        count=chosen["count"],
        gain=chosen.get("gain", nan),
        cost=chosen["cost"],
        unit=tuner.cost.unit if isinstance(tuner, Cat) else "seconds",
        latency_seconds=nan if link is None else link.latency,
        bits_per_second=nan if link is None else 8 / link.per_byte if link.per_byte else inf,
        curve=() if curve is None else curve.points(),
    )


def norm(parts: Tensor) -> float:
    """Return the norm of a vector whose parts have these norms."""
    return float(torch.linalg.vector_norm(parts))


def owed_norms(state: State) -> Tensor:
    """Return the norm of what this rank owes, a number a parameter."""
    owed = state.memory.get("owed")
    return torch.zeros(len(state.model)) if owed is None else kernels.segment_norms(owed, state.model)


def let_guard_look(state: State) -> None:
    """Let the guard compare what is owed with the fresh gradient, where it is time to."""
    if state.alarm.due(state.step):
        state.alarm.look(owed=norm(owed_norms(state)), fresh=norm(state.ledger.gradient_norms()))


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
