"""HOW vectors become a mean. A re-export here is an exchange's registration."""

from laconic.exchanges.gather_mean import GatherMean
from laconic.exchanges.in_parts import InParts
from laconic.exchanges.led_mean import LedMean
from laconic.exchanges.lowrank_mean import LowRankMean
from laconic.exchanges.reduce_mean import ReduceMean
from laconic.exchanges.sharded_mean import ShardedMean
from laconic.exchanges.smallest_mean import SmallestMean
from laconic.exchanges.two_level import TwoLevel

__all__ = [
    "GatherMean",
    "InParts",
    "LedMean",
    "LowRankMean",
    "ReduceMean",
    "ShardedMean",
    "SmallestMean",
    "TwoLevel",
]
