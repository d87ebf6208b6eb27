"""What tables of several tasks put together from the library's parts, so that their rows mean the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import laconic


def largest(density: float, *, clip: float | None = None, **settings: Any) -> laconic.Method:
    """Return the largest entries of the whole model, one bit each; each rank's gradient is clipped."""
    method = laconic.topk(density, **{"memory": "update", "scope": "model", "values": "sign"} | settings)
    return method if clip is None else clipped(method, clip)


def clipped(method: laconic.Method, clip: float) -> laconic.Method:
    """Return a method of every step with each rank's gradient clipped."""
    return replace(method, clip=laconic.LocalClip(norm=clip))


def cold(c: float, **settings: Any) -> laconic.Method:
    """Return SDAGC with a fixed c from its first step on: by default it begins warm."""
    return replace(laconic.sdagc(c, **settings), tuner=laconic.Constant())


def warm(method: laconic.Method, c: float) -> laconic.Method:
    """Return SDAGC that does not begin with silence: a share falls to what c sends in 2 c steps."""
    return replace(method, tuner=laconic.Warmup(start=0.03, steps=round(2 * c)))


def ahead(
    send: laconic.Method, every: int = 1, *, clip: float | None = None, share: float | None = None, **settings: Any
) -> laconic.Method:
    """Return rounds, each begun from where a rank would stand with its share of what it owes (None: 1/N)."""
    if clip is not None:
        # Steps are clipped, not what is sent of them.
        settings = {"clip": clip, "convention": "mean"} | settings
    return laconic.celgc(every, restart=share, send=replace(send, clip=None), **settings)
