"""HOW MUCH. A re-export here is a tuner's registration."""

from laconic.tuners.budget import Budget
from laconic.tuners.cat import Cat
from laconic.tuners.constant import Constant
from laconic.tuners.progress import Progress
from laconic.tuners.relief import Relief
from laconic.tuners.stages import Stages
from laconic.tuners.target_density import TargetDensity
from laconic.tuners.warmup import Warmup

__all__ = ["Budget", "Cat", "Constant", "Progress", "Relief", "Stages", "TargetDensity", "Warmup"]
