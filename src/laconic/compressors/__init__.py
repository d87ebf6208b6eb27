"""WHAT is worth sending. A re-export here is a compressor's registration."""

from laconic.compressors.adacomp import AdaComp
from laconic.compressors.chunk_topk import ChunkTopK
from laconic.compressors.dense import Dense
from laconic.compressors.gaussiank import GaussianK
from laconic.compressors.randomk import RandomK
from laconic.compressors.sampled_topk import SampledTopK
from laconic.compressors.sidco import Sidco
from laconic.compressors.std_threshold import StdThreshold
from laconic.compressors.stochastic import Stochastic
from laconic.compressors.strom import Strom
from laconic.compressors.topk import TopK

__all__ = [
    "AdaComp",
    "ChunkTopK",
    "Dense",
    "GaussianK",
    "RandomK",
    "SampledTopK",
    "Sidco",
    "StdThreshold",
    "Stochastic",
    "Strom",
    "TopK",
]
