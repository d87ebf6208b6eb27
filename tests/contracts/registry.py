"""Instances of everything that is registered: what the exams are parametrised over.

A new file in a folder comes into all exams of its protocol by one entry here; ``tests/test_registered.py``
fails until it has one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import laconic
from laconic.clipping import LocalClip
from laconic.compressors import (
    AdaComp,
    Binned,
    ChunkTopK,
    Dense,
    GaussianK,
    RandomK,
    SampledTopK,
    Sidco,
    SignTopK,
    StdThreshold,
    Stochastic,
    Strom,
    TopK,
)
from laconic.costs import Affine, Bits, Packets, Seconds
from laconic.exchanges import GatherMean, ReduceMean
from laconic.guard import Guard
from laconic.method import Method
from laconic.tuners import Budget, Cat, Constant, Progress, Relief, Stages, TargetDensity, Warmup
from laconic.types import Compressor, Exchange, Sparsifier, Tuner

COMPRESSORS: dict[type, list[Compressor]] = {
    AdaComp: [AdaComp(bin_size=1, whole_below=0), AdaComp(bin_size=4, whole_below=4), AdaComp()],
    Binned: [
        Binned(inner=TopK(density=0.4, whole_below=0)),
        Binned(inner=ChunkTopK(k=2, chunk=4, whole_below=4), bits=1),
        Binned(inner=GaussianK(density=0.4, whole_below=0), bits=3),
    ],
    ChunkTopK: [
        ChunkTopK(k=1, chunk=4, whole_below=0),
        ChunkTopK(k=3, chunk=8, whole_below=4),
        ChunkTopK(k=4, chunk=4, whole_below=0),
        ChunkTopK(),
    ],
    Dense: [Dense()],
    GaussianK: [
        GaussianK(density=0.001, whole_below=0),
        GaussianK(density=0.4, whole_below=4),
        GaussianK(density=1.0, whole_below=0),
    ],
    RandomK: [RandomK(density=0.001), RandomK(density=0.3, seed=7), RandomK(density=1.0)],
    SampledTopK: [
        SampledTopK(density=0.001, whole_below=0),
        SampledTopK(density=0.4, sample=1.0, whole_below=4),
        SampledTopK(density=1.0, whole_below=0),
    ],
    Sidco: [
        Sidco(density=0.01, whole_below=0),
        Sidco(density=0.3, stages=2, whole_below=4),
        Sidco(density=0.01, stages=4, fit="pareto", whole_below=0),
        Sidco(density=1.0, whole_below=0),
    ],
    SignTopK: [
        SignTopK(density=0.001, whole_below=0),
        SignTopK(density=0.4, whole_below=4),
        SignTopK(density=1.0, whole_below=0),
    ],
    StdThreshold: [
        StdThreshold(c=15.0, whole_below=0),
        StdThreshold(c=1.25, running=0.9, whole_below=4),
        StdThreshold(c=1.25, over="model", running=0.5, whole_below=0),
        StdThreshold(c=2.0, std_of="residual", whole_below=0),
        StdThreshold(c=0.0, whole_below=0),
        StdThreshold(c=3.3, std_of="residual"),
    ],
    Stochastic: [
        Stochastic(density=0.001, whole_below=0),
        Stochastic(density=0.4, seed=7, whole_below=4),
        Stochastic(density=1.0, whole_below=0),
        Stochastic(density=0.4, cost=Bits(), whole_below=0),
        Stochastic(density=0.1, cost=Affine(fixed_bits=5000.0), whole_below=4, floor=0.1, ceiling=1.0),
    ],
    Strom: [Strom(tau=0.5, whole_below=0), Strom(tau=0.125, whole_below=4)],
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
    Budget: [Budget(share=0.05), Budget(bits_per_second=1e6, floor=0.01, ceiling=0.2)],
    Cat: [
        Cat(cost=Affine(fixed_bits=4096.0)),
        Cat(cost=Packets.cat_paper(), coding="published", floor=0.01, ceiling=1.0),
        Cat(),
        Cat(gain="lag"),
        Cat(cost=Bits(), gain="curvature"),
        Cat(cost=Seconds(latency_seconds=0.01, bits_per_second=1e6), gain="beta"),
    ],
    Constant: [Constant()],
    Progress: [Progress(), Progress(c_min=0.5, smoothing=1.0)],
    Relief: [Relief(), Relief(inner=Warmup(steps=7), factor=2.0, every=2), Relief(inner=Progress(), every=1)],
    Stages: [Stages(), Stages(every=1)],
    TargetDensity: [TargetDensity(), TargetDensity(density=0.1, every=1, factor=1.5, c_min=0.5, c_max=4.0)],
    Warmup: [Warmup(), Warmup(steps=1), Warmup(steps=7, start=1.0), Warmup(steps=3, start=0.0001)],
}

RECIPES: dict[str, list[Method]] = {
    "adacomp": [laconic.adacomp(4, whole_below=0), laconic.adacomp(4, memory="update", whole_below=4)],
    "cat": [
        laconic.cat("bits", whole_below=0),
        laconic.cat("packets", whole_below=4, start=0.3, memory="gradient"),
        laconic.cat("paper", whole_below=0, gain="curvature"),
        laconic.cat("bits", per="layer", start=0.3, whole_below=0),
        laconic.cat("bits", rule="sign", start=0.3, whole_below=0),
        laconic.cat("bits", rule="random", start=0.3, whole_below=0),
    ],
    "celgc": [
        laconic.celgc(4),
        laconic.celgc(2, clip=0.5, optimizer_state="average"),
        laconic.celgc(2, clip=0.5, norm_by="max", outer_rate=0.7, outer_momentum=0.5),
        laconic.celgc(2, clip=0.5, norm_of="update", buffers="recompute"),
        laconic.celgc(2, period="drift", start=2, optimizer_state="reset"),
        laconic.celgc(4, clip=0.5, send=laconic.topk(0.3, whole_below=0), restart=0.5),
        laconic.celgc(2, participants=2),
        laconic.celgc(2, send=laconic.cat("bits", start=0.3, whole_below=0)),
        laconic.celgc(2, participants=1, send=laconic.topk(0.3, memory="update", whole_below=4)),
    ],
    "dense": [laconic.dense()],
    "dgc": [
        laconic.dgc(0.3, whole_below=0, warmup_steps=4),
        laconic.dgc(0.3, whole_below=4, warmup_steps=0, clip=0.5, clip_scope="layer", masking=False),
    ],
    "diloco": [
        laconic.diloco(4),
        laconic.diloco(4, fragments=2, delay=1, mix=0.25),
        laconic.diloco(2, send=laconic.sdagc(1.5, whole_below=0)),
    ],
    "episode": [laconic.episode(2, clip=0.5), laconic.episode(2, send=laconic.topk(0.3, whole_below=0))],
    "episode_pp": [laconic.episode_pp(2, clip=0.5), laconic.episode_pp(2, participants=2, clip=0.5)],
    "gaussiank": [laconic.gaussiank(0.3, whole_below=0), laconic.gaussiank(0.3, memory="update", whole_below=4)],
    "local_sgd": [laconic.local_sgd(2), laconic.local_sgd(2, send=laconic.randomk(0.3))],
    "parallel_clip": [laconic.parallel_clip(0.5)],
    "post_local": [laconic.post_local(2, start=3, clip=0.5)],
    "randomk": [laconic.randomk(0.3), laconic.randomk(0.3, memory="update"), laconic.randomk(0.1, warmup_steps=4)],
    "sdagc": [
        laconic.sdagc(1.5, whole_below=0),
        laconic.sdagc(2.0, law="warmup", warmup_steps=3, clip=0.5, whole_below=4),
        laconic.sdagc(2.0, law="progress", revision="none", masking=False, whole_below=0),
        laconic.sdagc(2.0, law="target", density=0.2, clip=0.5, clip_scope="layer", whole_below=0),
        laconic.sdagc(1.5, over="model", running=0.9, momentum=False, whole_below=0),
        laconic.sdagc(1.5, over="model", scope="model", whole_below=0),
        laconic.sdagc(1.5, law="cat", cost="bits", whole_below=0),
        laconic.sdagc(1.5, std_of="residual", revision="damp", fallback=True, whole_below=0),
    ],
    "sidco": [laconic.sidco(0.3, whole_below=0), laconic.sidco(0.1, memory="update", whole_below=4)],
    # With small parameters selected from too.
    "sparseloco": [
        replace(laconic.sparseloco(2, bits=None, decay=1.0), compressor=ChunkTopK(k=1, chunk=4, whole_below=0)),
        replace(
            laconic.sparseloco(2, over="senders"), compressor=Binned(inner=ChunkTopK(k=2, chunk=4, whole_below=4))
        ),
    ],
    "spartan": [replace(laconic.spartan(2, clip=0.5), compressor=TopK(density=0.3, whole_below=0))],
    "strom": [laconic.strom(0.05, whole_below=0), laconic.strom(0.1, memory="gradient", whole_below=4)],
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


def _no_number(field: str, *below: float) -> list[tuple[str, Any]]:
    """Values that are no finite number, and some that are too small."""
    return [(field, value) for value in (*below, float("nan"), float("inf"), "1", True, None)]


def _no_choice(field: str) -> list[tuple[str, Any]]:
    """Values that are none of the words."""
    return [(field, value) for value in ("", "layers", None, 1)]


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
    Binned: [
        *[("inner", value) for value in (None, "topk", TopK, Dense(), RandomK(density=0.1), StdThreshold(c=2.0))],
        *_no_whole("bits", 0),
        ("bits", 17),
    ],
    ChunkTopK: [*_no_whole("k", 0), ("k", 4097), *_no_whole("chunk", 0), *_WHOLE_BELOW],
    GaussianK: [*_no_share("density"), *_WHOLE_BELOW],
    Guard: [*_no_number("limit", 0.5), *_no_whole("every", 0), *_no_whole("skipped", 0)],
    LocalClip: [*_no_number("norm", 0.0, -1.0), *_no_choice("convention"), *_no_choice("scope")],
    Progress: [*_no_number("c_min", -0.1), *_no_share("smoothing")],
    RandomK: [*_no_share("density"), *_no_whole("seed", -1)],
    Relief: [
        *[("inner", value) for value in (None, "constant", Constant)],
        *_no_number("factor", 0.9),
        *_no_whole("every", 0),
    ],
    SampledTopK: [*_no_share("density"), *_no_share("sample"), *_WHOLE_BELOW],
    Sidco: [*_no_share("density"), *_no_whole("stages", 0), *_no_choice("fit"), *_WHOLE_BELOW],
    SignTopK: [*_no_share("density"), *_WHOLE_BELOW],
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
    TopK: [*_no_share("density"), *_WHOLE_BELOW],
    Warmup: [*_no_share("start"), *_no_whole("steps", 0)],
}

# Settings that a class cannot do without.
NEEDED: dict[type, dict[str, Any]] = {
    Budget: {"share": 0.1},
    Binned: {"inner": TopK(density=0.1)},
    GaussianK: {"density": 0.1},
    LocalClip: {"norm": 1.0},
    RandomK: {"density": 0.1},
    SampledTopK: {"density": 0.1},
    Sidco: {"density": 0.1},
    SignTopK: {"density": 0.1},
    StdThreshold: {"c": 2.0},
    Stochastic: {"density": 0.1},
    Strom: {"tau": 0.1},
    TopK: {"density": 0.1},
}


def refusal(field: str, value: object) -> str:
    """What an error must say: what it wants, what it got, and what to do or to choose from."""
    got = f"got {re.escape(repr(value))}\\."
    return rf"{field} must be (.*, {got} \w.*\.|one of .*; {got}|a (tuner|cost) such as .*, {got})$"


def selects(compressor: Compressor) -> bool:
    """Whether values are sent as they are; the others change them, and what that changes stays owed."""
    return not isinstance(compressor, AdaComp | Binned | SignTopK | Stochastic | Strom)


def everything(compressor: Compressor) -> Compressor | None:
    """The same compressor where it sends all; None for bins, signs and fixed thresholds, which have none."""
    if isinstance(compressor, Sparsifier) and not isinstance(compressor, SignTopK):
        return compressor.at_density(1.0)
    return compressor if isinstance(compressor, Dense) else None


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
    parts = (method.name, repr(method.compressor), method.tuner.name, method.memory, method.scope)
    return "-".join(parts)


def sparsifiers() -> list[Compressor]:
    return [c for c in compressors() if isinstance(c, Sparsifier)]


def accepts(exchange: Exchange, compressor: Compressor) -> bool:
    """Whether the exchange says that it can carry what the compressor makes."""
    try:
        exchange.check(compressor)
    except ValueError:
        return False
    return True


def tunes(tuner: Tuner, compressor: Compressor) -> bool:
    """Whether the tuner says that it can move the compressor."""
    try:
        tuner.init(compressor)
    except ValueError:
        return False
    return True


def pairs(*, accepted: bool) -> list[Any]:
    """Every exchange with every compressor, split by what ``check`` says."""
    return [(e, c) for e in exchanges() for c in compressors() if accepts(e, c) is accepted]
