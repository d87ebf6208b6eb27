"""laconic: train deep networks over slow links."""

from laconic.clipping import LocalClip
from laconic.compressors import (
    AdaComp,
    Dense,
    GaussianK,
    RandomK,
    SampledTopK,
    Sidco,
    StdThreshold,
    Strom,
    TopK,
)
from laconic.errors import ExchangeError, GroupError, LaconicError, WireError
from laconic.exchanges import GatherMean, ReduceMean
from laconic.guard import Guard
from laconic.integrations import Link, attach
from laconic.method import Method
from laconic.methods import (
    adacomp,
    by_name,
    dense,
    dgc,
    gaussiank,
    randomk,
    sdagc,
    sidco,
    strom,
    topk,
    topk_sgd,
)
from laconic.stats import Layer, Measurement, Stats
from laconic.tuners import Constant, Progress, Relief, Stages, TargetDensity, Warmup

__all__ = [
    "AdaComp",
    "Constant",
    "Dense",
    "ExchangeError",
    "GatherMean",
    "GaussianK",
    "GroupError",
    "Guard",
    "LaconicError",
    "Layer",
    "Link",
    "LocalClip",
    "Measurement",
    "Method",
    "Progress",
    "RandomK",
    "ReduceMean",
    "Relief",
    "SampledTopK",
    "Sidco",
    "Stages",
    "Stats",
    "StdThreshold",
    "Strom",
    "TargetDensity",
    "TopK",
    "Warmup",
    "WireError",
    "adacomp",
    "attach",
    "by_name",
    "dense",
    "dgc",
    "gaussiank",
    "randomk",
    "sdagc",
    "sidco",
    "strom",
    "topk",
    "topk_sgd",
]
