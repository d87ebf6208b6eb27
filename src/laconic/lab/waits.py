"""Which rank the others wait for, as a run's files and people are told it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laconic.stats import Waits


def told(waits: Waits) -> dict[str, Any]:
    """Return it as plain data; seconds are those of each rank.

    >>> told(Waits(seconds=(2.0, 0.0), of_seconds=8.0))
    {'slowest': 1, 'seconds': [2.0, 0.0], 'of_seconds': 8.0}
    """
    return {
        "slowest": waits.slowest,
        "seconds": [round(seconds, 4) for seconds in waits.seconds],
        "of_seconds": round(waits.of_seconds, 4),
    }


def slow_rank(said: Mapping[str, Any]) -> str | None:
    """Say in a sentence which rank is slow, of what was ``told`` in a line or a result; None where none is.

    >>> slow_rank({"waits": {"slowest": 1, "seconds": [2.0, 0.0], "of_seconds": 8.0}})
    'rank 0 waited 2.0 s of 8.0 s for rank 1'
    """
    waits = said.get("waits")
    if not isinstance(waits, Mapping) or waits.get("slowest") is None:
        return None
    return str(Waits(seconds=tuple(waits["seconds"]), of_seconds=waits["of_seconds"]))
