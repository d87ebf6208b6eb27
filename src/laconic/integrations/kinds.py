"""Which of the workers that have met is of another kind: with another method or model than most."""

from __future__ import annotations

import zlib
from collections import Counter

import torch
import torch.distributed as dist

from laconic.errors import ExchangeError, WireError
from laconic.integrations.compiled import named_parameters
from laconic.method import Method
from laconic.rounds.meeting import Meeting
from laconic.transports import ProcessGroupTransport


def is_another(model: torch.nn.Module, method: Method, group: dist.ProcessGroup, rank: int) -> bool:
    """Whether this worker has another method or model than most of those who were here before, or else than most.

    Called where workers have found out that they disagree, which all of them do at the same point; ``rank`` is this
    one's at the last meeting, -1 if it has just come.
    """
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in named_parameters(model).items()]
    mine = float(zlib.crc32(repr((method, shapes)).encode()))
    meeting = Meeting(ProcessGroupTransport(group, device_of(model)), device_of(model))
    try:
        told = meeting.table([mine, float(rank)], "who has which method")
    except (ExchangeError, WireError):
        # Nobody knows: one who has just come is not let in.
        return rank < 0
    before = [kind for kind, place in told if place >= 0] or [kind for kind, _ in told]
    return mine != Counter(before).most_common(1)[0][0]


def device_of(module: torch.nn.Module) -> torch.device:
    """Return where a model is trained."""
    return next(p.device for p in module.parameters() if p.requires_grad)
