"""How many bits positions and whole messages take, beside the least that there can be."""

from __future__ import annotations

from math import lgamma, log
from typing import Any

import torch
from torch import Tensor

from laconic import kernels, wire
from laconic.coding import Codec, Form
from laconic.compressors import TopK
from laconic.lab.rivals import Rival
from laconic.lab.wire_cases import Vector
from laconic.types import Payload, Plan


def entropy_bits(size: int, count: int) -> float:
    """Return log2 C(size, count): the least bits that so many of so many positions can take.

    >>> round(entropy_bits(1_000_000, 1_000) / 1_000, 2)
    11.4
    """
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2)


def chosen(vector: Vector, density: float) -> tuple[Plan, Payload]:
    """Return the largest entries of each parameter, and the plan they were taken by."""
    rule, x = TopK(density=density), vector.x.clone()
    plan = rule.plan(vector.segments, step=0, rooms={})
    return plan, rule.compress_(x, vector.segments, plan, kernels.fresh_of(x, vector.segments))


def position_row(vector: Vector, density: float, rivals: list[Rival]) -> dict[str, Any]:
    """Count the bits a chosen position takes by our code and by others."""
    plan, payload = chosen(vector, density)
    ends = torch.tensor(plan.rooms, dtype=torch.int64).cumsum(0)
    frame = wire.Frame(plan=plan, form=Form(kind="float"), dtype=vector.x.dtype)
    coded = kernels.encode_positions(payload.positions, ends, frame.blocks)
    count = plan.capacity
    least = sum(entropy_bits(s.size, room) for s, room in zip(plan.choosing, plan.rooms, strict=True))
    at = payload.positions.numpy()
    return {
        "density": density,
        "count": count,
        "bits": 8 * coded.numel() / count,
        "least": least / count,
        "over_least": 8 * coded.numel() / least,
        "others": {rival.name: 8 * len(rival.write(at)) / count for rival in rivals},
    }


def message_row(vector: Vector, density: float, word: str, codec: Codec) -> dict[str, Any]:
    """Count the bytes of a whole message, and of its parts."""
    plan, payload = chosen(vector, density)
    frame, message = packed(plan, payload, codec)
    sent = plan.capacity + plan.known_count
    return {
        "values": word,
        "density": density,
        "sent": sent,
        "known": plan.known_count,
        "bytes": message.numel(),
        "bits_each": 8 * message.numel() / sent,
        "ratio": vector.x.nbytes / message.numel(),
        "position_bytes": frame.blocks.upper_bytes + frame.blocks.lower_bytes,
    }


def packed(plan: Plan, payload: Payload, codec: Codec) -> tuple[wire.Frame, Tensor]:
    """Return a payload as a message."""
    frame = wire.Frame(plan=plan, form=codec.form, dtype=payload.known.dtype)
    return frame, wire.pack(frame, payload, header(plan, payload, codec), codec).message


def header(plan: Plan, payload: Payload, codec: Codec) -> wire.Header:
    """Return a header for a payload that fills its rooms."""
    return wire.Header(
        fingerprint=0,
        step=0,
        count=plan.capacity,
        wanted=plan.capacity,
        finite=True,
        rates=0,
        value_bytes=payload.known.element_size(),
        form=codec.form,
    )
