"""Instances of everything that is registered: what the exams are parametrised over.

A new file in a folder comes into all exams of its protocol by one entry here; ``tests/test_registered.py``
fails until it has one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import laconic
from laconic import codecs
from laconic.coding import Codec
from laconic.compressors import (
    AdaComp,
    ChunkTopK,
    Dense,
    GaussianK,
    RandomK,
    SampledTopK,
    Sidco,
    StdThreshold,
    Stochastic,
    Strom,
    TopK,
)
from laconic.costs import Affine, Bits, Packets, Seconds
from laconic.exchanges import (
    GatherMean,
    InParts,
    LedMean,
    LowRankMean,
    ReduceMean,
    ShardedMean,
    SmallestMean,
    TwoLevel,
)
from laconic.method import Method
from laconic.tuners import Budget, Cat, Constant, Progress, Relief, Stages, TargetDensity, Warmup
from laconic.types import Compressor, Exchange, Sparsifier, Tuner

COMPRESSORS: dict[type, list[Compressor]] = {
    AdaComp: [AdaComp(bin_size=1, whole_below=0), AdaComp(bin_size=4, whole_below=4), AdaComp()],
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

CODECS: dict[type, list[Codec]] = {
    codecs.BFloat16: [codecs.BFloat16()],
    codecs.Binned: [codecs.Binned(), *(codecs.Binned(bits=bits) for bits in (1, 4, 8))],
    codecs.Exact: [codecs.Exact()],
    codecs.Linear: [
        *(codecs.Linear(bits=bits) for bits in (2, 4, 8)),
        *(codecs.Linear(bits=bits, rounding="stochastic", seed=bits) for bits in (2, 4, 8)),
    ],
    codecs.Octaves: [codecs.Octaves(), codecs.Octaves(bits=2)],
    codecs.OneBit: [codecs.OneBit()],
    codecs.Qsgd: [codecs.Qsgd(), codecs.Qsgd(levels=1), codecs.Qsgd(levels=5, seed=3), codecs.Qsgd(levels=7)],
    codecs.SignMean: [codecs.SignMean()],
    codecs.TernGrad: [codecs.TernGrad(), codecs.TernGrad(deviations=1.0, seed=3)],
}

EXCHANGES: dict[type, list[Exchange]] = {
    GatherMean: [GatherMean()],
    # Blocks small enough for the vectors of the exams to have some of each part.
    InParts: [InParts(inner=GatherMean(), parts=3, block=4), InParts(parts=2, block=5)],
    LedMean: [LedMean(), LedMean(values=codecs.SignMean())],
    LowRankMean: [LowRankMean(), LowRankMean(rank=1, seed=3, least_ratio=1.0)],
    ReduceMean: [ReduceMean()],
    ShardedMean: [ShardedMean(), ShardedMean(values=codecs.Linear(bits=4))],
    SmallestMean: [SmallestMean()],
    # Ranks of a node come with equal vectors: tests/lockstep/test_two_level.py has the exam of larger nodes.
    TwoLevel: [TwoLevel(inner=ReduceMean(), node_size=1)],
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
        laconic.diloco(2, send=laconic.sdagc(1.5, whole_below=0, scope="layer", values="exact")),
    ],
    "ef_sign": [laconic.ef_sign(), laconic.ef_sign(memory="gradient")],
    "episode": [laconic.episode(2, clip=0.5), laconic.episode(2, send=laconic.topk(0.3, whole_below=0))],
    "episode_pp": [laconic.episode_pp(2, clip=0.5), laconic.episode_pp(2, participants=2, clip=0.5)],
    "gaussiank": [laconic.gaussiank(0.3, whole_below=0), laconic.gaussiank(0.3, memory="update", whole_below=4)],
    "local_sgd": [laconic.local_sgd(2), laconic.local_sgd(2, send=laconic.randomk(0.3))],
    "one_bit": [laconic.one_bit(), laconic.one_bit(memory="none")],
    "parallel_clip": [laconic.parallel_clip(0.5)],
    "post_local": [laconic.post_local(2, start=3, clip=0.5)],
    # Of the small matrices of the exams few directions are half of all, or less, only so.
    "powersgd": [
        laconic.powersgd(1, least_ratio=1.0),
        laconic.powersgd(1, memory="update", seed=3, least_ratio=1.0),
        laconic.powersgd(1, memory="none", least_ratio=1.0),
    ],
    "qsgd": [laconic.qsgd(), laconic.qsgd(1, seed=3)],
    "randomk": [laconic.randomk(0.3), laconic.randomk(0.3, memory="update"), laconic.randomk(0.1, warmup_steps=4)],
    "sdagc": [
        laconic.sdagc(6.0, warmup_steps=4, whole_below=0),
        laconic.sdagc(1.5, whole_below=0, scope="layer", values="exact"),
        replace(
            laconic.sdagc(2.0, clip=0.5, whole_below=4, scope="layer", values="exact"),
            tuner=laconic.Warmup(steps=3),
        ),
        laconic.sdagc(
            2.0, law="progress", revision="none", masking=False, whole_below=0, scope="layer", values="exact"
        ),
        laconic.sdagc(
            2.0,
            law="target",
            density=0.2,
            clip=0.5,
            clip_scope="layer",
            whole_below=0,
            scope="layer",
            values="exact",
        ),
        laconic.sdagc(1.5, over="model", running=0.9, momentum=False, whole_below=0, scope="layer", values="exact"),
        laconic.sdagc(1.5, over="model", scope="model", whole_below=0, values="exact"),
        laconic.sdagc(1.5, law="cat", cost="bits", whole_below=0, scope="layer", values="exact"),
        laconic.sdagc(
            1.5, std_of="residual", revision="damp", fallback=True, whole_below=0, scope="layer", values="exact"
        ),
    ],
    "sidco": [laconic.sidco(0.3, whole_below=0), laconic.sidco(0.1, memory="update", whole_below=4)],
    # With small parameters selected from too.
    "sparseloco": [
        replace(
            laconic.sparseloco(2, values="exact", decay=1.0), compressor=ChunkTopK(k=1, chunk=4, whole_below=0)
        ),
        replace(laconic.sparseloco(2, over="senders"), compressor=ChunkTopK(k=2, chunk=4, whole_below=4)),
    ],
    "spartan": [replace(laconic.spartan(2, clip=0.5), compressor=TopK(density=0.3, whole_below=0))],
    "strom": [laconic.strom(0.05, whole_below=0), laconic.strom(0.1, memory="gradient", whole_below=4)],
    "terngrad": [laconic.terngrad(), laconic.terngrad(1.0, seed=3)],
    "topk": [
        laconic.topk(0.3, whole_below=4),
        laconic.topk(0.3, values="int4", whole_below=4),
        laconic.topk(0.3, memory="update", whole_below=0),
        laconic.topk(0.3, memory="none", whole_below=0),
        laconic.topk(0.3, scope="model", whole_below=0),
        laconic.topk(0.1, whole_below=0, warmup_steps=4),
        replace(laconic.topk(0.2, scope="model", whole_below=0), exchange=InParts(parts=3, block=4)),
    ],
    "topk_sgd": [laconic.topk_sgd(0.3)],
}


def selects(compressor: Compressor) -> bool:
    """Whether values are sent as they are; the others change them, and what that changes stays owed."""
    return not isinstance(compressor, AdaComp | Stochastic | Strom)


def everything(compressor: Compressor) -> Compressor | None:
    """The same compressor where it sends all; None for fixed thresholds, which have none."""
    if isinstance(compressor, Sparsifier):
        return compressor.at_density(1.0)
    return compressor if isinstance(compressor, Dense) else None


def compressors() -> list[Compressor]:
    return [instance for instances in COMPRESSORS.values() for instance in instances]


def every_codec() -> list[Codec]:
    return [instance for instances in CODECS.values() for instance in instances]


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
