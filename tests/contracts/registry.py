"""Instances of everything that is registered: what the exams are parametrised over.

A new file in a folder comes into all exams of its protocol by one entry here; ``tests/test_registered.py``
fails until it has one.
"""

from __future__ import annotations

from typing import Any

import laconic
from laconic.compressors import Dense, RandomK, TopK
from laconic.exchanges import GatherMean, ReduceMean
from laconic.methods import Method
from laconic.tuners import Constant, Warmup
from laconic.types import Compressor, Exchange, Sparsifier, Tuner

COMPRESSORS: dict[type, list[Compressor]] = {
    Dense: [Dense()],
    RandomK: [RandomK(density=0.001), RandomK(density=0.3, seed=7), RandomK(density=1.0)],
    TopK: [
        TopK(density=0.001, whole_below=0),
        TopK(density=0.4, whole_below=0),
        TopK(density=0.4, whole_below=4),
        TopK(density=0.4),
        TopK(density=1.0, whole_below=0),
    ],
}

EXCHANGES: dict[type, list[Exchange]] = {
    GatherMean: [GatherMean()],
    ReduceMean: [ReduceMean()],
}

TUNERS: dict[type, list[Tuner]] = {
    Constant: [Constant()],
    Warmup: [Warmup(), Warmup(steps=1), Warmup(steps=7, start=1.0), Warmup(steps=3, start=0.0001)],
}

RECIPES: dict[str, list[Method]] = {
    "dense": [laconic.dense()],
    "randomk": [laconic.randomk(0.3), laconic.randomk(0.3, memory="update"), laconic.randomk(0.1, warmup_steps=4)],
    "topk": [
        laconic.topk(0.3, whole_below=4),
        laconic.topk(0.3, memory="update", whole_below=0),
        laconic.topk(0.3, memory="none", whole_below=0),
        laconic.topk(0.3, scope="model", whole_below=0),
        laconic.topk(0.1, whole_below=0, warmup_steps=4),
    ],
    "topk_sgd": [laconic.topk_sgd(0.3)],
}


def _no_share(field: str) -> list[tuple[str, Any]]:
    """Values that are no share in (0, 1]."""
    return [(field, value) for value in (0.0, -0.1, 1.5, float("nan"), float("inf"), "0.1", True, None)]


def _no_whole(field: str, below: int) -> list[tuple[str, Any]]:
    """Values that are no whole number, and one that is too small."""
    return [(field, value) for value in (below, 0.5, "1", True, None)]


# What each class must refuse, and the field that its message must name.
BAD_SETTINGS: dict[type, list[tuple[str, Any]]] = {
    RandomK: [*_no_share("density"), *_no_whole("seed", -1)],
    TopK: [*_no_share("density"), *_no_whole("whole_below", -1)],
    Warmup: [*_no_share("start"), *_no_whole("steps", 0)],
}

# Settings that a class cannot do without.
NEEDED: dict[type, dict[str, Any]] = {RandomK: {"density": 0.1}, TopK: {"density": 0.1}}


def compressors() -> list[Compressor]:
    return [instance for instances in COMPRESSORS.values() for instance in instances]


def exchanges() -> list[Exchange]:
    return [instance for instances in EXCHANGES.values() for instance in instances]


def tuners() -> list[Tuner]:
    return [instance for instances in TUNERS.values() for instance in instances]


def recipes() -> list[Method]:
    return [method for methods in RECIPES.values() for method in methods]


def label(method: Method) -> str:
    """A method's name and settings, short enough to read in a list of tests."""
    return f"{method.name}-{method.compressor!r}-{method.tuner.name}-{method.memory}-{method.scope}"


def sparsifiers() -> list[Compressor]:
    return [c for c in compressors() if isinstance(c, Sparsifier)]


def accepts(exchange: Exchange, compressor: Compressor) -> bool:
    """Whether the exchange says that it can carry what the compressor makes."""
    try:
        exchange.check(compressor)
    except ValueError:
        return False
    return True


def pairs(*, accepted: bool) -> list[Any]:
    """Every exchange with every compressor, split by what ``check`` says."""
    return [(e, c) for e in exchanges() for c in compressors() if accepts(e, c) is accepted]
