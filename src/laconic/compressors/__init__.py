"""WHAT is worth sending. A re-export here is a compressor's registration."""

from laconic.compressors.dense import Dense
from laconic.compressors.randomk import RandomK
from laconic.compressors.topk import TopK

__all__ = ["Dense", "RandomK", "TopK"]
