"""HOW vectors become a mean. A re-export here is an exchange's registration."""

from laconic.exchanges.gather_mean import GatherMean
from laconic.exchanges.reduce_mean import ReduceMean

__all__ = ["GatherMean", "ReduceMean"]
