"""laconic: train deep networks over slow links."""

from laconic.compressors import Dense, RandomK, TopK
from laconic.errors import ExchangeError, GroupError, LaconicError, WireError
from laconic.exchanges import GatherMean, ReduceMean
from laconic.integrations import Link, attach
from laconic.methods import Method, by_name, dense, randomk, topk, topk_sgd
from laconic.stats import Measurement, Stats
from laconic.tuners import Constant, Warmup

__all__ = [
    "Constant",
    "Dense",
    "ExchangeError",
    "GatherMean",
    "GroupError",
    "LaconicError",
    "Link",
    "Measurement",
    "Method",
    "RandomK",
    "ReduceMean",
    "Stats",
    "TopK",
    "Warmup",
    "WireError",
    "attach",
    "by_name",
    "dense",
    "randomk",
    "topk",
    "topk_sgd",
]
