"""Which entries of a parameter lie on this rank, and in what order: DDP's buckets have it, and so has what is owed.

For a contiguous parameter it is the logical one; for one in channels_last format, say, it is not. Of a parameter
that is sharded (a DTensor) a shard lies here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def is_sharded(t: Tensor) -> bool:
    """Whether only a part of a tensor lies on this rank."""
    # To import it takes a second; where nobody has, no tensor is of its kind.
    sharding = sys.modules.get("torch.distributed.tensor")
    return sharding is not None and isinstance(t, sharding.DTensor)


def here(t: Tensor) -> Tensor:
    """Return the part of a tensor that lies on this rank, in the same memory: all of it, if it is not sharded."""
    if not is_sharded(t):
        return t
    sharded: Any = t.detach()
    part: Tensor = sharded.to_local()
    return part


def as_lies(part: Tensor, p: Tensor) -> Tensor:
    """Return a tensor that lies on ranks as p does, of which this part is here."""
    if not is_sharded(p):
        return part
    like: Any = p
    whole: Tensor = type(like).from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole


def dimension_order(p: Tensor) -> tuple[int, ...]:
    """Return p's dimensions from the slowest to the fastest; the logical order if p has gaps or overlaps."""
    order = sorted(range(p.dim()), key=lambda d: (-p.stride()[d], d))
    expected = 1
    for d in reversed(order):
        if p.shape[d] != 1:
            if p.stride()[d] != expected:
                return tuple(range(p.dim()))
            expected *= p.shape[d]
    return tuple(order)


def unusual_layouts(parameters: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return the parameters whose entries do not lie in logical order, and how they lie."""
    orders = {name: list(dimension_order(here(p))) for name, p in parameters.items()}
    return {name: order for name, order in orders.items() if order != sorted(order)}


def rows_of(p: Tensor) -> int:
    """Return how many rows p has where its entries are seen as a matrix: its slowest dimension of more than one.

    A vector has one row.

    >>> import torch
    >>> rows_of(torch.empty(6, 3, 5, 5)), rows_of(torch.empty(3, 6).t()), rows_of(torch.empty(1, 4, 2))
    (6, 3, 4)
    """
    if p.dim() < 2:
        return 1
    return next((p.shape[d] for d in dimension_order(p) if p.shape[d] != 1), 1)


def flatten(values: Tensor, p: Tensor) -> Tensor:
    """Lay p-shaped values out flat, in p's order."""
    return values.permute(dimension_order(p)).reshape(-1)


def unflatten(flat: Tensor, p: Tensor) -> Tensor:
    """View a flat tensor in p's order as a p-shaped one."""
    order = dimension_order(p)
    back = sorted(range(p.dim()), key=order.__getitem__)
    return flat.view([p.shape[d] for d in order]).permute(back)
