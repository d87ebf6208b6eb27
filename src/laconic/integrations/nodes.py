"""How ranks lie in nodes, as the launcher tells: the one place where it is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from laconic.collectives import check_node_size
from laconic.exchanges import TwoLevel
from laconic.method import Method

_WANTED = "LOCAL_WORLD_SIZE"
_REMEDY = "Start with torchrun, or write TwoLevel(node_size=8), or TwoLevel.of_mesh(mesh)."


def on_nodes(method: Method, ranks: Sequence[int], environment: Mapping[str, str] | None = None) -> Method:
    """Return the method with its node size known; ``ranks`` are the group's, as torch.distributed counts them all.

    Refuse nodes that the ranks cannot be dealt out to.
    """
    if not isinstance(method.exchange, TwoLevel):
        return method
    size = method.exchange.node_size
    if size is None:
        size = launched_node_size(os.environ if environment is None else environment)
        _refuse_scattered(ranks, size)
    check_node_size(size, len(ranks))
    return replace(method, exchange=replace(method.exchange, node_size=size))


def launched_node_size(environment: Mapping[str, str]) -> int:
    """Return how many ranks the launcher has started on this node."""
    told = environment.get(_WANTED)
    if told is None:
        raise ValueError(
            f"TwoLevel() asks the launcher how many ranks a node has, and {_WANTED} is not set. {_REMEDY}"
        )
    if not told.isdecimal() or int(told) < 1:
        raise ValueError(f"{_WANTED} must be a whole number of 1 or more, got {told!r}. {_REMEDY}")
    return int(told)


def _refuse_scattered(ranks: Sequence[int], size: int) -> None:
    """Refuse a group whose nodes are not those of the launcher: which of its ranks share one, it does not say."""
    if list(ranks) != list(range(len(ranks))):
        raise ValueError(
            f"the group has the ranks {list(ranks)}, and {_WANTED}={size} is about all that were launched. Say how "
            f"many ranks of the group a node has: TwoLevel(node_size=...)."
        )
