"""HOW MUCH. A re-export here is a tuner's registration."""

from laconic.tuners.constant import Constant
from laconic.tuners.warmup import Warmup

__all__ = ["Constant", "Warmup"]
