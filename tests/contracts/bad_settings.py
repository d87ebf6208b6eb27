"""What each class must refuse, with the field that its message must name."""

from __future__ import annotations

import re
from typing import Any

from laconic.clipping import LocalClip
from laconic.codecs import Binned, Linear, Octaves, Qsgd, TernGrad
from laconic.compressors import (
    AdaComp,
    ChunkTopK,
    GaussianK,
    RandomK,
    SampledTopK,
    Sidco,
    StdThreshold,
    Stochastic,
    Strom,
    TopK,
)
from laconic.costs import Bits, Seconds
from laconic.exchanges import GatherMean, LowRankMean, ShardedMean, SmallestMean, TwoLevel
from laconic.guard import Guard
from laconic.tuners import Budget, Cat, Constant, Progress, Relief, Stages, TargetDensity, Warmup


def _no_share(field: str) -> list[tuple[str, Any]]:
    """Values that are no share in (0, 1]."""
    return [(field, value) for value in (0.0, -0.1, 1.5, float("nan"), float("inf"), "0.1", True, None)]


def _no_whole(field: str, below: int) -> list[tuple[str, Any]]:
    """Values that are no whole number, and one that is too small."""
    return [(field, value) for value in (below, 0.5, "1", True, None)]


def _no_number(field: str, *below: float) -> list[tuple[str, Any]]:
    """Values that are no finite number, and some that are too small."""
    return [(field, value) for value in (*below, float("nan"), float("inf"), "1", True, None)]


def _no_choice(field: str) -> list[tuple[str, Any]]:
    """Values that are none of the words."""
    return [(field, value) for value in ("", "layers", None, 1)]


_NO_CODEC: list[tuple[str, Any]] = [("values", value) for value in (None, "int4", Linear, 4)]
_WHOLE_BELOW = _no_whole("whole_below", -1)
# What each class must refuse, and the field that its message must name.
BAD_SETTINGS: dict[type, list[tuple[str, Any]]] = {
    # None says that the other one of share and bits_per_second holds.
    Budget: [
        *_no_share("share")[:-1],
        ("share", 1.0),
        *_no_number("bits_per_second", 0.0, -1.0)[:-1],
        *_no_share("floor"),
        ("floor", 0.7),
        *_no_share("ceiling"),
    ],
    Cat: [
        *[("cost", value) for value in (None, "bits", Seconds, 3)],
        *_no_choice("gain"),
        *_no_choice("coding"),
        *_no_share("floor"),
        ("floor", 0.7),
        *_no_share("ceiling"),
    ],
    AdaComp: [*_no_whole("bin_size", 0), *_WHOLE_BELOW],
    Binned: [("bits", value) for value in (0, 3, 16, 2.0, "2", True, None)],
    ChunkTopK: [*_no_whole("k", 0), ("k", 4097), *_no_whole("chunk", 0), *_WHOLE_BELOW],
    GaussianK: [*_no_share("density"), *_WHOLE_BELOW],
    Guard: [*_no_number("limit", 0.5), *_no_whole("every", 0), *_no_whole("skipped", 0)],
    Linear: [
        *[("bits", value) for value in (0, 1, 3, 16, 4.0, "4", True, None)],
        *_no_choice("rounding"),
        *_no_whole("seed", -1),
    ],
    LocalClip: [*_no_number("norm", 0.0, -1.0), *_no_choice("convention"), *_no_choice("scope")],
    LowRankMean: [*_no_whole("rank", 0), *_no_whole("seed", -1), *_no_number("least_ratio", 0.0, 0.9)],
    Octaves: [("bits", value) for value in (0, 1, 3, 8, 4.0, "4", True, None)],
    Progress: [*_no_number("c_min", -0.1), *_no_share("smoothing")],
    Qsgd: [*_no_whole("levels", 0), ("levels", 128), *_no_whole("seed", -1)],
    RandomK: [*_no_share("density"), *_no_whole("seed", -1)],
    Relief: [
        *[("inner", value) for value in (None, "constant", Constant)],
        *_no_number("factor", 0.9),
        *_no_whole("every", 0),
    ],
    ShardedMean: _NO_CODEC,
    SmallestMean: _NO_CODEC,
    SampledTopK: [*_no_share("density"), *_no_share("sample"), *_WHOLE_BELOW],
    Sidco: [*_no_share("density"), *_no_whole("stages", 0), *_no_choice("fit"), *_WHOLE_BELOW],
    Stages: _no_whole("every", 0),
    StdThreshold: [
        *_no_number("c", -0.1),
        *_no_choice("std_of"),
        *_no_choice("over"),
        *_no_number("running", -0.1, 1.0, 1.5),
        *_WHOLE_BELOW,
    ],
    Stochastic: [
        *_no_share("density"),
        *[("cost", value) for value in ("bits", 1.0, Bits, Seconds())],
        *_WHOLE_BELOW,
        *_no_whole("seed", -1),
        *_no_share("floor"),
        ("floor", 0.6),
        *_no_share("ceiling"),
    ],
    Strom: [*_no_number("tau", 0, 0.0, -0.1), *_WHOLE_BELOW],
    TargetDensity: [
        *_no_share("density"),
        *_no_whole("every", 0),
        *_no_number("factor", 0.9),
        *_no_number("c_min", -0.1),
        *_no_number("c_max", 0.4),
    ],
    TernGrad: [*_no_number("deviations", 0, 0.0, -1.0), *_no_whole("seed", -1)],
    TopK: [*_no_share("density"), *_WHOLE_BELOW],
    # None says that the launcher knows.
    TwoLevel: [
        *[("inner", value) for value in (None, "gather_mean", GatherMean, TwoLevel())],
        *_no_whole("node_size", 0)[:-1],
    ],
    Warmup: [*_no_share("start"), *_no_whole("steps", 0)],
}

# Settings that a class cannot do without.
NEEDED: dict[type, dict[str, Any]] = {
    Budget: {"share": 0.1},
    GaussianK: {"density": 0.1},
    LocalClip: {"norm": 1.0},
    RandomK: {"density": 0.1},
    SampledTopK: {"density": 0.1},
    Sidco: {"density": 0.1},
    StdThreshold: {"c": 2.0},
    Stochastic: {"density": 0.1},
    Strom: {"tau": 0.1},
    TopK: {"density": 0.1},
}


def refusal(field: str, value: object) -> str:
    """What an error must say: what it wants, what it got, and what to do or to choose from."""
    got = f"got {re.escape(repr(value))}\\."
    return rf"{field} must be (.*, {got} \w.*\.|one of .*; {got}|a (tuner|cost|codec) such as .*, {got})$"
