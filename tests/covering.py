"""Grids that do not multiply: everything is tried, but not with everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def in_turn(many: Sequence[Any], few: Sequence[Any], *, ids: Callable[[Any], str] = str) -> list[Any]:
    """Pairs for ``parametrize``: each of many once, with the next of few.

    Registered instances of one kind follow each other, so a kind meets as many of the few as it has instances.
    """
    pairs = [(one, few[i % len(few)]) for i, one in enumerate(many)]
    return [pytest.param(one, other, id=f"{ids(one)}-{other}") for one, other in pairs]


def crossed(
    rows: Sequence[Any], columns: Sequence[Any], few: Sequence[Any], *, ids: Callable[[Any], str] = str
) -> list[Any]:
    """Triples for ``parametrize``: each row with each column once, and with one of few, unlike its neighbours.

    So a row of as many columns as there are few meets them all, and so does such a column.
    """
    cells = [
        (row, column, few[(i + j) % len(few)]) for i, row in enumerate(rows) for j, column in enumerate(columns)
    ]
    return [pytest.param(*cell, id="-".join(map(ids, cell))) for cell in cells]
